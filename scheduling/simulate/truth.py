"""What really happens in a simulated world, and how much of it a policy is told.

A ``Truth`` belongs to one job and makes its ``Run``: the mutable thing that trains. The engine tells the run on which
GPUs it trains and for how long; the run tells when it will end, and what a policy may know of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from scheduling.toolkit import estimates
from scheduling.types import Curve, Estimate, Job, NodeId, Placement

Knowledge = Literal["oracle", "declared", "learnt", "speed", "none"]
"""What a policy is told: everything; speeds learnt from steps made so far, with the work declared or without; true
speeds but not the work; or nothing. Where nothing measures steps, ``learnt`` is nothing and ``declared`` the work."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a policy may know of a job at one moment; the fields of ``types.Job`` of the same names."""

    work: Estimate | None = None
    speed: Curve | None = None
    free_speed: Curve | None = None
    progress: float | None = None
    batch: int = 0


class TrainingRun(Protocol):
    """A job under way. ``batch`` is the total one the policy chose, 0 when it left that to the job."""

    def advance(self, seconds: float, on: Placement, batch: int) -> None:
        """Trains for so long without a pause."""
        ...

    def seconds_to_end(self, on: Placement, batch: int) -> float:
        """How long it still has to train like this; infinite when it would never end."""
        ...

    def known(self, on: Placement, batch: int) -> JobFacts:
        """Told at each turn while it runs, and once when it stops. Cheap: keep what does not change."""
        ...

    def save(self) -> Any:
        """Its checkpoint, for ``restore``."""
        ...

    def restore(self, saved: Any) -> None: ...


class Truth(Protocol):
    def begin(self, job: Job, kinds: Mapping[NodeId, str]) -> TrainingRun:
        """A run from the beginning (or from where a running job is now). ``kinds`` tells the GPUs' kind of each node."""
        ...

    def seconds_alone(self, job: Job, gpus: int) -> float:
        """All of it with ``gpus`` GPUs to itself on as few nodes as they fit on: the measure of fairness."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A job of so much work and one speed curve: what most traces and the portal's own history can tell.

    ``work`` is in seconds on one GPU; ``done`` the part of it done already.
    """

    work: float
    curve: Curve
    done: float = 0.0
    knowledge: Knowledge = "oracle"
    node_gpus: int = 0
    """GPUs of a node, for ``Curve.apart``: a job on more nodes than it needs is slower. 0: never slower."""

    def begin(self, job: Job, kinds: Mapping[NodeId, str]) -> "PlainRun":
        return PlainRun(self, job, kinds)

    def seconds_alone(self, job: Job, gpus: int) -> float:
        fast = _read(self.curve, gpus)
        return self.work / fast if fast > 0 else float("inf")


@dataclass(slots=True)
class PlainRun:
    truth: Plain
    job: Job
    kinds: Mapping[NodeId, str]
    done: float = 0.0
    begun: float = 0.0
    on: Placement = field(default_factory=dict)
    fast: float = 0.0
    """Its speed there."""
    fixed: JobFacts | None = None
    """What is known of it for good."""

    def __post_init__(self) -> None:
        self.done = self.begun = self.truth.done * self.truth.work
        job, knowledge = self.job, self.truth.knowledge
        if job.work is None and knowledge not in ("declared", "oracle"):
            speed = self.truth.curve if knowledge == "speed" else job.speed
            self.fixed = JobFacts(None, speed, job.free_speed, job.progress, job.batch)

    def advance(self, seconds: float, on: Placement, batch: int) -> None:
        self.done = min(self.truth.work, self.done + seconds * self._speed(on))

    def seconds_to_end(self, on: Placement, batch: int) -> float:
        fast = self._speed(on)
        return max(0.0, self.truth.work - self.done) / fast if fast > 0 else float("inf")

    def known(self, on: Placement, batch: int) -> JobFacts:
        if self.fixed is not None:
            return self.fixed
        fixed, job = self.truth.knowledge, self.job
        if fixed == "declared":
            return JobFacts(Estimate(max(0.0, self.truth.work - self.done)), job.speed, job.free_speed, None, job.batch)
        if fixed != "oracle":
            speed = self.truth.curve if fixed == "speed" else job.speed
            left = job.work and replace(job.work, value=max(0.0, job.work.value - self.done + self.begun))
            return JobFacts(left, speed, job.free_speed, job.progress, job.batch)
        work = self.truth.work
        part = self.done / work if work > 0 else 1.0
        return JobFacts(Estimate(max(0.0, work - self.done)), self.truth.curve, job.free_speed, part, job.batch)

    def save(self) -> float:
        return self.done

    def restore(self, saved: float) -> None:
        self.done = saved

    def _speed(self, on: Placement) -> float:
        if on is not self.on:
            self.on, self.fast = on, self._speed_on(on)
        return self.fast

    def _speed_on(self, on: Placement) -> float:
        curve = self.truth.curve
        fast = _read(curve, sum(on.values()))
        if curve.kinds:
            # A step is as slow as its slowest part.
            fast *= min((curve.kinds.get(self.kinds.get(node, ""), 1.0) for node in on), default=1.0)
        size = self.truth.node_gpus
        if curve.apart != 1.0 and size and len(on) > -(-sum(on.values()) // size):
            fast *= curve.apart
        return fast


def linear(maximum: int, exponent: float = 1.0) -> Curve:
    """n GPUs are n ** exponent times as fast."""
    return Curve(tuple(n**exponent for n in range(1, max(1, maximum) + 1)))


def lasts(seconds: float, gpus: int, curve: Curve | None = None, **more: Any) -> Plain:
    """A job that was seen to take so long on so many GPUs."""
    curve = curve or linear(gpus, estimates.DEFAULT_EXPONENT)
    return Plain(seconds * _read(curve, gpus), curve, **more)


def assumed(job: Job, *, longer: float = 1.0, knowledge: Knowledge = "none") -> Plain:
    """The future of a live job as far as anyone knows: its estimates taken for the truth, its work times ``longer``.

    The policy goes on seeing what the snapshot says, not this truth: pass ``knowledge`` to change that.
    """
    curve = estimates.curve(job, free_batch=True)
    if curve is None or not curve.speeds:
        curve = linear(job.max_gpus, estimates.DEFAULT_EXPONENT)
    return Plain(estimates.work(job).value * longer, replace(curve, batches=()), knowledge=knowledge)


def _read(curve: Curve, gpus: int) -> float:
    if gpus <= 0 or not curve.speeds:
        return 0.0
    return curve.speeds[min(gpus, len(curve.speeds)) - 1]
