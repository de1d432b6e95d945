"""Leaves out what the ``.gitignore`` files of an upload name, as git does."""

from collections.abc import Iterable

from pathspec import GitIgnoreSpec

from .common import BadUploadError, Entry, printable
from .names import listed

MAX_FILE_BYTES = 64 * 1024
MAX_PATTERNS = 2000
IGNORE_FILE = ".gitignore"


def leave_out_ignored(entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """Remove the files that git would ignore. Return the other entries, and a note.

    The ``.gitignore`` of a folder counts more than those above it, but brings nothing back out of an ignored folder.
    Raises BadUploadError for a ``.gitignore`` that is too large to be one.
    """
    entries = list(entries)
    specs = {entry.path.rpartition("/")[0]: _spec_of(entry) for entry in entries if _is_ignore_file(entry)}
    if not specs:
        return entries, ["No .gitignore was found, so nothing was left out for one."]
    known: dict[str, bool] = {"": False}
    kept, left_out = [], []
    for entry in entries:
        if _is_ignored(entry.path, entry.is_dir, specs, known):
            left_out += [] if entry.is_dir else [entry.path]
        else:
            kept.append(entry)
    if not left_out:
        return kept, []
    return kept, [f"Left out, since .gitignore names them: {listed(sorted(left_out))}."]


def _is_ignore_file(entry: Entry) -> bool:
    return not entry.is_dir and entry.path.rpartition("/")[2] == IGNORE_FILE


def _spec_of(entry: Entry) -> GitIgnoreSpec:
    if entry.size > MAX_FILE_BYTES:
        raise BadUploadError(f"{printable(entry.path)} is larger than {MAX_FILE_BYTES // 1024} KiB. Shorten it.")
    lines = b"".join(entry.pieces()).decode(errors="replace").splitlines()
    if len(lines) > MAX_PATTERNS:
        raise BadUploadError(f"{printable(entry.path)} has more than {MAX_PATTERNS:,} lines. Shorten it.")
    return GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: str, is_dir: bool, specs: dict[str, GitIgnoreSpec], known: dict[str, bool]) -> bool:
    """Return whether git would ignore a path; ``known`` has what was found for folders."""
    if is_dir and path in known:
        return known[path]
    parent = path.rpartition("/")[0]
    ignored = _is_ignored(parent, True, specs, known) or _names(path, is_dir, parent, specs)
    if is_dir:
        known[path] = ignored
    return ignored


def _names(path: str, is_dir: bool, folder: str, specs: dict[str, GitIgnoreSpec]) -> bool:
    """Return whether the nearest ``.gitignore`` that has a pattern for a path leaves it out."""
    while True:
        if spec := specs.get(folder):
            inner = path[len(folder) + 1 :] if folder else path
            found = spec.check_file(f"{inner}/" if is_dir else inner).include
            if found is not None:
                return found
        if not folder:
            return False
        folder = folder.rpartition("/")[0]
