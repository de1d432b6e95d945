"""What was read: the lines that are accepted, those that are refused and why, and what a person should know."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Kind = Literal["requirements", "pyproject", "conda", "typed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is not taken. ``line`` counts from 1 in ``path``; it is 0 where no single line is meant."""

    line: int
    text: str
    why: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was changed or left out, as a sentence. ``line`` counts from 1 in ``path``; 0 is the whole file."""

    text: str
    line: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class PackageList:
    """The packages that one file, with those it includes, or one text asks for.

    ``lines`` and ``constraints`` are requirements in canonical form, each package once for each marker. ``python`` is a minor
    version such as ``3.11``, if exactly one is asked for. ``indexes`` are addresses that an admin has allowed.
    """

    path: str
    kind: Kind
    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    refused: tuple[RefusedLine, ...] = ()
    notes: tuple[Note, ...] = ()
    python: str = ""
    indexes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show to a person."""
        return not (self.lines or self.refused or self.notes)


def as_json(found: PackageList) -> dict[str, Any]:
    """Return a package list as it is stored."""
    return asdict(found)


def from_json(data: Mapping[str, Any]) -> PackageList:
    """Return a stored package list. What another release stored in addition is ignored."""
    return PackageList(
        path=str(data["path"]),
        kind=data["kind"],
        lines=tuple(data.get("lines", ())),
        constraints=tuple(data.get("constraints", ())),
        refused=tuple(
            RefusedLine(each["line"], each["text"], each["why"], each.get("path", ""))
            for each in data.get("refused", ())
        ),
        notes=tuple(Note(each["text"], each.get("line", 0), each.get("path", "")) for each in data.get("notes", ())),
        python=str(data.get("python", "")),
        indexes=tuple(data.get("indexes", ())),
    )


def package_name(line: str) -> str:
    """Return the name of the package that an accepted line requires, in normalised form."""
    try:
        return canonicalize_name(Requirement(line).name)
    except InvalidRequirement:
        return line
