"""Puts single files into an earlier version of the code, so that a corrected file does not drop all others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

from .common import Entry, printable, read_range


@dataclass(frozen=True, slots=True)
class BaseVersion:
    """An earlier version: its canonical tar, its number, and its files as ``write_tar`` returned them."""

    tar: IO[bytes]
    number: int
    files: Sequence[dict[str, Any]]

    def complete(self, entries: list[Entry]) -> tuple[list[Entry], list[str]]:
        """Return the entries with the other files of this version, and a note on what was kept.

        A file replaces the one at its path, or the only one of its name in a folder; otherwise it is added at the top.
        """
        paths = {file["path"] for file in self.files}
        placed, notes = [], []
        for entry in entries:
            same = [path for path in paths if path.rpartition("/")[2] == entry.path]
            if entry.path not in paths and len(same) == 1:
                notes.append(f"{printable(same[0])} was replaced.")
                entry = replace(entry, path=same[0])
            placed.append(entry)
        new = {entry.path for entry in placed}
        others = [
            Entry(
                file["path"],
                False,
                file["size"],
                partial(read_range, self.tar, file["offset"], file["size"]),
                executable=file.get("executable"),
            )
            for file in self.files
            if file["path"] not in new
        ]
        if others:
            count = "1 other file" if len(others) == 1 else f"{len(others):,} other files"
            notes.append(f"Kept {count} of version {self.number}.")
        return placed + others, notes
