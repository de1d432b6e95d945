"""Lines of a notebook that install packages. A job installs none, so they become a package list, which the form offers.

The list is a file of the version with a name that ``package_lists/finding.py`` knows. What may be in it is decided there.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..package_lists import options
from ..package_lists.conda import as_requirement
from ..package_lists.finding import kind_of
from ..package_lists.requirements_files import INCLUDES
from ..package_lists.typed import items_of
from .common import printable
from .names import listed

MAX_STEM_BYTES = 200
MAX_COMMAND_CHARACTERS = 2_000
"""Longer lines of a shell script stay as they are."""
INSTALLER = re.compile(
    r"(?:sudo\s+)?(?:(?:\S*python[\d.]*|\{\s*sys\.executable\s*\})\s+-m\s+)?(?P<tool>pip[\d.]*|uv|conda|mamba|micromamba)(?=\s|$)"
)
"""The beginning of a command that installs packages, or lists them."""
CONDA = frozenset({"conda", "mamba", "micromamba"})
CONDA_WITH_VALUE = frozenset({"-c", "--channel", "-n", "--name", "-p", "--prefix", "--file", "--solver"})
VERBS = frozenset({"install", "add"})
SEPARATORS = frozenset({"&&", "||", "|", "&", ";"})
REDIRECTION = re.compile(r"[0-9&]?>{1,2}(?!=).*")
NEEDLESS = re.compile(r"-[qUvyI]+")
"""Short options that change nothing here, alone or in a row."""
COMMENT = re.compile(r"(?:^|\s)#.*")


SYSTEM_INSTALLER = re.compile(r"(?:sudo\s+)?(?:apt|apt-get|yum|dnf|apk)\s+(?:-\S+\s+)*(?:install|add)\b")
"""The beginning of a command that installs packages of the system."""


def is_installer(command: str) -> bool:
    """Return whether a command is one of pip, uv or conda, whatever it does."""
    return INSTALLER.match(command) is not None


def packages_of(command: str) -> list[str] | None:
    """Return the packages of Python that a shell line would install, as lines of a requirements.txt; None if it installs nothing.

    Options and files that it names are left out, and so are packages of the system: what they bring is not known here.
    """
    if len(command) > MAX_COMMAND_CHARACTERS:
        return None
    installs = Installs()
    if next(_commands(command), None) is not None:
        installs.record(command, 0)
    elif not any(SYSTEM_INSTALLER.match(" ".join(words)) for words in _parts(COMMENT.sub("", command))):
        return None
    return [line for line in installs.lines if not line.startswith("-")]


@dataclass
class Installs:
    """What the cells of a notebook would install."""

    lines: dict[str, None] = field(default_factory=dict)
    """Lines of a requirements.txt, in order."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Packages of conda whose name on the index is not known."""
    cells: list[int] = field(default_factory=list)

    def record(self, command: str, cell: int) -> None:
        """Record what a command would install, and the number of its cell."""
        self.cells.append(cell)
        for tool, words in _commands(command):
            if tool in CONDA:
                self._record_conda(words)
            else:
                self.lines |= dict.fromkeys(filter(None, map(_line, items_of(words))))

    def leave_out(self, script: str, cell: int) -> str:
        """Return the shell script of a cell without the lines that install packages, which are recorded."""
        kept, continues = [], False
        for line in script.split("\n"):
            command, continued, continues = line.strip(), continues, line.endswith("\\")
            if not (continued or continues) and _installs(command):
                self.record(command, cell)
                line = f": # {command}"
            kept.append(line)
        return "\n".join(kept)

    def file(self, stem: str) -> tuple[str, str] | None:
        """Return name and text of the package list for a notebook; None if there is nothing that other lists do not have."""
        if all(_list_of_upload(line) for line in self.lines):
            return None
        stem = stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")
        text = "".join(f"{line}\n" for line in ("# What the cells of the notebook install", *self.lines))
        return f"requirements-{stem}.txt", text

    def notes(self, path: str, cells: str) -> list[str]:
        """Return the notes about it. ``path`` is that of the list, if there is one; ``cells`` names the cells."""
        if not self.cells:
            return []
        notes = []
        if path:
            notes.append(
                f"A job installs no packages. What {cells} would install is now the package list {printable(path)}: the form for a "
                "new job offers to install it."
            )
        elif self.lines:
            notes.append(
                f"A job installs no packages. The form for a new job offers what {cells} would install, if the upload has "
                f"{listed([_list_of_upload(line) for line in self.lines])}."
            )
        else:
            notes.append(f"Left out, since a job installs no packages: {cells}.")
        if self.unknown:
            notes.append(
                f"Packages of conda that are not known here, so they are in no list: {listed([*self.unknown])}."
            )
        return notes

    def _record_conda(self, words: Sequence[str]) -> None:
        rest = iter(words)
        for word in rest:
            if word.startswith("-"):
                if word in CONDA_WITH_VALUE:
                    next(rest, None)
                continue
            found = as_requirement(word)
            if found is None:
                self.unknown[word] = None
            elif found:
                self.lines[found] = None


def _installs(command: str) -> bool:
    is_short = len(command) <= MAX_COMMAND_CHARACTERS
    return is_short and is_installer(command) and next(_commands(command), None) is not None


def _commands(command: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the installers of a shell line that install, each with the words that follow ``install`` or ``add``."""
    for words in _parts(COMMENT.sub("", command)):
        found = INSTALLER.match(" ".join(words))
        verb = next((position for position, word in enumerate(words) if word in VERBS), None)
        if found and verb is not None:
            yield found["tool"], words[verb + 1 :]


def _parts(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line, without redirections."""
    try:
        words = iter(shlex.split(line))
    except ValueError:  # a quote that is not closed
        words = iter(line.split())
    part: list[str] = []
    for word in words:
        if REDIRECTION.fullmatch(word):
            if word.endswith(">"):
                next(words, None)
        elif word in SEPARATORS or word.endswith(";"):
            yield [*part, *filter(None, [word.rstrip("&|;")])]
            part = []
        else:
            part.append(word)
    yield part


def _line(item: str) -> str:
    """Return what was asked for as a line of a requirements.txt; empty for an option that changes nothing."""
    line = " ".join(item.split()).rstrip("\\")
    option = options.parse_option(line)
    is_needless = NEEDLESS.fullmatch(line) or (option is not None and options.is_needless(option.name))
    return "" if is_needless or line.startswith("#") else line


def _list_of_upload(line: str) -> str:
    """Return the file that a line includes, if it is offered by itself where the upload has it; empty for another line."""
    option = options.parse_option(line)
    includes = option is not None and option.name in INCLUDES and kind_of(option.value) is not None
    return option.value if option is not None and includes else ""
