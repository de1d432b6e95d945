"""Accepted names: those that refer to the same file on every machine, and to nothing outside the folder."""

import re
import unicodedata
from collections import Counter
from dataclasses import replace

from .common import BadUploadError, Entry, printable

MAX_DEPTH = 32
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
WINDOWS_NAMES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{kind}{digit}" for kind in ("com", "lpt") for digit in "0123456789¹²³"]
)
UNPRINTABLE = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
"""Unicode categories that no file name needs: control characters, text direction, zero width, invalid encodings."""
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters that are invisible."""
EXCLUDED_FOLDERS = frozenset(["__MACOSX", "__pycache__", ".git"])
EXCLUDED_FILES = frozenset([".DS_Store", "Thumbs.db"])


def clean_path(raw: str) -> str:
    """Return the path in normal form (NFC, no leading ``./``, no trailing slash), empty for the top folder.

    Raises BadUploadError.
    """
    path = unicodedata.normalize("NFC", raw)
    for character in path:
        if unicodedata.category(character) in UNPRINTABLE or character in INVISIBLE:
            raise BadUploadError(
                f"The name {printable(raw)} has a character that cannot be seen (U+{ord(character):04X}). Rename it and pack again."
            )
    if "\\" in path:
        raise BadUploadError(
            f"The name {printable(raw)} has a backslash. Rename it, or pack again with a tool that writes / between folders."
        )
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise BadUploadError(
            f"The name {printable(raw)} starts at the root of a disk. Pack the folder itself, with names relative to it."
        )
    while path.startswith("./"):
        path = path[2:]
    path = path.removesuffix("/")
    if path in ("", "."):
        return ""
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise BadUploadError(
                f"The name {printable(raw)} does not lead straight to a file ('..', '.' or '//'). Pack the folder again."
            )
        if part != part.rstrip(". "):
            raise BadUploadError(
                f"The name {printable(raw)} has a part that ends in a dot or a space. Rename it and pack again."
            )
        if len(part.encode()) > MAX_NAME_BYTES:
            raise BadUploadError(
                f"The name {printable(raw)} has a part longer than {MAX_NAME_BYTES} bytes. Shorten it and pack again."
            )
        if part.split(".")[0].rstrip().lower() in WINDOWS_NAMES:
            raise BadUploadError(
                f"The name {printable(raw)} is reserved by Windows, so some users could not open it. Rename it and pack again."
            )
    if len(parts) > MAX_DEPTH:
        raise BadUploadError(
            f"{printable(raw)} is {len(parts)} folders deep; the limit is {MAX_DEPTH}. Use fewer nested folders."
        )
    if len(path.encode()) > MAX_PATH_BYTES:
        raise BadUploadError(
            f"The path {printable(raw)} is longer than {MAX_PATH_BYTES} bytes. Shorten it and pack again."
        )
    return path


def collision_key(path: str) -> str:
    """Return a key that is equal for paths that some file system does not distinguish."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def check_tree(entries: list[Entry]) -> None:
    """Refuse duplicate paths, paths that differ only in letter case, and files that are also folders."""
    seen: dict[str, tuple[str, bool]] = {}

    def note(path: str, is_dir: bool) -> None:
        key = collision_key(path)
        before = seen.setdefault(key, (path, is_dir))
        if before[0] != path:
            raise BadUploadError(
                f"{printable(before[0])} and {printable(path)} would be the same on some machines. Rename one and pack again."
            )
        if before[1] != is_dir:
            raise BadUploadError(f"{printable(path)} is both a file and a folder. Rename one and pack again.")

    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        if not entry.is_dir:
            if entry.path in files:
                raise BadUploadError(f"{printable(entry.path)} is in it twice. Create the archive again from scratch.")
            files.add(entry.path)
        note(entry.path, entry.is_dir)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            note(parent, True)
            parent = parent.rpartition("/")[0]


def tidy(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Remove files that no run needs and a single folder around everything. Return the entries, and notes on this."""
    excluded: Counter[str] = Counter()
    kept = []
    for entry in entries:
        parts = entry.path.split("/")
        folder = next((part for part in parts if part in EXCLUDED_FOLDERS), None)
        if folder is None and (parts[-1] in EXCLUDED_FILES or parts[-1].startswith("._")):
            folder = parts[-1] if parts[-1] in EXCLUDED_FILES else "._*"
        if folder is None:
            kept.append(entry)
        else:
            excluded[folder] += not entry.is_dir
    notes = []
    if excluded:
        count = sum(excluded.values())
        notes.append(
            f"Left out: {', '.join(sorted(excluded))} ({count} file{'' if count == 1 else 's'} that no run needs)."
        )
    tops = {entry.path.split("/")[0] for entry in kept}
    files = {entry.path for entry in kept if not entry.is_dir}
    if len(tops) == 1 and files:
        top = tops.pop()
        # A folder with __init__.py is a package: imports use its name.
        if top not in files and f"{top}/__init__.py" not in files:
            kept = [replace(entry, path=entry.path[len(top) + 1 :]) for entry in kept if entry.path != top]
            notes.append(f"The folder {printable(top)} around everything was removed.")
    if not files:
        raise BadUploadError("There are no files in the upload. Pack the folder with your code and try again.")
    return kept, notes
