"""The input and the output of a policy: immutable values, whose only clock is ``Snapshot.now``.

A policy computes a ``Plan`` from a ``Snapshot`` and changes nothing. The same code decides live, in the
simulator and in "what if". Times are seconds since the epoch, GPU counts are whole GPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from scheduling.messages import Message
from scheduling.renamed import warn
from scheduling.share_factors import share_factor

NodeId = str
JobId = str
Placement = Mapping[NodeId, int]
"""The number of GPUs on each node; nodes with none are left out."""


Source = Literal["given", "measured", "history", "default"]
"""Where an estimate comes from: its owner declared it, this job was measured, similar jobs were, or it is a default."""
Tier = Literal["premium", "standard", "basic"]
Knows = Literal["nothing", "speeds", "job lengths"]
"""What a policy uses: nothing, the speeds of jobs on more GPUs, or also the time that they still take."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is not known exactly, with its source."""

    value: float
    source: Source = "given"
    error: float = 0.0
    """Relative standard error: with 0.5 the true value is within half of ``value`` two times out of three."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The speeds of a job on 1, 2, ... GPUs on as few nodes as possible; ``estimates`` reads them.

    Speed is useful work per second; 1.0 is one GPU with the batch size that the owner asked for.
    """

    speeds: tuple[float, ...]
    """``speeds[n - 1]`` is the speed on n GPUs. More GPUs than listed are as fast as the last."""
    batches: tuple[int, ...] = ()
    """The total batch size, in samples, at each speed; empty where it is the one asked for."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Factor of the speed on other kinds of GPU; a kind that is left out counts as 1.0."""
    apart: float = 1.0
    """Factor of the speed where the GPUs are on more nodes than necessary."""
    source: Source = "given"
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Which GPUs a job accepts; by default any."""

    memory_mib: int = 0
    """The least memory of each GPU, in MiB."""
    kinds: tuple[str, ...] = ()
    """The models that it accepts, as ``Node.kind`` has them; empty for all."""
    same_kind: bool = False
    """Whether all its GPUs must be of one kind."""

    def accepts(self, memory_mib: int, kind: str) -> bool:
        """Return whether a GPU of this memory and model will do."""
        return memory_mib >= self.memory_mib and (not self.kinds or kind in self.kinds)


ANY_GPU = GpuRequest()


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as the policy sees it. A job may get only ``free`` GPUs in addition to those that it holds.

    A machine with several kinds of GPUs is a node for each kind.
    """

    id: NodeId
    name: str
    total: int
    """Healthy GPUs, held or free."""
    free: int
    """GPUs that no job holds now."""
    leaving: int = 0
    """GPUs that a job was asked to release and still holds: a reason to wait, not to preempt again."""
    open: bool = True
    """False while cordoned, draining, unapproved or lost: no job may get more GPUs here."""
    kind: str = ""
    """The model of its GPUs, as the driver names it; nodes of one kind are interchangeable where they have equal memory."""
    kept: int = 0
    """Free GPUs that are kept for other jobs. Only the reasons of waiting jobs use it; no decision does."""
    millicpus_per_gpu: int = 0
    """Thousandths of a processor that each GPU has as its share of the machine; 0 when unknown: then they are unlimited."""
    memory_mib_per_gpu: int = 0
    """The same for memory, in MiB."""
    extra_millicpus: int = 0
    """What is free in addition to the shares of the free GPUs; negative where jobs took more than the shares of theirs."""
    extra_memory_mib: int = 0
    leaving_millicpus: int = 0
    """What becomes free in addition to the shares of the ``leaving`` GPUs; negative where their jobs took less."""
    leaving_memory_mib: int = 0
    gpu_memory_mib: int = 0
    """The memory of each of its GPUs, in MiB: of the smallest, where they differ. 0 for CPU slots, or when unknown."""
    parts_of_gpus: bool = False
    """They are parts of GPUs (MIG), which cannot be connected with each other: only for jobs of one GPU."""
    part_of: NodeId = ""
    """The machine, for a node that has only its GPUs of one kind; empty for a whole machine."""

    @property
    def machine(self) -> NodeId:
        """Return the machine that has these GPUs: containers and processes never span two."""
        return self.part_of or self.id


