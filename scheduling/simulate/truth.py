"""What really happens to a job in a simulation, and how much of it a policy knows.

A ``Truth`` belongs to one job and creates its ``TrainingRun``, the mutable object that trains. The engine passes the GPUs
and the duration of training to the run; the run returns when it will end, and what a policy may know of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from scheduling.toolkit import estimates
from scheduling.types import Curve, Estimate, Job, NodeId, Placement

Knowledge = Literal["oracle", "declared", "learnt", "speed", "none"]
"""What a policy knows: everything; speeds learnt from the steps so far, with the work declared or without; true
speeds but not the work; or nothing. Where steps are not measured, ``learnt`` is nothing and ``declared`` is the work."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a policy may know of a job at one moment: the fields of ``types.Job`` with the same names."""

    work: Estimate | None = None
    speed: Curve | None = None
    free_speed: Curve | None = None
    progress: float | None = None
    batch: int = 0


class TrainingRun(Protocol):
    """A running job. ``batch`` is the total batch that the policy chose, 0 when it left that to the job."""

    def advance(self, seconds: float, on: Placement, batch: int) -> None:
        """Train for this time without a pause."""
        ...

    def seconds_to_end(self, on: Placement, batch: int) -> float:
        """Return how long it still has to train like this; infinite when it would never end."""
        ...

    def known(self, on: Placement, batch: int) -> JobFacts:
        """Return what a policy may know: called in each cycle while it runs, and when it stops, so it must be cheap."""
        ...

    def save(self) -> Any:
        """Return a checkpoint, for ``restore``."""
        ...

    def restore(self, saved: Any) -> None: ...


class Truth(Protocol):
    def begin(self, job: Job, kinds: Mapping[NodeId, str]) -> TrainingRun:
        """Return a run from the start (or from where a running job is now). ``kinds`` has the kind of GPU of each node."""
        ...

    def seconds_alone(self, job: Job, gpus: int) -> float:
        """Return the total duration with ``gpus`` GPUs on as few nodes as possible: the measure of fairness."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A job with an amount of work and one speed curve, which most traces and the history of the portal provide.

    ``work`` is in seconds on one GPU; ``done`` is the fraction of it done already.
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
        fast = _speed_on_gpus(self.curve, gpus)
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
    """Its speed on these GPUs."""
    fixed: JobFacts | None = None
    """What is known of it, if that never changes."""

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
        knowledge, job = self.truth.knowledge, self.job
        if knowledge == "declared":
            return JobFacts(Estimate(max(0.0, self.truth.work - self.done)), job.speed, job.free_speed, None, job.batch)
        if knowledge != "oracle":
            speed = self.truth.curve if knowledge == "speed" else job.speed
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
        fast = _speed_on_gpus(curve, sum(on.values()))
        if curve.kinds:
            # A step is as slow as its slowest rank.
            fast *= min((curve.kinds.get(self.kinds.get(node, ""), 1.0) for node in on), default=1.0)
        size = self.truth.node_gpus
        if curve.apart != 1.0 and size and len(on) > -(-sum(on.values()) // size):
            fast *= curve.apart
        return fast


def linear(maximum: int, exponent: float = 1.0) -> Curve:
    """Return a curve on which n GPUs are n ** exponent times as fast as one."""
    return Curve(tuple(n**exponent for n in range(1, max(1, maximum) + 1)))


def lasts(seconds: float, gpus: int, curve: Curve | None = None, **more: Any) -> Plain:
    """Return the truth of a job that took ``seconds`` on ``gpus`` GPUs."""
    curve = curve or linear(gpus, estimates.DEFAULT_EXPONENT)
    return Plain(seconds * _speed_on_gpus(curve, gpus), curve, **more)


def assumed(job: Job, *, longer: float = 1.0, knowledge: Knowledge = "none") -> Plain:
    """Return a future of a live job: its estimates are taken as the truth, with its work times ``longer``.

    The policy continues to see the facts of the snapshot, not this truth: pass ``knowledge`` to change that.
    """
    curve = estimates.curve(job, free_batch=True)
    if curve is None or not curve.speeds:
        curve = linear(job.max_gpus, estimates.DEFAULT_EXPONENT)
    return Plain(estimates.work(job).value * longer, replace(curve, batches=()), knowledge=knowledge)


def _speed_on_gpus(curve: Curve, gpus: int) -> float:
    if gpus <= 0 or not curve.speeds:
        return 0.0
    return curve.speeds[min(gpus, len(curve.speeds)) - 1]
