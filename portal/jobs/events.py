"""The lines of jobs' histories, as data: ``lifecycle.record`` writes them, ``portal/sentences/events.py`` has their sentences.

A row has the kind of its message and the message's data. Kinds are part of the API, and several messages may share one. Rows
are found by their data, so fields keep their names.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict

from scheduling.messages import Message


class Event(Protocol):
    """A message for the history of a job."""

    kind: ClassVar[str]

    def data(self) -> dict[str, Any]:
        """Return the message as it is stored."""


class NodeShare(TypedDict):
    """What an attempt gets of one node."""

    node: str
    gpus: int
    cpu_slots: bool
    """They are CPU slots."""


# --- what users did ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submitted(Message):
    code: ClassVar[str] = "job_submitted"
    kind: ClassVar[str] = "submitted"
    user: str
    copied_from: int | None = None
    """The number of the job of which it is a copy."""


@dataclass(frozen=True)
class LineTranslated(Message):
    """An entry was the command line of a launcher, which was replaced by what it means. It may set variables that not all may see."""

    code: ClassVar[str] = "job_line_translated"
    kind: ClassVar[str] = "translated"
    tool: str
    entry: str
    notes: list[str]


@dataclass(frozen=True)
class LineAdvised(Message):
    """A plain command calls a launcher in a way that may not do what was meant; ``text`` has sentences."""

    code: ClassVar[str] = "job_line_advised"
    kind: ClassVar[str] = "advised"
    text: str


@dataclass(frozen=True)
class Cancelled(Message):
    code: ClassVar[str] = "job_cancelled"
    kind: ClassVar[str] = "cancel_asked"
    user: str


@dataclass(frozen=True)
class Held(Message):
    code: ClassVar[str] = "job_held"
    kind: ClassVar[str] = "held"
    user: str


@dataclass(frozen=True)
class Deleted(Message):
    """Moved to the trash."""

    code: ClassVar[str] = "job_deleted"
    kind: ClassVar[str] = "deleted"
    user: str


@dataclass(frozen=True)
class Restored(Message):
    """Taken out of the trash."""

    code: ClassVar[str] = "job_restored"
    kind: ClassVar[str] = "restored"
    user: str


@dataclass(frozen=True)
class CleanedUp(Message):
    """A rule of retention removed a part of what it left; of ``jobs``, the job went to the trash."""

    code: ClassVar[str] = "job_cleaned_up"
    kind: ClassVar[str] = "cleaned_up"
    part: str
    days: int


@dataclass(frozen=True)
class Kept(Message):
    """Protected from deletion and from rules that clean up, or no longer."""

    code: ClassVar[str] = "job_kept"
    kind: ClassVar[str] = "kept"
    user: str
    kept: bool


@dataclass(frozen=True)
class Released(Message):
    code: ClassVar[str] = "job_released"
    kind: ClassVar[str] = "released"
    user: str


@dataclass(frozen=True)
class Ready(Message):
    """The job after which it starts has succeeded."""

    code: ClassVar[str] = "job_ready"
    kind: ClassVar[str] = "ready"
    after: int


@dataclass(frozen=True)
class CannotStartAfter(Message):
    """It was cancelled, because it cannot start after the job that it waited for."""

    code: ClassVar[str] = "job_cannot_start_after"
    kind: ClassVar[str] = "cancel_asked"
    after: int | None
    """None when its submitter may no longer see that job."""
    why: str
    """The ``JobState`` in which that job ended, ``no_access``, ``outputs_lost``, or ``not_succeeded``."""
    uses_outputs: bool


class ChangedField(TypedDict):
    """A field of a job that a user changed; without values for one whose values are long."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Edited(Message):
    code: ClassVar[str] = "job_edited"
    kind: ClassVar[str] = "edited"
    user: str
    changes: list[ChangedField]


@dataclass(frozen=True)
class TimeAsked(Message):
    """A user asked for more time."""

    code: ClassVar[str] = "job_time_asked"
    kind: ClassVar[str] = "time_asked"
    user: str
    seconds: int
    reason: str


@dataclass(frozen=True)
class TimeWithdrawn(Message):
    code: ClassVar[str] = "job_time_withdrawn"
    kind: ClassVar[str] = "time_withdrawn"
    user: str
    seconds: int


@dataclass(frozen=True)
class TimeGranted(Message):
    """The time limit was raised."""

    code: ClassVar[str] = "job_time_granted"
    kind: ClassVar[str] = "time_granted"
    user: str
    """The admin; empty for the rule of the lab."""
    seconds: int
    time_limit_seconds: int
    """The new time limit."""
    asked_by: str


@dataclass(frozen=True)
class TimeRefused(Message):
    code: ClassVar[str] = "job_time_refused"
    kind: ClassVar[str] = "time_refused"
    user: str
    seconds: int
    answer: str


# --- attempts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed(Message):
    code: ClassVar[str] = "attempt_placed"
    kind: ClassVar[str] = "placed"
    attempt: int
    policy: str
    nodes: list[NodeShare]
    """Empty if it is not known on which nodes."""


@dataclass(frozen=True)
class DataIsThere(Message):
    """Some of the nodes of an attempt have its datasets already, which counts between nodes that are equal otherwise."""

    code: ClassVar[str] = "attempt_data_is_there"
    kind: ClassVar[str] = "placed"
    nodes: list[str]


@dataclass(frozen=True)
class Started(Message):
    code: ClassVar[str] = "attempt_started"
    kind: ClassVar[str] = "started"
    attempt: int


@dataclass(frozen=True)
class Restarts(Message):
    """An attempt restarts from a checkpoint."""

    code: ClassVar[str] = "attempt_restarts"
    kind: ClassVar[str] = "checkpoint"
    attempt: int
    taken_at: str
    """An ISO time in UTC."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class ContainerLost(Message):
    code: ClassVar[str] = "container_lost"
    kind: ClassVar[str] = "lost"
    container: str
    node: str
    reason: str
    """Its exit reason."""


@dataclass(frozen=True)
class Stopping(Message):
    code: ClassVar[str] = "attempt_stopping"
    kind: ClassVar[str] = "stopping"
    attempt: int
    reason: str
    """A ``StopReason``."""
    resumable: bool


@dataclass(frozen=True)
class Ended(Message):
    code: ClassVar[str] = "attempt_ended"
    kind: ClassVar[str] = "ended"
    attempt: int
    outcome: str
    cause: dict[str, Any] | None
    """Code and parameters of the cause, if there is one."""


@dataclass(frozen=True)
class OutputsNotSent(Message):
    code: ClassVar[str] = "outputs_not_sent"
    kind: ClassVar[str] = "outputs"
    complaint: Any
    """The agent's message about outputs that it could not send, or the text of an agent of the previous release."""


@dataclass(frozen=True)
class Silent(Message):
    code: ClassVar[str] = "attempt_silent"
    kind: ClassVar[str] = "silent"
    attempt: int
    since: str
    """An ISO time."""
    seconds: int
    ranks: list[list[str]]
    """Label and node of each rank that is silent while others print; empty: all are silent."""


# --- jobs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotRetried(Message):
    """The last two attempts failed in the same way within seconds."""

    code: ClassVar[str] = "job_not_retried"
    kind: ClassVar[str] = "not_retried"
    first: int
    second: int


@dataclass(frozen=True)
class StateChanged(Message):
    code: ClassVar[str] = "job_state"
    kind: ClassVar[str] = "state"
    state: str
    again: bool = False
    """It is queued after an attempt."""
    restarts: bool = False
    """It continues after its last attempt, which did not fail."""
    resumable: bool = False
