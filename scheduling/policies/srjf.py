"""Shortest remaining job first, and its elastic form: GPUs to whoever comes nearest to its end by them.

The order is that of the Voda scheduler (confirmed in its code); the elastic form replaces Voda's rounds of one GPU each
by the largest gain per remaining work, the rule measured as "elastic SRJF" in our notes. Voda's elastic form gave a job
whose least is its most more than its most; here the most is a bound like any other. A job of unknown length is taken
to be as long again as it was served, in doublings, so that two of them do not take turns: a reconstruction of ours.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduling import estimates, reasons
from scheduling.params import param
from scheduling.realise import line_up, realise, stand_in_line
from scheduling.types import Job, JobId, Plan, Snapshot

SOON = 1.0
"""Seconds: nothing is nearer to its end than this, so that what is due now does not take all."""


@dataclass(frozen=True, slots=True)
class Srjf:
    title: ClassVar[str] = "Shortest remaining job first"
    explanation: ClassVar[str] = (
        "The job that will end soonest goes first, which makes the mean turnaround short. "
        "It is as good as what is known of the jobs' lengths, and a very long job may wait while shorter ones keep coming."
    )

    preempt: bool = param(
        True,
        "Stop longer jobs for shorter ones",
        "Yes: a running job that has a checkpoint is stopped for one that ends sooner, and goes on later. "
        "No: what runs goes on to its end.",
    )
    elastic: bool = param(
        False,
        "Resize jobs",
        "Yes: each GPU goes to the job that comes nearest to its end by it, and elastic jobs shrink and grow. "
        "No: each job has as many as it asked for.",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        work = {job.id: _work(job) for job in snapshot.jobs}

        def place(job: Job) -> float:
            if self.elastic:  # where it does not depend on who runs, nobody is stopped for the size it happens to have
                return work[job.id] / estimates.speed(job, _asked(job))
            return work[job.id] / estimates.speed(job, _size(job)) + _delay(job)

        order = sorted(
            (job for job in snapshot.jobs if not job.stopping), key=lambda job: (-job.priority, place(job), *job.turn)
        )
        if self.elastic:
            wanted = _divide(snapshot, order, work, preempt=self.preempt)
            order.sort(key=lambda job: job.id not in wanted)
        elif self.preempt:
            wanted, _ = stand_in_line(snapshot, order, _size)
        else:
            wanted = {job.id: _size(job) for job in order if job.running}
        for job in order:
            if job.waiting and not (job.elastic and self.elastic):
                wanted.setdefault(job.id, _size(job))  # where packing leaves a gap, who fits may have it
        return realise(snapshot, order, wanted)


def _work(job: Job) -> float:
    """Seconds of work left on one GPU."""
    work = estimates.work(job)
    if work.source != "default":
        return max(work.value, SOON)
    unit = estimates.DEFAULT_WORK_SECONDS
    return float(unit * 2 ** math.ceil(math.log2(work.value / unit)))


def _delay(job: Job) -> float:
    """A stopped job must win back its restart, so that it does not change places with its like."""
    return job.restart_seconds if job.waiting and job.served_gpu_seconds else 0.0


def _size(job: Job) -> int:
    """What it asked for; a job that runs and cannot be resized has what it has."""
    return job.gpus if job.running and not job.elastic else _asked(job)


def _asked(job: Job) -> int:
    return min(max(job.asked, job.min_gpus), job.max_gpus)


def _divide(
    snapshot: Snapshot, order: Sequence[Job], work: Mapping[JobId, float], *, preempt: bool
) -> dict[JobId, int]:
    """Each GPU to the job whose remaining work it shortens by the largest part."""
    ledger, again = line_up(snapshot, preempt=preempt)
    wanted: dict[JobId, int] = {}
    heap: list[tuple[float, int, int]] = []
    steps: list[tuple[tuple[int, float], ...]] = []
    for number, job in enumerate(order):
        steps.append(())
        if job.running and job.id not in again:
            while ledger.spare(job):
                ledger.ask_back(job)
            wanted[job.id] = ledger.count(job)
        elif job.waiting and reasons.impossible(job, ledger):
            continue
        steps[number] = _steps(job, wanted.get(job.id, 0))
        if steps[number]:
            heap.append((-steps[number][0][1] / work[job.id], number, 0))
    heapq.heapify(heap)
    while heap:
        _, number, step = heapq.heappop(heap)
        job, (size, _) = order[number], steps[number][step]
        if job.id not in wanted:
            where = ledger.fit(job, size)
            if where is None:
                continue
            ledger.give(job, where)
        else:
            while ledger.count(job) < size and ledger.grow(job):
                pass
        wanted[job.id] = ledger.count(job)
        if wanted[job.id] == size and step + 1 < len(steps[number]):
            heapq.heappush(heap, (-steps[number][step + 1][1] / work[job.id], number, step + 1))
    return wanted


def _steps(job: Job, count: int) -> tuple[tuple[int, float], ...]:
    """The sizes worth having beyond ``count``, with what each GPU on the way there gains."""
    if count and (job.blocked or not job.elastic):
        return ()
    steps = estimates.steps(job, count, job.min_gpus, job.max_gpus)
    if job.running and not job.elastic:
        return ((job.gpus, steps[0][1]),)  # of fixed size now, it keeps the rank it had when it could choose
    return steps
