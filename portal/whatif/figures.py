"""The figures that are compared, from simulated and real jobs."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from portal.whatif.history import PastJob, World
from scheduling.simulate import Result, Spread
from scheduling.simulate.result import SHORT_SECONDS, UNFAIR, JobResult

SAME_START_SECONDS = 60.0
"""Jobs that start within this time of each other count as starting at the same time."""
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one job, really or in a simulation."""

    owner: str
    group: str
    compared: bool
    turnaround: float | None
    waiting: float | None
    """None also for a job that had started before the window."""
    rho: float | None
    gpu_seconds: float
    lost_gpu_seconds: float
    preemptions: int
    restarts: int
    resizes: int


def actual_outcomes(world: World) -> list[Outcome]:
    alone = _fair_share_length(world)
    return [
        Outcome(
            owner=job.owner,
            group=job.group,
            compared=job.compared,
            turnaround=turnaround,
            waiting=_waiting_seconds(job, world, job.first_started),
            rho=_rho(turnaround, alone(job, turnaround)) if turnaround is not None else None,
            gpu_seconds=job.gpu_seconds,
            lost_gpu_seconds=job.lost_gpu_seconds,
            preemptions=job.preemptions,
            restarts=job.restarts,
            resizes=job.resizes,
        )
        for job in world.jobs
        for turnaround in [job.ended - job.submission.job.submitted_at if job.ended is not None else None]
    ]


def actual_results(world: World) -> list[JobResult]:
    """Return what really happened, job by job, in the form of the simulator's results."""
    alone = _fair_share_length(world)
    return [
        JobResult(
            id=asked.id,
            owner=job.owner,
            group=job.group,
            submitted_at=asked.submitted_at,
            first_started_at=job.first_started,
            ended_at=job.ended,
            outcome="unfinished" if job.ended is None else "cancelled" if job.submission.cancelled_at else "ended",
            gpu_seconds=job.gpu_seconds,
            useful_gpu_seconds=job.gpu_seconds - job.lost_gpu_seconds,
            preemptions=job.preemptions,
            resizes=job.resizes,
            restarts=job.restarts,
            alone_seconds=alone(job, job.ended - asked.submitted_at) if job.ended is not None else None,
        )
        for job in world.jobs
        for asked in [job.submission.job]
    ]


def simulated_outcomes(world: World, result: Result) -> list[Outcome]:
    rows = {row.id: row for row in result.jobs}
    return [_simulated_outcome(world, job, rows[job.submission.job.id]) for job in world.jobs]


def _simulated_outcome(world: World, job: PastJob, row: JobResult) -> Outcome:
    part = _share_within_window(world, row)
    return Outcome(
        owner=job.owner,
        group=job.group,
        compared=job.compared,
        turnaround=row.turnaround,
        waiting=_waiting_seconds(job, world, row.first_started_at),
        rho=_rho(row.turnaround, row.alone_seconds) if row.turnaround is not None else None,
        gpu_seconds=row.gpu_seconds * part,
        lost_gpu_seconds=row.lost_gpu_seconds * part,
        preemptions=row.preemptions,
        restarts=max(0, row.restarts - job.submission.job.restarts),
        resizes=row.resizes,
    )


def _share_within_window(world: World, row: JobResult) -> float:
    """Return the share of a job's GPU time before the window's end; simulations run until all jobs have ended."""
    if row.first_started_at is None or row.ended_at is None or row.ended_at <= world.end:
        return 1.0
    begins = max(world.start, row.first_started_at)
    return max(0.0, world.end - begins) / max(1e-9, row.ended_at - begins)


def _waiting_seconds(job: PastJob, world: World, started: float | None) -> float | None:
    there = job.submission.job.first_started_at
    return None if started is None or there is not None else started - job.submission.job.submitted_at


def _rho(turnaround: float, alone: float | None) -> float | None:
    return turnaround / alone if alone is not None and alone >= SHORT_SECONDS else None


