"""Finish-time fairness: the job that is delayed the most, relative to an equal share for itself, gets the next GPU."""

import heapq
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import estimates, reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.fairness import Shares
from scheduling.toolkit.growth import max_size, next_size
from scheduling.toolkit.plan_builder import build_plan
from scheduling.toolkit.sharing import Pool, plan_until_placed, skip_unprofitable_resizes
from scheduling.types import Job, JobId, Knows, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Themis:
    """Themis (Mahajan et al., NSDI'20). Metric, filter f and leases are confirmed from secondary sources only.

    Reconstruction: the scheduler itself estimates each rho, so no job can lie, and the auction with its payments becomes
    a greedy max-min: the next GPUs go to the job with the largest rho that they reduce. First only the worst
    ``1 - fairness`` of all jobs are served, until each is as well off as alone; then all jobs.
    """

    title: ClassVar[str] = "Finish-time fairness (Themis)"
    explanation: ClassVar[str] = (
        "Each job should end no later than if it had an equal share of the cluster for itself; the one that is furthest "
        "from that gets the next GPUs. A job keeps its GPUs for some time, then they are shared again."
    )
    good_for: ClassVar[str] = "no job much worse off than alone in an equal share"
    needs: ClassVar[str] = "the remaining length and the speed of jobs"
    knows: ClassVar[Knows] = "job lengths"

    fairness: float = param(
        0.8,
        "Fairness",
        "This fraction of the jobs, the best off, waits until the others are as well off as alone on their share. "
        "Larger is fairer; with a smaller value more jobs share the free GPUs.",
        minimum=0.0,
        maximum=1.0,
    )
    lease_minutes: float = param(
        20.0,
        "Minutes a job keeps its GPUs",
        "Until then it is not stopped, and keeps up to an equal share unless others could not start. "
        "Then all its GPUs are shared again.",
        minimum=0.0,
        maximum=10_080.0,
    )
    tolerance: float = param(
        0.25,
        "Tolerance",
        "A job loses GPUs only to one whose rho is larger by this fraction. Larger means fewer interruptions.",
        minimum=0.0,
        maximum=10.0,
    )
    pays_within_seconds: float = param(
        300.0,
        "Seconds within which growth must pay off",
        "A running job takes more GPUs only if it makes up for the interruption within this time. "
        "Larger means more frequent changes.",
        minimum=0.0,
        maximum=86_400.0,
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        return plan_until_placed(lambda excluded: self._plan(snapshot, excluded))

    def _plan(self, snapshot: Snapshot, excluded: AbstractSet[JobId]) -> tuple[Plan, set[JobId]]:
        shares = Shares(snapshot)
        ends = {
            job.id: (job.since or job.started_at or 0.0) + 60 * self.lease_minutes
            for job in snapshot.jobs
            if job.running
        }
        leased = {id for id, end in ends.items() if end > snapshot.now}
        pool = Pool(snapshot, preempt=True, kept=leased, excluded=excluded)
        jobs = [job for job in snapshot.jobs if job.running or (job.waiting and job.id not in pool.impossible)]
        alone = {job.id: shares.rho(job) for job in jobs}

        def deserves(job: Job) -> tuple[int, float, tuple[int, float, JobId]]:
            """Return a sort key, the most deserving first: jobs without GPUs by priority and delay, then others by rho."""
            if count := pool.count.get(job.id, 0):
                return (0, -shares.rho(job, count), job.queue_key)
            return (-job.priority - 1, -alone[job.id] * (1 + self.tolerance if job.running else 1), job.queue_key)

        order = sorted(jobs, key=deserves)
        order.sort(key=lambda job: not pool.count.get(job.id))
        for job in order:
            if not pool.count.get(job.id):
                pool.take(job, pool.min_gpus[job.id] if job.running else job.min_gpus)
        self._grow(order, pool, shares, leased)
        wanted = skip_unprofitable_resizes(snapshot, pool.count, self.pays_within_seconds)
        batches = {job.id: estimates.batch(job, wanted.get(job.id, 0)) for job in jobs if job.free_speed}

        later = [end for end in ends.values() if end > snapshot.now] if len(pool.count) < len(jobs) else []

        unplaced: set[JobId] = set()

        def short(job: Job, capacity: Capacity, ahead: int) -> Message:
            if wanted.get(job.id):
                unplaced.add(job.id)
            reason = reasons.shortage(job, capacity, ahead)
            return WorseOffFirst(reason, round(shares.each, 1), round(alone[job.id], 1))

        plan = build_plan(
            snapshot,
            order,
            wanted,
            why=pool.impossible,
            batches=batches,
            short=short,
            again_at=min(later, default=None),
        )
        return plan, unplaced

    def _grow(self, jobs: Sequence[Job], pool: Pool, shares: Shares, leased: AbstractSet[JobId]) -> None:
        for job in jobs:
            if job.id in leased and pool.count.get(job.id):
                keeps = min(job.gpus, ceil(shares.each)) - pool.count[job.id]
                pool.take(job, max(0, min(pool.free, keeps)))
        served = [job for job in jobs if pool.count.get(job.id)]
        by_rho = sorted(served, key=lambda job: (-shares.rho(job, pool.count[job.id]), job.queue_key))
        _give_to_worst_off(by_rho[: ceil((1 - self.fairness) * len(served))], pool, shares, self.tolerance, until=1.0)
        _give_to_worst_off(served, pool, shares, self.tolerance, until=0.0)


def _give_to_worst_off(jobs: Iterable[Job], pool: Pool, shares: Shares, tolerance: float, until: float) -> None:
    """Give the next GPUs to the job with the largest rho, as long as that is more than ``until``.

    A job keeps its GPUs unless another one is worse off by the tolerance.
    """
    heap: list[tuple[float, tuple[int, float, JobId], int, Job]] = []

    def push(job: Job) -> None:
        count = pool.count[job.id]
        rho = shares.rho(job, count) * (1 + tolerance if count < job.gpus else 1)
        if rho > until and (size := next_size(job, count, max_size(job))):
            heapq.heappush(heap, (-rho, job.queue_key, size, job))

    for job in jobs:
        push(job)
    while heap and pool.free:
        _, _, size, job = heapq.heappop(heap)
        if pool.take(job, size - pool.count[job.id]):
            push(job)


@dataclass(frozen=True)
class WorseOffFirst(Message):
    """Even with its equal share from now on it takes this many ``times`` as long; jobs for which it is more go first."""

    code: ClassVar[str] = "worse_off_first"
    reason: Message
    share: float
    """GPUs."""
    times: float
