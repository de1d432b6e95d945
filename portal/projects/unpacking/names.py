"""The names of an upload: which are left out, which are renamed, and which cannot be accepted.

What no run needs is left out before anything is judged, so that it can neither refuse an upload nor count in it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .common import BadUploadError, Entry, printable, refuse

MAX_DEPTH = 32
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
MAX_NAMED = 5
"""Maximum number of names in a note."""
UNPRINTABLE = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
"""Unicode categories that no file name needs: control characters, text direction, zero width, invalid encodings."""
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters that are invisible."""
JOINERS = frozenset("\u200c\u200d")
"""Characters without a width that scripts and emoji need."""
LEFT_OUT_FOLDERS = frozenset(
    ["__MACOSX", "__pycache__", ".git", ".hg", ".svn", ".ipynb_checkpoints", ".venv", ".idea", ".vscode"]
    + [".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".eggs", "node_modules"]
)
LEFT_OUT_FILES = frozenset([".DS_Store", "Thumbs.db", "desktop.ini", "Icon\r"])
ENVIRONMENT_MARKS = frozenset(["pyvenv.cfg", "conda-meta"])
"""A folder with one of these is an installed environment, whatever its name."""
WANDB_RUN = re.compile(r"(offline-)?run-|latest-run$|debug(-internal)?\.log$")
"""What Weights & Biases writes into a folder ``wandb``; a package of that name has none of these."""


def split(raw: str) -> list[str]:
    """Return the parts of a raw path, without those that mean nothing: ``./a//b/`` is ``a/b``."""
    return [part for part in raw.split("/") if part not in ("", ".")]


# --- what is left out ---------------------------------------------------------------------------------------------------


def leave_out(entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """Remove what no run needs. Return the other entries, and a note."""
    entries = list(entries)
    environments = _environment_folders(entries)
    counts: Counter[str] = Counter()
    kept = []
    for entry in entries:
        reason = _reason_to_leave_out(split(entry.path), environments)
        if reason is None:
            kept.append(entry)
        else:
            counts[reason] += not entry.is_dir
    if not counts:
        return kept, []
    files = sum(counts.values())
    names = ", ".join(printable(name)[1:-1] for name in sorted(counts))
    return kept, [f"Left out: {names} ({files:,} file{'s' * (files != 1)} that no run needs)."]


def _environment_folders(entries: Iterable[Entry]) -> set[tuple[str, ...]]:
    """Return the folders of installed environments, and those of W&B's runs."""
    found = set()
    for entry in entries:
        parts = split(entry.path)
        for depth, part in enumerate(parts):
            if part in ENVIRONMENT_MARKS and depth:
                found.add(tuple(parts[:depth]))
            if depth and parts[depth - 1] == "wandb" and WANDB_RUN.match(part):
                found.add(tuple(parts[:depth]))
    return found


def _reason_to_leave_out(parts: Sequence[str], environments: set[tuple[str, ...]]) -> str | None:
    """Return the name for which an entry is left out; None if it is kept."""
    for depth, part in enumerate(parts):
        if part in LEFT_OUT_FOLDERS or tuple(parts[: depth + 1]) in environments:
            return part
    last = parts[-1] if parts else ""
    if last in LEFT_OUT_FILES:
        return last.strip()
    return "._*" if last.startswith("._") else "*.pyc" if last.endswith(".pyc") else None


def leave_out_special(entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """Remove devices, pipes and sockets, with a note."""
    entries = list(entries)
    special = [entry.path for entry in entries if entry.special]
    notes = [f"Left out, since they are no files: {listed(special)}."] if special else []
    return [entry for entry in entries if not entry.special], notes


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, as the end of a sentence."""
    more = len(names) - MAX_NAMED
    return ", ".join(map(printable, names[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")


# --- names that are kept ------------------------------------------------------------------------------------------------


def clean_path(raw: str) -> str:
    """Return the path in normal form (NFC, only plain parts, no invisible characters); empty for the top folder.

    Raises BadUploadError for one that leads out of the upload, or is too long.
    """
    path = "".join("_" if is_unsafe(character) else character for character in unicodedata.normalize("NFC", raw))
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise BadUploadError(
            f"The name {printable(raw)} starts at the root of a disk. Pack the folder itself, with names relative to it."
        )
    parts = split(path)
    if ".." in parts:
        raise BadUploadError(f"The name {printable(raw)} leads out of the upload ('..'). Pack the folder again.")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise BadUploadError(
            f"The name {printable(raw)} has a part longer than {MAX_NAME_BYTES} bytes. Shorten it and pack again."
        )
    if len(parts) > MAX_DEPTH:
        raise BadUploadError(
            f"{printable(raw)} is {len(parts)} folders deep; the limit is {MAX_DEPTH}. Use fewer nested folders."
        )
    path = "/".join(parts)
    if len(path.encode()) > MAX_PATH_BYTES:
        raise BadUploadError(
            f"The path {printable(raw)} is longer than {MAX_PATH_BYTES} bytes. Shorten it and pack again."
        )
    return path


def is_unsafe(character: str) -> bool:
    """Return whether a character cannot be seen in a name, turns the direction of what follows, or is a backslash."""
    if character in JOINERS:
        return False
    return character == "\\" or unicodedata.category(character) in UNPRINTABLE or character in INVISIBLE


def clean_names(entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """Give all entries their names in normal form; return them with notes. Raises BadUploadError with all problems."""
    cleaned, renamed, problems = [], [], []
    for entry in entries:
        try:
            path = clean_path(entry.path)
        except BadUploadError as error:
            problems.append(str(error))
            continue
        if entry.problem:
            problems.append(entry.problem)
        if any(map(is_unsafe, unicodedata.normalize("NFC", entry.path))):
            renamed.append(path)
        if path:
            cleaned.append(replace(entry, path=path))
    refuse(problems)
    return cleaned, [
        f"Renamed, since their names had a backslash or characters that cannot be seen: {listed(renamed)}."
    ] if renamed else []


def collision_key(path: str) -> str:
    """Return a key that is equal for paths that some file system does not distinguish."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def check_tree(entries: Iterable[Entry]) -> list[str]:
    """Refuse paths that are in the upload twice, or are both a file and a folder. Return a note on similar names."""
    files: set[str] = set()
    folders: set[str] = set()
    problems = []
    for entry in entries:
        if entry.is_dir:
            folders.add(entry.path)
        elif entry.path in files:
            problems.append(f"{printable(entry.path)} is in it twice. Create the archive again from scratch.")
        else:
            files.add(entry.path)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    problems += [
        f"{printable(path)} is both a file and a folder. Rename one and pack again." for path in sorted(files & folders)
    ]
    refuse(problems)
    names: dict[str, set[str]] = {}
    for path in files | folders:
        names.setdefault(collision_key(path), set()).add(path)
    similar = sorted(" and ".join(map(printable, sorted(paths))) for paths in names.values() if len(paths) > 1)
    return [f"{each} would be the same on Windows and macOS." for each in similar[:MAX_NAMED]]


def keep_top_folder(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Return the entries as they are. Raises BadUploadError when there is no file."""
    if all(entry.is_dir for entry in entries):
        raise BadUploadError("There are no files in the upload. Pack the folder with your code and try again.")
    return entries, []


def remove_top_folder(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Remove a single folder around everything, with a note. Raises BadUploadError when there is no file."""
    tops = {entry.path.split("/")[0] for entry in entries}
    files = {entry.path for entry in entries if not entry.is_dir}
    keep_top_folder(entries)
    if len(tops) > 1:
        return entries, []
    top = tops.pop()
    if top in files or f"{top}/__init__.py" in files:  # a folder with __init__.py is a package: imports use its name
        return entries, []
    inner = [replace(entry, path=entry.path[len(top) + 1 :]) for entry in entries if entry.path != top]
    return inner, [f"The folder {printable(top)} around everything was removed."]
