"""What a policy is given and what it answers: immutable values, no clock but ``Snapshot.now``.

A policy turns a ``Snapshot`` into a ``Plan`` and touches nothing. The same code decides live, in the
simulator and in "what if". Times are seconds since the epoch, GPU counts are whole GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from scheduling.renamed import warn

NodeId = str
JobId = str
Placement = Mapping[NodeId, int]
"""How many GPUs of each node; nodes with none are left out."""


Source = Literal["given", "measured", "history", "default"]
"""Where an estimate comes from: a person said so, this job was measured, others like it were, or nobody knows."""
Tier = Literal["premium", "standard", "basic"]
Knows = Literal["nothing", "speeds", "job lengths"]
"""What a policy is made for: to know nothing, how fast jobs are on more GPUs, or also how long they still take."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that nobody knows exactly, with where it comes from."""

    value: float
    source: Source = "given"
    error: float = 0.0
    """Relative standard error: with 0.5 the truth is within half the value two times out of three."""


@dataclass(frozen=True, slots=True)
class Curve:
    """How fast a job is on 1, 2, ... GPUs of as few nodes as they fit on; see ``estimates`` for reading it.

    Speed is useful work per second; that of one GPU with the batch its owner asked for is 1.0.
    """

    speeds: tuple[float, ...]
    """``speeds[n - 1]`` with n GPUs. More GPUs than listed are no faster than the last."""
    batches: tuple[int, ...] = ()
    """The total batch, in samples, behind each speed; empty where the batch is the one asked for."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Factor on another kind of GPU; a kind left out counts as 1.0."""
    apart: float = 1.0
    """Factor where its GPUs are of more nodes than they need to be."""
    source: Source = "given"
    error: float = 0.0


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
    kind: str = ""
    """The model of its GPUs, as the driver names it; nodes of one kind can stand in for each other."""
    kept: int = 0
    """Free GPUs that are kept for other jobs, for reasons to tell: nothing is decided by it."""


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
    """When the present attempt was given its GPUs."""
    served_gpu_seconds: float = 0.0
    """Attained service: GPU-seconds held so far by all its attempts."""
    restarts: int = 0

    group: str = ""
    """The group it is accounted to; empty when its owner has none."""
    asked_gpus: int = 0
    """What a policy that does not resize gives it; 0 means ``max_gpus``. Read it as ``asked``."""
    tier: Tier = "standard"
    opportunistic: bool = False
    """It runs only on GPUs that nobody else wants, and is the first to go."""
    weight: float = 1.0
    first_started_at: float | None = None
    """When any attempt of it first held GPUs; None when none ever did."""
    since: float | None = None
    """When its GPUs were last changed: given, resized or all taken. None for a job that never held any."""
    run_seconds: float = 0.0
    """How long it has held GPUs, all attempts together."""
    lost_gpu_seconds_if_stopped: float = 0.0
    """Work since its last checkpoint: what a stop now would waste."""
    restart_seconds: float = 30.0
    """From a stop to the first step of the next attempt."""
    resize_seconds: float = 10.0
    """How long its training stands still when its GPUs change."""
    script: str = ""
    """Equal for jobs that run the same program: what is learnt of one is used for the next."""
    batch: int = 0
    """Total samples per step now, or asked for while it waits; 0 when unknown."""
    speed: Curve | None = None
    """With the batch its owner asked for; None when nothing is known."""
    free_speed: Curve | None = None
    """With the best batch for each size; None when its batch must stay."""
    work: Estimate | None = None
    """What is left to do, in seconds on one GPU with the batch asked for; None when nothing is known."""
    progress: float | None = None
    """The part done, 0 to 1; None when unknown."""
    deadline: float | None = None
    """When its result is needed; None when sooner is simply better."""
    longest_seconds: float | None = None
    """Its attempts are stopped after this long, whatever they do."""

    @property
    def asked(self) -> int:
        return self.asked_gpus or self.max_gpus

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
    def queue_key(self) -> tuple[int, float, JobId]:
        """Sorts jobs into the order of the queue: higher priority first, then the earlier submission."""
        return (-self.priority, self.submitted_at, self.id)

    @property
    def turn(self) -> tuple[int, float, JobId]:
        """The old name of ``queue_key``, for one release."""
        warn("Job.turn", "Job.queue_key")
        return self.queue_key


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``max_gpus`` at once for these jobs together (a user's, or a group's)."""

    name: str
    """Whose limit, as a reason names it: ``alice`` or ``group vision``."""
    max_gpus: int
    jobs: frozenset[JobId]
    leaving: int = 0
    """GPUs that its jobs were asked to give back and still hold: they count until they are free."""
    elsewhere: int = 0
    """GPUs that its jobs hold which are not in the snapshot, because another layer decides about them."""
    soft: bool = False
    """May be exceeded on GPUs that nobody within a limit wants; what is beyond it is the first to go."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user or a group as the fair share sees them."""

    name: str
    weight: float
    jobs: frozenset[JobId]
    used: tuple[float, ...] = ()
    """GPU-seconds held in the last 24 hours, in the 24 hours before, and so on."""
    parent: str = ""
    """The account it is a part of; empty for those at the top."""
    elsewhere: int = 0
    """GPUs that its jobs hold which are not in the snapshot, because another layer decides about them."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs of a node kept for some people from ``start`` to ``end``. Jobs of others must be gone by then."""

    name: str
    node: NodeId
    gpus: int
    start: float
    end: float
    owners: frozenset[str]
    """Whose jobs may use them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one moment. ``state`` is the policy's own JSON of its last plan, empty after a switch."""

    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    limits: tuple[Limit, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    patience_seconds: float = float("inf")
    """Whoever has waited longer is next, whatever the policy."""
    damping_seconds: float = 0.0
    """No job is stopped so soon after it was placed, unless for a reservation; 0 switches ``damping`` off."""
    explain: bool = True
    """False where nobody will read why a job waits: the plan still names all that wait, but may say anything."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which job should hold which GPUs. A job left out should hold none.

    ``reasons`` has one plain sentence for each job that waits, written for the person waiting.
    """

    target: Mapping[JobId, Placement]
    reasons: Mapping[JobId, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    batches: Mapping[JobId, int] = field(default_factory=dict)
    """The total batch chosen for jobs whose batch is free; a job left out chooses for itself."""
    again_at: float | None = None
    """When time alone may change the decision. The live loop turns every few seconds anyway; a simulation jumps from
    one event to the next, and asks again then."""
    kept: Mapping[NodeId, int] = field(default_factory=dict, compare=False)
    """Free GPUs by node that some of its jobs will have once others have given back the rest: not for lower tiers."""


class Policy(Protocol):
    """A frozen dataclass whose fields are its parameters, each made by ``params.param``.

    ``title`` names it and ``explanation`` tells an admin in two sentences what choosing it means. Further class
    variables are optional: ``good_for`` and ``needs`` (to know) are a few words each for the table of policies,
    ``knows`` is what it is made to know, and ``experimental = True`` marks one that has not proved itself.

    ``plan`` is pure: equal snapshots give equal plans. It may run in a time limit and in another process.
    """

    title: ClassVar[str]
    explanation: ClassVar[str]

    def plan(self, snapshot: Snapshot) -> Plan: ...
