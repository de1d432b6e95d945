"""What is written to the history of a job whose GPUs are idle (``portal.jobs.events``)."""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message


@dataclass(frozen=True)
class GpusIdle(Message):
    code: ClassVar[str] = "gpus_idle"
    kind: ClassVar[str] = "idle"
    attempt: int
    percent: int
    """The utilisation below which GPUs count as idle."""
    seconds: int
    held_next: bool
    """The lab's rule puts the job on hold if its GPUs stay idle."""


@dataclass(frozen=True)
class HeldForIdleGpus(Message):
    code: ClassVar[str] = "job_held_for_idle_gpus"
    kind: ClassVar[str] = "held"
    seconds: int
