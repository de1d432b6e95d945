"""Compares two code versions file by file, within limits that also hold for hostile files."""

import difflib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from portal.projects import store
from portal.projects.models import CodeVersion

MAX_TEXT_BYTES = 512 * 1024
MAX_LINES = 5_000
MAX_REPEATS = 50_000
"""Maximum number of pairs of equal lines: they slow difflib down, to minutes for malicious files."""
MAX_SECONDS = 3
MAX_FILES = 300
MAX_LINE_LENGTH = 1_000


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a comparison. ``kind`` is added, removed, same, or place (the ``@@`` line of a hunk)."""

    kind: str
    text: str

    @property
    def sign(self) -> str:
        """The character before the line in a diff."""
        return {"added": "+", "removed": "-", "same": " "}.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    kind: str
    """added, removed or changed"""
    lines: list[Line] = field(default_factory=list)
    remark: str = ""
    """The reason why no lines are shown."""

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def as_text(data: bytes) -> str | None:
    """Return the text of a file, None if it is not text."""
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def compare(before: CodeVersion, after: CodeVersion) -> list[Change]:
    """Return the changes, sorted by path, with lines for as many text files as the time limit of a page allows."""
    old = {entry["path"]: entry["sha256"] for entry in before.files}
    new = {entry["path"]: entry["sha256"] for entry in after.files}
    until = time.monotonic() + MAX_SECONDS
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    changes = []
    for number, path in enumerate(paths):
        kind = "added" if path not in old else "removed" if path not in new else "changed"
        if number >= MAX_FILES or time.monotonic() > until:
            changes.append(
                Change(path, kind, remark="Not shown because there are many changes. Open the file to see it.")
            )
            continue
        lines, remark = _lines(before if path in old else None, after if path in new else None, path)
        changes.append(Change(path, kind, lines, remark))
    return changes


def _lines(before: CodeVersion | None, after: CodeVersion | None, path: str) -> tuple[list[Line], str]:
    texts = []
    for version in (before, after):
        data = store.read_file(version, path, MAX_TEXT_BYTES + 1) if version else b""
        if len(data) > MAX_TEXT_BYTES:
            return [], f"Not shown because it is larger than {MAX_TEXT_BYTES // 1024} KiB."
        text = as_text(data)
        if text is None:
            return [], "Not shown because it is not text."
        texts.append(text.split("\n"))
    old, new = texts
    if max(len(old), len(new)) > MAX_LINES or _repeats(old, new) > MAX_REPEATS:
        return [], "Not shown because it is too long to compare."
    if before is None or after is None:
        kind, lines = ("added", new) if before is None else ("removed", old)
        return [Line(kind, _shorten(line)) for line in (lines[:-1] if lines[-1] == "" else lines)], ""
    return list(_unified_diff(old, new)), ""


def _repeats(old: list[str], new: list[str]) -> int:
    first, second = Counter(old), Counter(new)
    often = (
        max(len(new) // 100 + 1, 2) if len(new) >= 200 else len(new) + 1
    )  # difflib ignores lines that are more frequent
    return sum(count * second[line] for line, count in first.items() if 1 < second[line] <= often)


def _unified_diff(old: list[str], new: list[str]) -> Iterator[Line]:
    kinds = {"+": "added", "-": "removed", " ": "same", "@": "place"}
    for number, line in enumerate(difflib.unified_diff(old, new, lineterm="")):
        if number >= 2:  # the first two name the files
            yield Line(kinds[line[0]], _shorten(line if line[0] == "@" else line[1:]))


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE_LENGTH else line[:MAX_LINE_LENGTH] + "..."
