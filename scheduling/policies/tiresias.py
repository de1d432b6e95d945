"""Discretised two-dimensional least attained service: jobs that have used the least GPU time go first.

Tiresias (Gu et al., NSDI 2019). Confirmed in the authors' code: queues by attained GPU-seconds, inside a queue by first
start, all or nothing at the size asked for, promotion after ``knob`` times the time run, the Gittins rank. Elastic
Tiresias (EDL, Wu et al. 2019) is confirmed through the Voda scheduler's code. Our reconstructions: attained service is
compared in each cycle instead of at fixed ticks; the waiting time for a promotion starts at the last stop; the history
behind the Gittins rank has the jobs that were seen to end; jobs without checkpoints go first once they run.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import estimates, placement, reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.plan_builder import admit_in_order, build_plan
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

COMPACTION_THRESHOLD = 10
"""EDL shrinks the jobs of the lower queues when more jobs than this wait."""
MAX_HISTORY = 1000
"""The number of latest lengths that the Gittins rank uses."""
MIN_HISTORY = 20
"""The number of lengths from which on the Gittins rank is used."""
STEPS_PER_QUANTUM = 8
"""How often the Gittins rank changes on the way through a queue; few steps keep equal jobs from alternating."""


@dataclass(frozen=True, slots=True)
class Tiresias:
    """``state`` is {"promoted": {job: [GPU-seconds, seconds run] at its promotion}}, for the Gittins rank also
    {"seen": {job: GPU-seconds}, "sizes": [GPU-seconds of ended jobs, latest last]}, and for the order of arrival
    {"came": {job: [queue, since]}} of those below the first queue.

    With the order of arrival and no promotion it is the Tiresias of Pollux's simulator (confirmed: equal to the second
    on its published run).
    """

    title: ClassVar[str] = "Tiresias: least served first"
    explanation: ClassVar[str] = (
        "Jobs that have used few GPU-hours so far go before those that have used many, which are stopped for them and "
        "restart from their checkpoint later. It needs no information about jobs, and short ones do not wait for long ones."
    )
    good_for: ClassVar[str] = "many short jobs among long ones of unknown length"
    needs: ClassVar[str] = "nothing; jobs that restart from a checkpoint"
    knows: ClassVar[Knows] = "nothing"

    threshold: float = param(
        57_600.0,
        "GPU-seconds in the first queue",
        "A job that has used this much moves to the second queue, behind all jobs of the first. 57600 are 16 GPU-hours.",
        minimum=1,
        maximum=1e9,
        group="Queues",
    )
    queues: int = param(
        2,
        "Queues",
        "The number of queues. Jobs never leave the last one.",
        minimum=1,
        maximum=10,
        group="Queues",
    )
    growth: float = param(
        4.0,
        "Growth of the threshold",
        "The threshold of each further queue is this many times the one before.",
        minimum=1.1,
        maximum=100,
        group="Queues",
    )
    knob: float = param(
        8.0,
        "Waiting that brings a job back",
        "A stopped job returns to the first queue when it has waited this many times as long as it has run, "
        "so that no job waits for ever. 0 means never.",
        minimum=0,
        maximum=1000,
        group="Queues",
    )
    rank: str = param(
        "start",
        "Order within a queue",
        "Which job of a queue goes first.",
        choices=[
            ("start", "the one that started first, so that few are stopped"),
            ("arrival", "the one that came to the queue first"),
            ("gittins", "the one that is likely to end soon, judging by jobs that have ended"),
        ],
    )
    elastic: bool = param(
        False,
        "Resize jobs",
        "Yes: idle GPUs go to the jobs that gain the most, and jobs of the lower queues shrink to their minimum when "
        "more than ten jobs wait. No: each job gets as many as it asked for.",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        promoted = self._promotions(snapshot)
        served = {job.id: job.served_gpu_seconds - promoted.get(job.id, (0.0, 0.0))[0] for job in snapshot.jobs}
        queue = {job.id: self._queue(served[job.id]) for job in snapshot.jobs}
        state: dict[str, Any] = {"promoted": promoted} if promoted else {}
        ranks: Mapping[JobId, float] = {}
        if self.rank == "gittins":
            state |= _history(snapshot)
            ranks = self._gittins(state["sizes"], served, queue)
        came: Mapping[JobId, Sequence[float]] = {}
        if self.rank == "arrival":
            came = _arrivals(snapshot, queue)
            state["came"] = {job: list(entry) for job, entry in came.items() if entry[0]}

        def place(job: Job) -> tuple[float, ...]:
            first = came[job.id][1] if came else _first_start(job)
            return -job.priority, queue[job.id], -ranks.get(job.id, 0.0), first, job.submitted_at

        order = sorted((job for job in snapshot.jobs if not job.stopping), key=lambda job: (*place(job), job.id))
        capacity = Capacity(snapshot)
        size = partial(_size, capacity=capacity)
        if self.elastic:
            wanted = _divide_gpus(snapshot, order, queue, capacity)
            order.sort(key=lambda job: job.id not in wanted)
        else:
            wanted, _ = admit_in_order(snapshot, order, size)
        for job in order:
            if job.waiting and not job.elastic:
                wanted.setdefault(job.id, size(job))  # a job that fits into a gap of the packing may start

        def short(job: Job, capacity: Capacity, ahead: int) -> Message:
            reason = reasons.shortage(job, capacity, ahead)
            return reasons.outserved(reason, job) if queue[job.id] else reason

        again_at = None
        if any(job.waiting for job in order):
            again_at = self._next_reordering(snapshot, served, queue, promoted, ranked=bool(ranks))
        return build_plan(snapshot, order, wanted, state=state, short=short, again_at=again_at)

    def _next_reordering(
        self,
        snapshot: Snapshot,
        served: Mapping[JobId, float],
        queue: Mapping[JobId, int],
        promoted: Mapping[JobId, Sequence[float]],
        *,
        ranked: bool,
    ) -> float | None:
        """Return when time alone will change the order next, at least a second from now: a running job leaves its queue
        or reaches its next Gittins rank, or a waiting one returns to the first queue."""
        moves = [
            (self.threshold * self.growth ** queue[job.id] - served[job.id]) / job.gpus
            for job in snapshot.jobs
            if job.running and job.preemptible and queue[job.id] < self.queues - 1
        ]
        if ranked:
            quanta = self._quanta()
            for job in snapshot.jobs:
                if job.running and job.preemptible:
                    step = quanta[min(queue[job.id], len(quanta) - 1)] / STEPS_PER_QUANTUM
                    moves.append((step - max(0.0, served[job.id]) % step) / job.gpus)
        if self.knob:
            for job in snapshot.jobs:
                if job.waiting and queue[job.id] and job.since is not None:
                    ran = max(job.run_seconds - promoted.get(job.id, (0.0, 0.0))[1], 0.0)
                    moves.append(job.since + self.knob * ran - snapshot.now)
        return snapshot.now + max(1.0, min(moves)) if moves else None

    def _quanta(self) -> Sequence[float]:
        """Return the GPU-seconds from the start of each queue to its end; the last one counts as long as the one before."""
        bounds = [self.threshold * self.growth**number for number in range(max(1, self.queues - 1))]
        return [after - before for before, after in zip([0.0, *bounds], bounds, strict=False)]

    def _queue(self, served: float) -> int:
        number, limit = 0, self.threshold
        while number < self.queues - 1 and served >= limit:
            number, limit = number + 1, limit * self.growth
        return number

    def _promotions(self, snapshot: Snapshot) -> dict[JobId, list[float]]:
        before: Mapping[JobId, Sequence[float]] = snapshot.state.get("promoted", {})
        promoted: dict[JobId, list[float]] = {}
        for job in snapshot.jobs:
            served, run = before.get(job.id, (0.0, 0.0))
            lower = self._queue(job.served_gpu_seconds - served) > 0
            if self.knob and lower and job.waiting and job.since is not None:
                ran = max(job.run_seconds - run, 0.0)
                if snapshot.now - job.since >= self.knob * ran:
                    served, run = job.served_gpu_seconds, job.run_seconds
            if served:
                promoted[job.id] = [served, run]
        return promoted

    def _gittins(
        self, sizes: Sequence[float], served: Mapping[JobId, float], queue: Mapping[JobId, int]
    ) -> Mapping[JobId, float]:
        """Return the Gittins ranks: P(job ends within the quantum of its queue) / expected time, given its service."""
        if len(sizes) < MIN_HISTORY:
            return {}
        ordered = np.sort(np.asarray(sizes, dtype=float))
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        quanta = np.asarray(self._quanta())
        number = np.minimum(np.fromiter(queue.values(), dtype=int), len(quanta) - 1)
        quantum = quanta[number]
        age = np.fromiter((max(0.0, served[job]) for job in queue), dtype=float)
        age = np.floor(age / quantum * STEPS_PER_QUANTUM) * quantum / STEPS_PER_QUANTUM
        outlived = np.searchsorted(ordered, age, side="right")
        ending = np.searchsorted(ordered, age + quantum, side="right")
        ends = ending - outlived
        takes = sums[ending] - sums[outlived] - age * ends + quantum * (len(ordered) - ending)
        ranks = np.divide(ends, takes, out=np.zeros(len(age)), where=takes > 0)
        return dict(zip(queue, ranks.tolist(), strict=True))


def _size(job: Job, capacity: Capacity) -> int:
    """Return the size of a job, all or nothing; a running job that cannot be resized keeps its size."""
    return _asked_size(job, capacity) if _can_change_size(job) else job.gpus


def _asked_size(job: Job, capacity: Capacity) -> int:
    """Return the size that a job asked for, as far as its limits and the open nodes allow it."""
    return max(job.min_gpus, min(job.asked, job.max_gpus, capacity.ceiling(job)))


def _first_start(job: Job) -> float:
    first = job.first_started_at if job.first_started_at is not None else job.started_at
    return float("inf") if first is None else first


def _arrivals(snapshot: Snapshot, queue: Mapping[JobId, int]) -> Mapping[JobId, Sequence[float]]:
    """Return, by job, its queue and since when it is there."""
    before: Mapping[JobId, Sequence[float]] = snapshot.state.get("came", {})
    came: dict[JobId, Sequence[float]] = {}
    for job in snapshot.jobs:
        number, since = before.get(job.id, (0, job.submitted_at))
        came[job.id] = (number, since) if number == queue[job.id] else (queue[job.id], snapshot.now)
    return came


def _history(snapshot: Snapshot) -> dict[str, Any]:
    here = {job.id for job in snapshot.jobs}
    seen: Mapping[JobId, float] = snapshot.state.get("seen", {})
    ended = [served for job, served in sorted(seen.items()) if job not in here and served > 0]
    sizes = [*snapshot.state.get("sizes", []), *ended][-MAX_HISTORY:]
    return {"seen": {job.id: job.served_gpu_seconds for job in snapshot.jobs}, "sizes": sizes}


def _divide_gpus(
    snapshot: Snapshot, order: Sequence[Job], queue: Mapping[JobId, int], capacity: Capacity
) -> dict[JobId, int]:
    """Divide the GPUs by EDL: sizes asked for in order, compaction when many wait, then the rest by the largest gain.

    Which jobs are in does not depend on which run already, so that no job is stopped for its current size.
    """

    size = partial(_size, capacity=capacity)
    inside, _ = admit_in_order(
        snapshot, order, lambda job: _asked_size(job, capacity) if job.preemptible else size(job)
    )
    members = [job for job in order if job.id in inside]
    members.sort(key=_can_change_size)
    wanted, ledger = admit_in_order(snapshot, members, size)
    others = [job for job in order if job.id not in wanted and (job.running or not reasons.impossible(job, ledger))]
    if len(others) > COMPACTION_THRESHOLD:
        for job in members:
            if wanted.get(job.id, 0) > job.min_gpus and queue[job.id] and _can_change_size(job):
                _shrink(job, job.min_gpus, ledger)
                wanted[job.id] = ledger.count(job)
    known = [*(job for job in members if job.id in wanted), *others]
    heap = [(-_gain(job, wanted.get(job.id, 0)), number) for number, job in enumerate(known)]
    heapq.heapify(heap)
    while heap:
        gain, number = heapq.heappop(heap)
        job = known[number]
        if gain >= 0:
            break
        if job.id not in wanted:
            where = ledger.fit(job, job.min_gpus if _can_change_size(job) else job.gpus)
            if where is None:
                continue
            ledger.give(job, where)
        elif not ledger.grow(job):
            continue
        wanted[job.id] = ledger.count(job)
        heapq.heappush(heap, (-_gain(job, wanted[job.id]), number))
    return wanted


def _can_change_size(job: Job) -> bool:
    return job.elastic or not job.running


def _gain(job: Job, count: int) -> float:
    """Return the gain of one more GPU; for a job without any, the gain per GPU of its minimum."""
    if not count:
        return estimates.speed(job, job.min_gpus) / job.min_gpus
    if count >= job.max_gpus or not _can_change_size(job) or job.blocked:
        return 0.0
    return estimates.speed(job, count + 1) - estimates.speed(job, count)


def _shrink(job: Job, count: int, ledger: Capacity) -> None:
    """Shrink a job to ``count`` GPUs: a preemptible one anywhere, another one outside its base."""
    held = ledger.held[job.id]
    if (job.preemptible or job.waiting) and ledger.nodes.keys() >= held.keys():
        ledger.give(job, placement.place(ledger.evict(job), count, spread=True) or held)
    while ledger.count(job) > count and ledger.spare(job):
        ledger.ask_back(job)
