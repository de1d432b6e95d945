"""The result of a simulation: one row per job, and a ``Summary`` over all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from scheduling.types import JobId

SHORT_SECONDS = 300.0
"""Finish-time fairness of shorter jobs is noise: a wait of a minute doubles their turnaround."""
UNFAIR = 1.25
"""A job that took this many times as long as in a fair share of its own counts as treated unfairly."""

Outcome = Literal["ended", "timed out", "cancelled", "unfinished"]


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. Times are seconds on the clock of the simulation; None for what did not happen."""

    id: JobId
    owner: str
    group: str
    submitted_at: float
    first_started_at: float | None
    ended_at: float | None
    outcome: Outcome
    gpu_seconds: float
    """GPU-seconds held, from the placement until the GPUs are free again."""
    useful_gpu_seconds: float
    """GPU-seconds of training whose work was not lost."""
    preemptions: int
    """How often all its GPUs were taken for other jobs."""
    resizes: int
    restarts: int
    """Attempts after the first, however the one before ended."""
    alone_seconds: float | None
    """Its duration in a fair share of its own: the cluster divided by the average number of jobs during its life."""

    @property
    def turnaround(self) -> float | None:
        return None if self.ended_at is None else self.ended_at - self.submitted_at

    @property
    def waiting(self) -> float | None:
        """Seconds from the submission to its first GPUs."""
        return None if self.first_started_at is None else self.first_started_at - self.submitted_at

    @property
    def lost_gpu_seconds(self) -> float:
        return self.gpu_seconds - self.useful_gpu_seconds

    @property
    def rho(self) -> float | None:
        """Finish-time fairness (Themis, NSDI'20): above 1, the job would have ended sooner alone in its share."""
        if self.turnaround is None or not self.alone_seconds:
            return None
        return self.turnaround / self.alone_seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum of some values, in their unit."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        some = np.array(list(values), dtype=float)
        if not some.size:
            return cls()
        p50, p95, p99 = np.percentile(some, [50, 95, 99])
        return cls(float(some.mean()), float(p50), float(p95), float(p99), float(some.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    jobs: int
    ended: int
    turnaround: Spread
    waiting: Spread
    makespan: float
    """Seconds from the first submission to the last end."""
    utilisation: float
    """GPU-seconds held by jobs, as a fraction of all GPU-seconds in the makespan."""
    useful_utilisation: float
    """The same without the cost of restarts, resizes and lost work."""
    fairness: Spread
    """The ``rho`` of jobs of at least ``SHORT_SECONDS``; ``most`` is the worst."""
    unfair: float
    """The fraction of those with ``rho`` above ``UNFAIR``."""
    gpu_hours: float
    lost_gpu_hours: float
    restarts: float
    """Attempts after the first plus resizes, per job."""
    preemptions: int
    resizes: int
    turns: int
    decision_ms: Spread


@dataclass(frozen=True, slots=True)
class Result:
    jobs: Sequence[JobResult]
    started_at: float
    ended_at: float
    capacity_gpu_seconds: float
    """GPUs of open nodes times seconds, over the makespan."""
    turns: int
    decision_ms: Sequence[float] = field(default=(), repr=False)
    """Durations of the decisions by the clock of the caller; empty without one."""

    def summary(self) -> Summary:
        ended = [job for job in self.jobs if job.outcome in ("ended", "timed out")]
        turnaround = [job.turnaround for job in ended if job.turnaround is not None]
        rho = [job.rho for job in ended if job.rho is not None and (job.alone_seconds or 0) >= SHORT_SECONDS]
        held = sum(job.gpu_seconds for job in self.jobs)
        useful = sum(job.useful_gpu_seconds for job in self.jobs)
        restarts, resizes = sum(job.restarts for job in self.jobs), sum(job.resizes for job in self.jobs)
        return Summary(
            jobs=len(self.jobs),
            ended=len(ended),
            turnaround=Spread.of(turnaround),
            waiting=Spread.of(job.waiting for job in self.jobs if job.waiting is not None),
            makespan=self.makespan,
            utilisation=held / self.capacity_gpu_seconds if self.capacity_gpu_seconds else 0.0,
            useful_utilisation=useful / self.capacity_gpu_seconds if self.capacity_gpu_seconds else 0.0,
            fairness=Spread.of(rho),
            unfair=sum(value > UNFAIR for value in rho) / len(rho) if rho else 0.0,
            gpu_hours=held / 3600,
            lost_gpu_hours=(held - useful) / 3600,
            restarts=(restarts + resizes) / len(self.jobs) if self.jobs else 0.0,
            preemptions=sum(job.preemptions for job in self.jobs),
            resizes=resizes,
            turns=self.turns,
            decision_ms=Spread.of(self.decision_ms),
        )

    @property
    def makespan(self) -> float:
        ends = [job.ended_at for job in self.jobs if job.ended_at is not None]
        return max(ends) - min(job.submitted_at for job in self.jobs) if ends else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"summary": asdict(self.summary()), "jobs": [job_to_json(job) for job in self.jobs]}


def job_to_json(job: JobResult) -> dict[str, Any]:
    return {
        **asdict(job),
        "turnaround": job.turnaround,
        "waiting": job.waiting,
        "lost_gpu_seconds": job.lost_gpu_seconds,
        "rho": job.rho,
    }