@dataclass(frozen=True, slots=True)
class Job:
    """A job that wants or holds GPUs."""

    id: JobId
    owner: str
    submitted_at: float
    min_gpus: int
    max_gpus: int
    priority: int = 0
    """Jobs with a higher priority go first. One above 0 uses more of its owner's share: ``share_factor``."""
    elastic: bool = False
    """Whether its GPUs may change while it runs. A job that is not elastic keeps its placement until it ends."""
    now_on: Placement = field(default_factory=dict)
    """GPUs that it holds and keeps; those that it was asked to release are not counted."""
    base: Placement = field(default_factory=dict)
    """The part of ``now_on`` that cannot be taken without a restart (its first container)."""
    stopping: bool = False
    """Its attempt is being stopped: it gets nothing in this cycle. What it still holds is *leaving*, not ``now_on``."""
    nodes: frozenset[NodeId] | None = None
    """Nodes it can run on (its environment is ready there); None means all."""
    blocked: Message | None = None
    """Why it cannot start on any node now, under any policy; None when it can."""
    spread: bool = True
    """Whether its GPUs may be on several machines. Those of a plain command may not: it is one container."""
    preemptible: bool = False
    """Whether it may be stopped and restarted from its checkpoint."""
    started_at: float | None = None
    """When the current attempt got its GPUs."""
    served_gpu_seconds: float = 0.0
    """Attained service: GPU-seconds held so far by all its attempts."""
    restarts: int = 0

    group: str = ""
    """The group whose usage it counts as; empty when its owner has none."""
    asked_gpus: int = 0
    """The size that a policy without resizing gives it; 0 means ``max_gpus``. Read it as ``asked``."""
    tier: Tier = "standard"
    opportunistic: bool = False
    """It runs only on GPUs that no other job wants, and is the first to be stopped."""
    weight: float = 1.0
    first_started_at: float | None = None
    """When an attempt first held GPUs; None when none ever did."""
    since: float | None = None
    """When its GPUs last changed: at a start, a resize or a stop. None for a job that never held any."""
    run_seconds: float = 0.0
    """How long it has held GPUs, over all attempts."""
    lost_gpu_seconds_if_stopped: float = 0.0
    """Work since its last checkpoint, which a stop now would lose."""
    restart_seconds: float = 30.0
    """From a stop to the first step of the next attempt."""
    resize_seconds: float = 10.0
    """How long its training pauses when its GPUs change."""
    script: str = ""
    """Equal for jobs that run the same program: what was learnt from one is used for the next."""
    batch: int = 0
    """Total samples per step now, or as asked for while it waits; 0 when unknown."""
    speed: Curve | None = None
    """Speeds with the batch size that its owner asked for; None when nothing is known."""
    free_speed: Curve | None = None
    """Speeds with the best batch size for each number of GPUs; None when its batch size must not change."""
    work: Estimate | None = None
    """The remaining work, in seconds on one GPU with the batch size asked for; None when nothing is known."""
    progress: float | None = None
    """The fraction done, 0 to 1; None when unknown."""
    deadline: float | None = None
    """When its result is needed; None without a deadline."""
    longest_seconds: float | None = None
    """Its time limit: attempts are stopped after this long."""
    millicpus_per_gpu: int | None = None
    """Thousandths of a processor that it needs for each GPU; None for the share of the node's GPUs."""
    memory_mib_per_gpu: int | None = None
    """The same for memory, in MiB."""
    gpu_request: GpuRequest = ANY_GPU
    """Which GPUs it accepts; ``decide`` sees to that, under any policy."""
    cached_bytes: Mapping[NodeId, int] = field(default_factory=dict)
    """How much of its datasets each node has already; nodes that have none are left out. ``decide`` uses it."""

    @property
    def has_demands(self) -> bool:
        """Whether it needs another amount of processors or memory than the shares of its GPUs."""
        return self.millicpus_per_gpu is not None or self.memory_mib_per_gpu is not None

    @property
    def asked(self) -> int:
        return self.asked_gpus or self.max_gpus

    @property
    def gpus(self) -> int:
        return sum(self.now_on.values())

    @property
    def share_factor(self) -> int:
        """How often its GPUs count in the usage of its accounts; 1 up to the normal priority."""
        return share_factor(self.priority)

    @property
    def running(self) -> bool:
        """Whether it holds GPUs and keeps them."""
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
    """A limit on the GPUs that some jobs together hold at once: those of a user or of a group."""

    name: str
    """The user or group, as in reasons: ``alice`` or ``group vision``."""
    max_gpus: int
    jobs: frozenset[JobId]
    leaving: int = 0
    """GPUs that its jobs were asked to release and still hold: they count until they are free."""
    elsewhere: int = 0
    """GPUs of its jobs that are not in the snapshot because another layer decides about them."""
    soft: bool = False
    """It may be exceeded on GPUs that no job within its limit wants; jobs beyond it are the first to be stopped."""


