"""Which names are taken: those that mean the same file on every machine, and nothing outside the folder."""

import re
import unicodedata
from collections import Counter
from dataclasses import replace

from .common import Bad, Entry, shown

MAX_DEPTH = 32
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
WINDOWS_NAMES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{kind}{digit}" for kind in ("com", "lpt") for digit in "0123456789¹²³"]
)
UNPRINTABLE = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
"""Unicode categories that a file name has no use for: controls, text direction, zero width, broken encodings."""
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters that look like nothing."""
LEFT_OUT_FOLDERS = frozenset(["__MACOSX", "__pycache__", ".git"])
LEFT_OUT_FILES = frozenset([".DS_Store", "Thumbs.db"])


def clean_path(raw: str) -> str:
    """The path in normal form (NFC, no leading ``./``, no trailing slash), or Bad. Empty for the top itself."""
    path = unicodedata.normalize("NFC", raw)
    for character in path:
        if unicodedata.category(character) in UNPRINTABLE or character in INVISIBLE:
            raise Bad(
                f"The name {shown(raw)} has a character that cannot be seen (U+{ord(character):04X}). Rename it and pack again."
            )
    if "\\" in path:
        raise Bad(
            f"The name {shown(raw)} has a backslash. Rename it, or pack again with a tool that writes / between folders."
        )
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise Bad(
            f"The name {shown(raw)} starts at the root of a disk. Pack the folder itself, with names relative to it."
        )
    while path.startswith("./"):
        path = path[2:]
    path = path.removesuffix("/")
    if path in ("", "."):
        return ""
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise Bad(
                f"The name {shown(raw)} does not lead straight to a file ('..', '.' or '//'). Pack the folder again."
            )
        if part != part.rstrip(". "):
            raise Bad(f"The name {shown(raw)} has a part that ends in a dot or a space. Rename it and pack again.")
        if len(part.encode()) > MAX_NAME_BYTES:
            raise Bad(
                f"The name {shown(raw)} has a part longer than {MAX_NAME_BYTES} bytes. Shorten it and pack again."
            )
        if part.split(".")[0].rstrip().lower() in WINDOWS_NAMES:
            raise Bad(
                f"The name {shown(raw)} is reserved by Windows, so not everybody could open it. Rename it and pack again."
            )
    if len(parts) > MAX_DEPTH:
        raise Bad(f"{shown(raw)} lies {len(parts)} folders deep; {MAX_DEPTH} are allowed. Pack it flatter.")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise Bad(f"The path {shown(raw)} is longer than {MAX_PATH_BYTES} bytes. Shorten it and pack again.")
    return path


def same_place(path: str) -> str:
    """Equal for paths that some file system takes for one another."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def check_tree(entries: list[Entry]) -> None:
    """No path twice, none that differs only in letter case, no file that is also a folder."""
    seen: dict[str, tuple[str, bool]] = {}

    def note(path: str, is_dir: bool) -> None:
        key = same_place(path)
        before = seen.setdefault(key, (path, is_dir))
        if before[0] != path:
            raise Bad(
                f"{shown(before[0])} and {shown(path)} would be the same on some machines. Rename one and pack again."
            )
        if before[1] != is_dir:
            raise Bad(f"{shown(path)} is both a file and a folder. Rename one and pack again.")

    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        if not entry.is_dir:
            if entry.path in files:
                raise Bad(f"{shown(entry.path)} is in it twice. Pack the folder again from scratch.")
            files.add(entry.path)
        note(entry.path, entry.is_dir)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            note(parent, True)
            parent = parent.rpartition("/")[0]


def tidy(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Leaves out what no run needs, takes off the one folder around everything; says so in notes."""
    left_out: Counter[str] = Counter()
    kept = []
    for entry in entries:
        parts = entry.path.split("/")
        folder = next((part for part in parts if part in LEFT_OUT_FOLDERS), None)
        if folder is None and (parts[-1] in LEFT_OUT_FILES or parts[-1].startswith("._")):
            folder = parts[-1] if parts[-1] in LEFT_OUT_FILES else "._*"
        if folder is None:
            kept.append(entry)
        else:
            left_out[folder] += not entry.is_dir
    notes = []
    if left_out:
        count = sum(left_out.values())
        notes.append(f"Left out: {', '.join(sorted(left_out))} ({count} file{'' if count == 1 else 's'} no run needs).")
    tops = {entry.path.split("/")[0] for entry in kept}
    files = {entry.path for entry in kept if not entry.is_dir}
    if len(tops) == 1 and files:
        top = tops.pop()
        # A folder with __init__.py is a package: its name is part of how it is imported.
        if top not in files and f"{top}/__init__.py" not in files:
            kept = [replace(entry, path=entry.path[len(top) + 1 :]) for entry in kept if entry.path != top]
            notes.append(f"The folder {shown(top)} around everything was taken off.")
    if not files:
        raise Bad("There are no files in it. Pack the folder with your code and try again.")
    return kept, notes
