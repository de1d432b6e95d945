"""Changes that would start a waiting job sooner, and advice about them, as data.

``portal/sentences/changes.py`` has the sentences. Advice is cached, and a change that was made is in the history of its job.
"""

from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message

# --- changes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FewerGpus(Message):
    code: ClassVar[str] = "fewer_gpus"
    gpus: int
    instead_of: int


@dataclass(frozen=True)
class SmallerMinimum(Message):
    """An elastic job starts with fewer GPUs."""

    code: ClassVar[str] = "smaller_minimum"
    gpus: int
    instead_of: int


@dataclass(frozen=True)
class LessPerGpu(Message):
    """Less memory or fewer processors for each GPU: MiB, or thousandths of a processor."""

    code: ClassVar[str] = "less_per_gpu"
    resource: str
    amount: int
    instead_of: int


@dataclass(frozen=True)
class LessGpuMemory(Message):
    """Also on GPUs with less memory, in MiB."""

    code: ClassVar[str] = "less_gpu_memory"
    memory_mib: int
    instead_of: int


@dataclass(frozen=True)
class OtherModels(Message):
    """Also on GPUs of these models."""

    code: ClassVar[str] = "other_models"
    models: list[str]


@dataclass(frozen=True)
class DifferentModels(Message):
    """On GPUs that are not all of one model."""

    code: ClassVar[str] = "different_models"


@dataclass(frozen=True)
class ElasticFromOne(Message):
    code: ClassVar[str] = "elastic_from_one"
    max_gpus: int


@dataclass(frozen=True)
class OtherEnvironment(Message):
    code: ClassVar[str] = "other_environment"
    title: str
    nodes: int
    """How many nodes have it ready on which the job cannot run as it is."""
    runs_elsewhere: bool
    """There are other nodes on which the job can run as it is."""


@dataclass(frozen=True)
class ShorterLimit(Message):
    code: ClassVar[str] = "shorter_limit"
    seconds: int
    instead_of: int
    length_known: bool
    """The job is expected to end within the shorter limit."""


@dataclass(frozen=True)
class RestartingFromCheckpoint(Message):
    code: ClassVar[str] = "restarting_from_checkpoint"


@dataclass(frozen=True)
class PreemptibleOnIdleGpus(Message):
    code: ClassVar[str] = "preemptible_on_idle_gpus"


@dataclass(frozen=True)
class Requeued(Message):
    """For the history of a changed job, which has the place of the job before."""

    code: ClassVar[str] = "job_requeued"
    kind: ClassVar[str] = "requeued"
    job: int
    change: Message


# --- advice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeStartsNow(Message):
    code: ClassVar[str] = "change_starts_now"
    change: Message


@dataclass(frozen=True)
class ChangeStartsSooner(Message):
    """With the change the job starts clearly sooner; nothing is known of how much."""

    code: ClassVar[str] = "change_starts_sooner"
    change: Message


@dataclass(frozen=True)
class ChangeSavesTime(Message):
    """With the change the job starts ``low`` to ``high`` seconds sooner, in futures that are otherwise the same.

    It is a difference, not another forecast: the range of the job as it is comes from more futures.
    """

    code: ClassVar[str] = "change_saves_time"
    change: Message
    low: float
    high: float


@dataclass(frozen=True)
class ChangeStartsWithin(Message):
    """With the change the job starts in ``low`` to ``high`` seconds, as it is perhaps not within the simulated time."""

    code: ClassVar[str] = "change_starts_within"
    change: Message
    low: float
    high: float


@dataclass(frozen=True)
class NothingHelps(Message):
    code: ClassVar[str] = "nothing_helps"
    tried: list[str]
    """The kinds of changes that were tried."""


@dataclass(frozen=True)
class AboutToStart(Message):
    code: ClassVar[str] = "about_to_start"


@dataclass(frozen=True)
class NoLongerWaiting(Message):
    code: ClassVar[str] = "no_longer_waiting"


@dataclass(frozen=True)
class SchedulerCannotDecide(Message):
    code: ClassVar[str] = "scheduler_cannot_decide"


@dataclass(frozen=True)
class AdviceBusy(Message):
    code: ClassVar[str] = "advice_busy"


# --- why there is no forecast --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotByItself(Message):
    """The job cannot start in the lab as it is, however long it waits."""

    code: ClassVar[str] = "not_by_itself"


@dataclass(frozen=True)
class AfterAnotherJob(Message):
    """The job starts after another one, whose end is not known."""

    code: ClassVar[str] = "after_another_job"
    job: int


@dataclass(frozen=True)
class TooFarBack(Message):
    code: ClassVar[str] = "too_far_back"
    jobs: int
    """Forecasts are made for so many jobs, the first in the queue."""
