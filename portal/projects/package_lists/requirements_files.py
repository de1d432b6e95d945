"""Reads a requirements.txt and the files of the upload that it includes."""

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from . import options
from .collecting import MAX_BYTES, TOO_LARGE, Collector, Place, Read
from .texts import decode, logical_lines, shown

MAX_DEPTH = 5
MAX_INCLUDED = 20
INCLUDES = frozenset({"--requirement", "--constraint"})


@dataclass(slots=True)
class RequirementsReader:
    """Reads files, and those that they include by ``-r`` and ``-c``, into one list. No file is read twice in one role."""

    collector: Collector
    read: Read
    seen: set[tuple[str, bool]] = field(default_factory=set)

    def read_file(self, path: str) -> None:
        """Read the file that the list is about."""
        content = self.read(path)
        if content is None:
            self.collector.refuse(Place(path), "", "This file is not in the upload.")
        else:
            self.seen.add((path, False))
            self._read_content(path, content, False, 0)

    def add(self, text: str, place: Place, *, is_constraint: bool = False, depth: int = 0) -> None:
        """Take one line, which may include a file."""
        option = options.parse_option(text)
        if option is not None and option.name in INCLUDES:
            constrains = is_constraint or option.name == "--constraint"
            if why := self._include(option.value, place, constrains, depth + 1):
                self.collector.refuse(place, text, why)
        else:
            self.collector.add(text, place, is_constraint=is_constraint)

    def _read_content(self, path: str, content: bytes, is_constraint: bool, depth: int) -> None:
        if len(content) > MAX_BYTES:
            self.collector.refuse(Place(path), "", TOO_LARGE)
            return
        for number, text in logical_lines(decode(content)):
            place = Place(path, number)
            if not self.collector.count(place):
                return
            self.add(text, place, is_constraint=is_constraint, depth=depth)

    def _include(self, name: str, place: Place, is_constraint: bool, depth: int) -> str:
        """Read a file that a line names, relative to its own file. Return why it is not read, or an empty text."""
        path = path_in_upload(name, place.path)
        if path is None:
            return "Only files of the upload can be included, by a path relative to this file. Put the file into your upload."
        if (path, is_constraint) in self.seen:
            return ""  # read already, or being read: a circle
        if depth > MAX_DEPTH or len(self.seen) > MAX_INCLUDED:
            return f"At most {MAX_INCLUDED} files can be included, {MAX_DEPTH} deep. Write the lines of this one here."
        content = self.read(path)
        if content is None:
            return f"“{shown(path, 80)}” is not among the text files of the upload. Add it, or write its lines here."
        self.seen.add((path, is_constraint))
        self._read_content(path, content, is_constraint, depth)
        return ""


def path_in_upload(name: str, including: str) -> str | None:
    """Return the path of a file that is named relative to another; None if it is not certainly inside the upload."""
    name = name.strip()
    if (
        not name
        or len(name) > 300
        or re.search(r"[:\\$~\0]", name)
        or name.startswith(("/", "-"))
        or not name.isprintable()
    ):
        return None
    path = posixpath.normpath(str(PurePosixPath(including).parent / name))
    return None if path in ("", ".", "..") or path.startswith(("../", "/")) else path