@dataclass(frozen=True, slots=True)
class Account:
    """The usage and the weight of a user or a group, for fair sharing."""

    name: str
    weight: float
    jobs: frozenset[JobId]
    used: tuple[float, ...] = ()
    """GPU-seconds held in the last 24 hours, in the 24 hours before, and so on; each counts ``Job.share_factor`` times."""
    parent: str = ""
    """The account that it belongs to; empty for those at the top."""
    elsewhere: int = 0
    """GPUs of its jobs that are not in the snapshot because another layer decides about them."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs of a node that are reserved for some users from ``start`` to ``end``. Jobs of others must be gone by then."""

    name: str
    node: NodeId
    gpus: int
    start: float
    end: float
    owners: frozenset[str]
    """The users whose jobs may use them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster and its jobs at one moment.

    ``state`` is the JSON that the policy returned with its last plan; it is empty after a switch of policies.
    """

    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    limits: tuple[Limit, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    accounts: tuple[Account, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    patience_seconds: float = float("inf")
    """A job that has waited longer than this is next, under any policy."""
    damping_seconds: float = 0.0
    """No job is stopped within this time after its placement, except for a reservation; 0 switches ``damping`` off."""
    explain: bool = True
    """False where no one reads the reasons: the plan still has one for each waiting job, but with any text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The GPUs that each job should hold. A job that is left out should hold none.

    ``reasons`` has one message for each waiting job, for the user who waits.
    """

    target: Mapping[JobId, Placement]
    reasons: Mapping[JobId, Message] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    batches: Mapping[JobId, int] = field(default_factory=dict)
    """The total batch size chosen for jobs that allow it; a job that is left out chooses for itself."""
    again_at: float | None = None
    """When time alone may change the decision. The scheduler decides every few seconds anyway; a simulation, which
    jumps from event to event, asks again then."""
    kept: Mapping[NodeId, int] = field(default_factory=dict, compare=False)
    """Free GPUs by node that waiting jobs will use once other jobs have released the rest: not for lower tiers."""


class Policy(Protocol):
    """A scheduling policy: a frozen dataclass whose fields are its parameters, each declared with ``params.param``.

    ``title`` names it, and ``explanation`` describes in two sentences, for an admin, what choosing it means. Further
    class variables are optional: ``good_for`` and ``needs`` are a few words each for the table of policies, ``knows``
    is what it uses, and ``experimental = True`` marks a policy that has not proved itself.

    ``plan`` is pure: equal snapshots give equal plans. It may run under a time limit and in another process.
    """

    title: ClassVar[str]
    explanation: ClassVar[str]

    def plan(self, snapshot: Snapshot) -> Plan: ...
