"""Why a policy made no plan that may be applied, as data; ``portal/sentences/failures.py`` has the sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from scheduling.messages import Message

MAX_VIOLATIONS = 10
"""The largest number of broken rules in a message: a plan may break one for each job."""


@dataclass(frozen=True)
class PolicyFailed(Message):
    code: ClassVar[str] = "policy_failed"
    error: str
    """The exception, quoted: its class and its message."""

    @classmethod
    def from_error(cls, error: BaseException) -> "PolicyFailed":
        return cls(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class PlanRefused(Message):
    """The plan breaks rules of ``scheduling/check.py``."""

    code: ClassVar[str] = "plan_refused"
    violations: list[dict[str, Any]]
    """The first broken rules, each the data of a message of this module."""

    @classmethod
    def from_violations(cls, violations: Sequence[Message]) -> "PlanRefused":
        return cls([each.data() for each in violations[:MAX_VIOLATIONS]])


# --- the rules that a plan may break -----------------------------------------------------------------------------


@dataclass(frozen=True)
class JobNotInSnapshot(Message):
    code: ClassVar[str] = "job_not_in_snapshot"
    job: str


@dataclass(frozen=True)
class ReasonMissing(Message):
    code: ClassVar[str] = "reason_missing"
    job: str


@dataclass(frozen=True)
class GpusNotWhole(Message):
    """A fraction of a GPU, or a negative number."""

    code: ClassVar[str] = "gpus_not_whole"
    job: str


@dataclass(frozen=True)
class GpusOutOfRange(Message):
    code: ClassVar[str] = "gpus_out_of_range"
    job: str
    given: float
    min_gpus: int
    max_gpus: int


@dataclass(frozen=True)
class GpusOfUnknownNodes(Message):
    code: ClassVar[str] = "gpus_of_unknown_nodes"
    job: str
    nodes: list[str]


@dataclass(frozen=True)
class GpusWhileStopping(Message):
    code: ClassVar[str] = "gpus_while_stopping"
    job: str


@dataclass(frozen=True)
class GpusWhileBlocked(Message):
    """The job cannot start now: ``Job.blocked``."""

    code: ClassVar[str] = "gpus_while_blocked"
    job: str


@dataclass(frozen=True)
class GpusOfSeveralNodes(Message):
    code: ClassVar[str] = "gpus_of_several_nodes"
    job: str


@dataclass(frozen=True)
class GpusOfSeveralKinds(Message):
    """All its GPUs must be of one kind: ``GpuRequest.same_kind``."""

    code: ClassVar[str] = "gpus_of_several_kinds"
    job: str


@dataclass(frozen=True)
class StopOfUnstoppable(Message):
    code: ClassVar[str] = "stop_of_unstoppable"
    job: str


@dataclass(frozen=True)
class ResizeOfInelastic(Message):
    code: ClassVar[str] = "resize_of_inelastic"
    job: str


@dataclass(frozen=True)
class LossOfBase(Message):
    code: ClassVar[str] = "loss_of_base"
    job: str


@dataclass(frozen=True)
class GpusOfExcludedNode(Message):
    """The job cannot run on this node, or does not accept its GPUs: ``Job.nodes``, ``Job.gpu_request``."""

    code: ClassVar[str] = "gpus_of_excluded_node"
    job: str
    node: str


@dataclass(frozen=True)
class GpusOfClosedNode(Message):
    code: ClassVar[str] = "gpus_of_closed_node"
    node: str
    given: float


@dataclass(frozen=True)
class MoreGpusThanFree(Message):
    code: ClassVar[str] = "more_gpus_than_free"
    node: str
    free: int
    given: float


@dataclass(frozen=True)
class MoreThanFree(Message):
    """More processors or memory of a node than are free; thousandths of a processor, or MiB."""

    code: ClassVar[str] = "more_than_free"
    node: str
    resource: str
    """One of ``resources.RESOURCES``."""
    free: int
    given: float


@dataclass(frozen=True)
class LimitExceeded(Message):
    code: ClassVar[str] = "limit_exceeded"
    limit: int
    name: str
    held: int
    added: float
