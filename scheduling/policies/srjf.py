"""Shortest remaining job first, and its elastic form: each GPU goes where it shortens the turnaround of all the most.

The order is that of the Voda scheduler (confirmed in its code). In the elastic form of Voda a job of fixed size could
get more than that; here the maximum always holds. Ours weights the gain of each job by heSRPT (Berg, Vesilo and
Harchol-Balter, 2020; the weights are derived from its published optimum, a reconstruction): for jobs that are n ** p
times as fast on n GPUs, the mean turnaround is smallest when a second of work saved counts for a job as in
``_value_of_second``, more the fewer jobs are shorter. The plain rule, gain over remaining work, gives the shortest jobs
GPUs that they hardly use. A job of unknown length counts as needing as long again as it was served, in doublings, so that
two of them do not alternate: a reconstruction of ours.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduling.params import param
from scheduling.toolkit import estimates, reasons
from scheduling.toolkit.plan_builder import admit_in_order, build_plan, release_preemptible
from scheduling.toolkit.sharing import skip_unprofitable_resizes
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

POWER = 0.7
"""The p of heSRPT. Turnarounds change by about one part in a hundred between 0.5 and 0.8."""
MIN_WORK_SECONDS = 1.0
"""The shortest remaining work in seconds, so that a job that is about to end does not get everything."""


@dataclass(frozen=True, slots=True)
class Srjf:
    title: ClassVar[str] = "Shortest remaining job first"
    explanation: ClassVar[str] = (
        "The job that will end soonest goes first, which makes the mean turnaround short. "
        "It depends on good estimates of job lengths, and a very long job may wait while shorter ones keep coming."
    )
    good_for: ClassVar[str] = "the shortest mean turnaround"
    needs: ClassVar[str] = "the remaining length of jobs"
    knows: ClassVar[Knows] = "job lengths"

    preempt: bool = param(
        True,
        "Stop longer jobs for shorter ones",
        "Yes: a running job that has a checkpoint is stopped for one that ends sooner, and restarts later. "
        "No: running jobs continue to their end.",
    )
    elastic: bool = param(
        True,
        "Resize jobs",
        "Yes: each GPU goes where it shortens the turnaround of all the most, and elastic jobs shrink and grow. "
        "No: each job gets as many as it asked for.",
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
        work = {job.id: _work_seconds(job) + (_restart_delay(job) if self.elastic else 0.0) for job in snapshot.jobs}

        def place(job: Job) -> float:
            if self.elastic:  # the order does not depend on which jobs run, so no job is stopped for its current size
                return work[job.id] / estimates.speed(job, _asked_size(job))
            return work[job.id] / estimates.speed(job, _size(job)) + _restart_delay(job)

        order = sorted(
            (job for job in snapshot.jobs if not job.stopping),
            key=lambda job: (-job.priority, place(job), *job.queue_key),
        )
        if self.elastic:
            wanted = skip_unprofitable_resizes(
                snapshot, _divide_gpus(snapshot, order, work, preempt=self.preempt), self.pays_within_seconds
            )
            order.sort(key=lambda job: not wanted.get(job.id, 0))
        elif self.preempt:
            wanted, _ = admit_in_order(snapshot, order, _size)
        else:
            wanted = {job.id: _size(job) for job in order if job.running}
        for job in order:
            if job.waiting and not (job.elastic and self.elastic):
                wanted.setdefault(job.id, _size(job))  # a job that fits into a gap of the packing may start
        return build_plan(snapshot, order, wanted)


def _work_seconds(job: Job) -> float:
    """Return the seconds of work left on one GPU."""
    work = estimates.work(job)
    if work.source != "default":
        return max(work.value, MIN_WORK_SECONDS)
    unit = estimates.DEFAULT_WORK_SECONDS
    return float(unit * 2 ** math.ceil(math.log2(work.value / unit)))


def _restart_delay(job: Job) -> float:
    """Return the restart time of a stopped job, which counts as work so that similar jobs do not alternate."""
    return job.restart_seconds if job.waiting and job.served_gpu_seconds else 0.0


def _size(job: Job) -> int:
    """Return the size that a job asked for, or the current one of a running job that cannot be resized."""
    return job.gpus if job.running and not job.elastic else _asked_size(job)


def _asked_size(job: Job) -> int:
    return min(max(job.asked, job.min_gpus), job.max_gpus)


def _value_of_second(work: Mapping[JobId, float], jobs: Sequence[Job]) -> dict[JobId, float]:
    """Return the value of a second of work saved, by job: heSRPT, up to a common factor."""
    power = 1 / (1 - POWER)
    longest_first = sorted(jobs, key=lambda job: (-work[job.id], job.queue_key))
    count = len(jobs)
    return {
        job.id: float(((number / count) ** power - ((number - 1) / count) ** power) ** (1 / power))
        for number, job in enumerate(longest_first, 1)
    }


def _divide_gpus(
    snapshot: Snapshot, order: Sequence[Job], work: Mapping[JobId, float], *, preempt: bool
) -> dict[JobId, int]:
    """Give each GPU to the job with the largest gain times its value; higher priority goes first."""
    ledger, again = release_preemptible(snapshot, preempt=preempt)
    worth = _value_of_second(work, order)
    wanted: dict[JobId, int] = {}
    heap: list[tuple[int, float, int, int]] = []
    steps: list[tuple[tuple[int, float], ...]] = []

    def push(number: int, step: int) -> None:
        if step < len(steps[number]):
            job = order[number]
            heapq.heappush(heap, (-job.priority, -steps[number][step][1] * worth[job.id], number, step))

    for number, job in enumerate(order):
        if job.running and job.id not in again:
            while ledger.spare(job):
                ledger.ask_back(job)
            wanted[job.id] = ledger.count(job)
        out = job.waiting and bool(reasons.impossible(job, ledger))
        steps.append(() if out else _steps(job, wanted.get(job.id, 0)))
        push(number, 0)
    while heap:
        _, _, number, step = heapq.heappop(heap)
        job, (size, _) = order[number], steps[number][step]
        if job.id in wanted:
            while ledger.count(job) < size and ledger.grow(job):
                pass
        elif where := ledger.fit(job, size) or ledger.best_fit(job, size):
            ledger.give(job, where)
        else:
            continue
        wanted[job.id] = ledger.count(job)
        if wanted[job.id] == size:
            push(number, step + 1)
    return wanted


def _steps(job: Job, count: int) -> tuple[tuple[int, float], ...]:
    """Return the worthwhile sizes beyond ``count``, with the gain per GPU up to each."""
    if count and (job.blocked or not job.elastic):
        return ()
    steps = estimates.steps(job, count, job.min_gpus, job.max_gpus)
    if job.running and not job.elastic:
        return ((job.gpus, steps[0][1]),)  # its size is fixed now; it keeps the rank of when it could choose
    return steps
