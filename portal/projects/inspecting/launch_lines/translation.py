"""What a line of another launcher means for a job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..entries import MODULE

PLACED = "Schedulearn starts one rank for each GPU and connects them"
LOGGED = "the log keeps the output of each rank by itself"
NO_EFFECT = "it has no effect here"
MAX_RANKS = 4096
MAX_RETRIES = 10
"""The most that a job may have."""


class UntranslatableError(Exception):
    """A line that cannot be translated; the text is a sentence with the reason and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The values of a job that do what a line does."""

    tool: str
    """The launcher that the line calls, as people write it: ``accelerate launch``."""
    launcher: str
    """``torchrun`` or ``horovod``."""
    entry: str
    """A file, or ``-m module``."""
    arguments: tuple[str, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    min_ranks: int | None = None
    """How many ranks the line starts at least and at most; None where it leaves that to the machine."""
    max_ranks: int | None = None
    nodes: int = 1
    """How many nodes the line waits for at least; 1 also where a variable of the shell has the number."""
    elastic: bool = False
    """The number of ranks may change while they run."""
    retries: int = 0
    """How often the line starts all ranks again when one fails."""
    notes: tuple[str, ...] = ()
    """Sentences on what became of each option that is not among these values."""


ReadConfig = Callable[[str], Mapping[str, Any]]
"""Returns the keys of a configuration file of the upload. Raises UntranslatableError for one that cannot be read."""


def no_config(path: str) -> Mapping[str, Any]:
    """Return nothing, where the contents of configuration files do not matter."""
    return {}


@dataclass(slots=True)
class Draft:
    """A translation while the options of its line are read."""

    tool: str
    env_vars: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """The options that were left out, by the reason."""
    notes: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    """What options were set to that together have one meaning, by their names."""
    is_module: bool = False
    min_ranks: int | None = None
    max_ranks: int | None = None
    nodes: int = 1
    elastic: bool = False
    retries: int = 0

    def leave_out(self, option: str, reason: str) -> None:
        """Note that an option was left out."""
        self.left_out.setdefault(reason, []).append(option)

    def set_ranks(self, min_ranks: int | None, max_ranks: int | None = None) -> None:
        """Set how many ranks the line starts; ``max_ranks`` only where the number may change."""
        self.min_ranks, self.max_ranks = min_ranks, max_ranks if max_ranks is not None else min_ranks
        if self.max_ranks is not None and not 1 <= (self.min_ranks or 1) <= self.max_ranks <= MAX_RANKS:
            raise UntranslatableError(f"{self.tool} cannot start this number of processes. Check its options.")

    def set_retries(self, restarts: int, asked: str) -> None:
        """Set how often all ranks start again; ``asked`` is how the line asks for it."""
        if restarts:
            self.retries = min(restarts, MAX_RETRIES)
            self.notes.append(
                f"For {asked}, set “Retries” to {self.retries}: all ranks then start again when one fails."
            )

    def finish(self, launcher: str, words: Sequence[str]) -> Translation:
        """Return the translation; ``words`` are the program and its arguments."""
        if not words:
            raise UntranslatableError(f"The line ends before the program that {self.tool} starts. Add the Python file.")
        return Translation(
            tool=self.tool,
            launcher=launcher,
            entry=_entry(words[0], self.is_module, self.tool),
            arguments=tuple(words[1:]),
            env_vars=dict(self.env_vars),
            min_ranks=self.min_ranks,
            max_ranks=self.max_ranks,
            nodes=self.nodes,
            elastic=self.elastic,
            retries=self.retries,
            notes=(*(_sentence(options, why) for why, options in self.left_out.items()), *self.notes),
        )


def _sentence(options: Sequence[str], reason: str) -> str:
    *first, last = dict.fromkeys(options)
    names, verb = (f"{', '.join(first)} and {last}", "were") if first else (last, "was")
    return f"{names} {verb} left out: {reason}."


def _entry(word: str, is_module: bool, tool: str) -> str:
    if is_module:
        if not MODULE.fullmatch(f"-m {word}"):
            raise UntranslatableError(f"{word[:100]!r} is not the name of a module, such as package.train.")
        return f"-m {word}"
    path = word.removeprefix("./")
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise UntranslatableError(
            f"The line starts {word[:200]}, which is not a path within the upload. Write the path of the file from the top of "
            "the upload."
        )
    if not path.endswith(".py"):
        raise UntranslatableError(
            f"{word[:200]!r} is not a Python file (.py), and ranks run a Python file or a module. Let {tool} start one."
        )
    return path