def _fair_share_length(world: World) -> Callable[[PastJob, float], float | None]:
    """Return a function for the length of a job in 1/N of the lab, with the mean number N of jobs, as simulated."""
    edges = sorted(
        edge
        for job in world.jobs
        for edge in (
            (max(world.start, job.submission.job.submitted_at), 1),
            (job.ended if job.ended is not None else world.end, -1),
        )
    )
    times = [at for at, _ in edges]
    counts = list(accumulate(step for _, step in edges))
    spans = (count * (after - at) for count, at, after in zip(counts, times, times[1:], strict=False))
    areas = [0.0, *accumulate(spans)]
    gpus_there = sum(node.total for node in world.nodes)

    def area(at: float) -> float:
        place = bisect_right(times, at) - 1
        return areas[place] + counts[place] * (at - times[place]) if place >= 0 else 0.0

    def alone(job: PastJob, turnaround: float) -> float | None:
        asked = job.submission.job
        if turnaround <= 0 or job.ended is None:
            return None
        mean = max(1.0, (area(job.ended) - area(asked.submitted_at)) / turnaround)
        share = max(1e-9, gpus_there / mean)
        gpus = max(asked.min_gpus, min(asked.max_gpus, int(share))) if asked.elastic else asked.asked
        return job.submission.truth.seconds_alone(asked, gpus) * max(1.0, gpus / share)

    return alone


def compute_figures(rows: Iterable[Outcome]) -> dict[str, Any]:
    """Return the figures of some jobs: times in seconds, of the compared jobs; amounts in GPU-hours, of all jobs."""
    some = list(rows)
    compared = [row for row in some if row.compared]
    ended = [row.turnaround for row in compared if row.turnaround is not None]
    rho = [row.rho for row in compared if row.rho is not None]
    return {
        "jobs": len(some),
        "compared": len(compared),
        "unended": len(compared) - len(ended),
        "turnaround": _spread(ended),
        "waiting": _spread(row.waiting for row in compared if row.waiting is not None),
        "fairness": _spread(rho),
        "unfair": sum(value > UNFAIR for value in rho) / len(rho) if rho else 0.0,
        "gpu_hours": round(sum(row.gpu_seconds for row in some) / 3600, 3),
        "lost_gpu_hours": round(sum(row.lost_gpu_seconds for row in some) / 3600, 3),
        "preemptions": sum(row.preemptions for row in some),
        "restarts": sum(row.restarts for row in some),
        "resizes": sum(row.resizes for row in some),
    }


def _spread(values: Iterable[float]) -> dict[str, float]:
    found = Spread.of(values)
    by_name = {"mean": found.mean, "p50": found.p50, "p95": found.p95, "max": found.most}
    return {name: round(value, 3) for name, value in by_name.items()}


def summarise(world: World, rows: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures in total, by person, by group and by day."""
    total = compute_figures(rows)
    capacity = world.capacity_gpu_seconds / 3600
    total["utilisation"] = round(total["gpu_hours"] / capacity, 6) if capacity else 0.0
    return {
        "total": total,
        "people": _figures_by(rows, "owner"),
        "groups": _figures_by(rows, "group"),
        "daily": _daily_waits(world, rows),
    }


def _daily_waits(world: World, rows: Sequence[Outcome]) -> list[float | None]:
    """Return the mean wait of the compared jobs submitted within each 24 hours of the window; None for none."""
    days: list[list[float]] = [[] for _ in range(max(1, math.ceil((world.end - world.start) / DAY_SECONDS)))]
    for job, row in zip(world.jobs, rows, strict=True):
        day = int((job.submission.job.submitted_at - world.start) // DAY_SECONDS)
        if row.compared and row.waiting is not None and 0 <= day < len(days):
            days[day].append(row.waiting)
    return [round(sum(waits) / len(waits), 3) if waits else None for waits in days]


def compare_starts(rows: Sequence[Outcome], base: Sequence[Outcome]) -> dict[str, int]:
    """Return how many compared jobs start ``sooner``, ``later`` or at about the ``same`` time as in ``base``."""
    counts = {"sooner": 0, "later": 0, "same": 0}
    for row, before in zip(rows, base, strict=True):
        if row.compared and row.waiting is not None and before.waiting is not None:
            saved = before.waiting - row.waiting
            counts["same" if abs(saved) < SAME_START_SECONDS else "sooner" if saved > 0 else "later"] += 1
    return counts


def _figures_by(rows: Sequence[Outcome], name: str) -> dict[str, Any]:
    keys = sorted({getattr(row, name) for row in rows} - {""})
    return {key: compute_figures(row for row in rows if getattr(row, name) == key) for key in keys}
