"""What the scheduler writes to the histories of running jobs (``portal.jobs.events``)."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class Resized(Message):
    code: ClassVar[str] = "job_resized"
    kind: ClassVar[str] = "resized"
    before: int
    after: int
    cpu_slots: bool
    """They are CPU slots."""


@dataclass(frozen=True)
class Moving(Message):
    """A job leaves nodes that are being drained while it runs."""

    code: ClassVar[str] = "job_moving"
    kind: ClassVar[str] = "moving"
    nodes: list[str]


@dataclass(frozen=True)
class DriverMoved(Message):
    code: ClassVar[str] = "driver_moved"
    kind: ClassVar[str] = "driver"
    container: str
    node: str
