"""What a policy is given and what it answers: immutable values, no clock but ``Snapshot.now``.

A policy turns a ``Snapshot`` into a ``Plan`` and touches nothing. The same code decides live, in the
simulator and in "what if". Times are seconds since the epoch, GPU counts are whole GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

NodeId = str
JobId = str
Placement = Mapping[NodeId, int]
"""How many GPUs of each node; nodes with none are left out."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as the policy sees it. Only ``free`` GPUs may be given to a job that does not hold them already."""

    id: NodeId
    name: str
    total: int
    """Healthy GPUs, whoever holds them."""
    free: int
    """GPUs nobody holds now."""
    leaving: int = 0
    """GPUs already asked back from a job, not free yet: a reason to wait, not to preempt again."""
    open: bool = True
    """False while cordoned, draining, unapproved or lost: it takes no new GPUs of any job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that wants or holds GPUs."""

    id: JobId
    owner: str
    submitted_at: float
    min_gpus: int
    max_gpus: int
    priority: int = 0
    """Higher goes first."""
    elastic: bool = False
    """May its GPUs change while it runs. A job that is not elastic keeps its placement until it ends."""
    now_on: Placement = field(default_factory=dict)
    """GPUs it holds and keeps; those asked back are not counted."""
    base: Placement = field(default_factory=dict)
    """The part of ``now_on`` that cannot be taken without a restart (its first container)."""
    stopping: bool = False
    """Its attempt has been told to stop: it gets nothing this turn. What it still holds is *leaving*, not ``now_on``."""
    nodes: frozenset[NodeId] | None = None
    """Nodes it can run on (its environment is ready there); None means all."""
    blocked: str = ""
    """Why it cannot start on any node now, whatever the policy says; empty when it can."""
    spread: bool = True
    """May its GPUs be of several nodes. A plain command's may not: it is one container."""
    preemptible: bool = False
    """May it be stopped and started again from its checkpoint."""
    started_at: float | None = None
    served_gpu_seconds: float = 0.0
    restarts: int = 0

    @property
    def gpus(self) -> int:
        return sum(self.now_on.values())

    @property
    def running(self) -> bool:
        """It holds GPUs and keeps them."""
        return bool(self.now_on) and not self.stopping

    @property
    def waiting(self) -> bool:
        return not self.now_on and not self.stopping

    @property
    def turn(self) -> tuple[int, float, JobId]:
        """Sorts jobs into the order of the queue: priority, then who came first."""
        return (-self.priority, self.submitted_at, self.id)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``max_gpus`` at once for these jobs together (a user's, or a group's)."""

    name: str
    """Whose limit, as a reason names it: ``alice`` or ``group vision``."""
    max_gpus: int
    jobs: frozenset[JobId]
    leaving: int = 0
    """GPUs that its jobs were asked to give back and still hold: they count until they are free."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one moment. ``state`` is the policy's own JSON of its last plan, empty after a switch."""

    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    limits: tuple[Limit, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which job should hold which GPUs. A job left out should hold none.

    ``reasons`` has one plain sentence for each job that waits, written for the person waiting.
    """

    target: Mapping[JobId, Placement]
    reasons: Mapping[JobId, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


class Policy(Protocol):
    """A frozen dataclass whose fields are its parameters, each made by ``params.param``.

    ``title`` names it and ``explanation`` tells an admin in two sentences what choosing it means.

    ``plan`` is pure: equal snapshots give equal plans. It may run in a time limit and in another process.
    """

    title: ClassVar[str]
    explanation: ClassVar[str]

    def plan(self, snapshot: Snapshot) -> Plan: ...
