"""Gathers what is read from one list, within limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .model import Kind, Note, PackageList, RefusedLine
from .requirement_line import LineRefusedError, ParsedLine, merge, parse_line
from .texts import shown

MAX_BYTES = 256 * 1024
"""Of one file, of any kind: one with the hashes of a hundred packages fits."""
TOO_LARGE = f"This file is larger than {MAX_BYTES // 1024} KiB, so it is not read. Keep what your code imports: other packages follow."
MAX_LINES = 500
"""Lines of one list, with those of the files that it includes."""
MAX_REFUSED = 100
MAX_NOTES = 100

Read = Callable[[str], bytes | None]
"""Returns the content of a file of the upload by its path; None where there is none to read."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; 0 is the whole file."""

    path: str
    line: int = 0


@dataclass(slots=True)
class Collector:
    """A package list while it is read."""

    path: str
    kind: Kind
    allowed: Sequence[str] = ()
    lines: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    refused: list[RefusedLine] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    python: str = ""
    read_lines: int = 0
    refused_count: int = 0
    left_out_notes: int = 0

    def count(self, place: Place) -> bool:
        """Count a line. Return False, and refuse the first line that is one too many."""
        self.read_lines += 1
        if self.read_lines == MAX_LINES + 1:
            self.refuse(
                place,
                "",
                f"Only the first {MAX_LINES} lines are read. Keep what your code imports: other packages follow.",
            )
        return self.read_lines <= MAX_LINES

    def add(self, text: str, place: Place, *, is_constraint: bool = False) -> None:
        """Judge a line and keep it, or refuse it."""
        try:
            parsed = parse_line(text, self.allowed)
            if is_constraint:
                check_constraint(parsed)
        except LineRefusedError as error:
            self.refuse(place, text, str(error))
            return
        if parsed.note:
            self.note(place, parsed.note)
        if parsed.index and parsed.index not in self.indexes:
            self.indexes.append(parsed.index)
        if parsed.requirement:
            (self.constraints if is_constraint else self.lines).append(parsed.requirement)

    def refuse(self, place: Place, text: str, why: str) -> None:
        self.refused_count += 1
        if self.refused_count <= MAX_REFUSED:
            self.refused.append(RefusedLine(place.line, shown(text), why, place.path))

    def note(self, place: Place, text: str) -> None:
        """Keep a sentence; the same one is kept once."""
        if any(note.text == text for note in self.notes):
            return
        if len(self.notes) < MAX_NOTES:
            self.notes.append(Note(text, place.line, place.path))
        else:
            self.left_out_notes += 1

    def finish(self) -> PackageList:
        more = self.refused_count - MAX_REFUSED
        if more > 0:
            self.refused.append(
                RefusedLine(0, "", f"{more} more {'line is' if more == 1 else 'lines are'} not taken.", self.path)
            )
        if self.left_out_notes:
            self.notes.append(Note(f"Further remarks that are not shown: {self.left_out_notes}.", 0, self.path))
        return PackageList(
            path=self.path,
            kind=self.kind,
            lines=merge(self.lines),
            constraints=merge(self.constraints),
            refused=tuple(self.refused),
            notes=tuple(self.notes),
            python=self.python,
            indexes=tuple(self.indexes),
        )


def check_constraint(parsed: ParsedLine) -> None:
    """Refuse a constraint with extras, which no resolver accepts, or with an address. Raises LineRefusedError."""
    name = parsed.requirement.partition(";")[0]
    if "[" in name.partition("@")[0]:
        raise LineRefusedError("A constraint has no extras. Write it without what is in brackets.")
    if " @ " in name:
        raise LineRefusedError("A constraint has versions, not an address. List the package itself with this address.")
