"""Why a simulation, or one of its policies, gave no result, as data; ``portal/sentences/failures.py`` has the sentences."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class TookTooLong(Message):
    code: ClassVar[str] = "simulation_took_too_long"
    minutes: int
    """The limit."""


@dataclass(frozen=True)
class Broke(Message):
    """The simulation has a bug."""

    code: ClassVar[str] = "simulation_broke"
    error: str
    """The class of the exception."""


@dataclass(frozen=True)
class Interrupted(Message):
    """The process that ran it has not reported for a while."""

    code: ClassVar[str] = "simulation_interrupted"


@dataclass(frozen=True)
class FailedOnHistory(Message):
    """A policy failed."""

    code: ClassVar[str] = "failed_on_history"
    error: str
    """The exception, quoted: its class and its message."""
