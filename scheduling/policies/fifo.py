"""First come, first served; with EASY backfilling (Lifka 1995) as an option.

The option is a reconstruction of the published rule: the first job that does not fit is promised the earliest start
that the estimated ends of the running ones allow, and another may overtake it only if that does not delay this start.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import placement, reasons
from scheduling.toolkit.backfill import expected_seconds
from scheduling.toolkit.capacity import Capacity, queue
from scheduling.toolkit.levels import Levels
from scheduling.types import Job, JobId, Knows, Placement, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class Fifo:
    title: ClassVar[str] = "First come, first served"
    explanation: ClassVar[str] = (
        "Jobs start in the order of submission, higher priority first, and keep their GPUs until they end. "
        "Easy to predict; a large job at the head of the queue may leave GPUs idle."
    )
    good_for: ClassVar[str] = "a small lab that wants to predict which job is next"
    needs: ClassVar[str] = "nothing"
    knows: ClassVar[Knows] = "nothing"

    strict: bool = param(
        True,
        "Strictly in order",
        "Yes: when the first job of the queue does not fit, all jobs behind it wait, so that large jobs get their turn. "
        "No: jobs behind it may start first, so that fewer GPUs are idle.",
    )
    size: str = param(
        "most",
        "GPUs at the start",
        "How many GPUs a job that asked for a range gets when it starts.",
        choices=[("most", "as many as are free, up to its maximum"), ("least", "its minimum")],
    )

    backfill: bool = param(
        False,
        "Fill gaps",
        "Only where jobs start strictly in order. Yes: a job behind the first may start if, by its time limit or its "
        "estimated length, it will have ended when the first can start, or if the first does not need those GPUs.",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        capacity = Capacity(snapshot)
        why: dict[JobId, Message] = {}
        line: list[Job] = []
        started: list[Job] = []
        promise: PromisedStart | None = None
        for job in queue(snapshot):
            maximum = job.max_gpus if self.size == "most" else job.min_gpus
            if alone := reasons.impossible(job, capacity) or reasons.limited(job, capacity):
                why[job.id] = alone  # this job does not hold up the others
            elif self.strict and line:
                if promise is not None and promise.start_if_harmless(job, maximum):
                    continue
                why[job.id] = promise.reason(len(line)) if promise else reasons.in_line(line[0], len(line))
                line.append(job)
            elif where := capacity.best_fit(job, maximum):
                capacity.give(job, where)
                started.append(job)
            else:
                why[job.id] = reasons.shortage(job, capacity, len(line))
                line.append(job)
                if self.strict and self.backfill:
                    running = [other for other in snapshot.jobs if other.running]
                    promise = PromisedStart(snapshot.now, job, capacity, [*running, *started])
        return Plan(capacity.held, why)


class PromisedStart:
    """The time and the nodes of the start of the first job of the queue, if the others end as expected."""

    def __init__(self, now: float, first: Job, capacity: Capacity, holders: Iterable[Job]) -> None:
        self.now = now
        self.first = first
        self.capacity = capacity
        self.at = float("inf")
        then = capacity.when_released()
        allowed = capacity.scope(first).allowed
        where: Placement | None = None
        known = {job.id: job for job in holders}
        ends = sorted(
            (now + expected_seconds(job, capacity.count(job), now, guess=True), job.id) for job in known.values()
        )
        for end, job in [(now, ""), *ends]:
            if job in then.held:
                then.evict(known[job])
            where = placement.place(then.levels(first), first.min_gpus, spread=first.spread, allowed=allowed)
            if where is not None:
                self.at = end
                break
        then.reserve(where or {}, first)
        self.then = then
        """What the first job will not need when it starts."""
        self.room = Levels({node: min(free, then.free[node]) for node, free in capacity.free.items()})
        """The GPUs that are free now and not needed then."""

    def start_if_harmless(self, job: Job, maximum: int) -> bool:
        """Start ``job`` if that does not delay the first; return whether it started."""
        where = self.capacity.best_fit(job, maximum)
        if where is not None and self.now + expected_seconds(job, placement.total(where), self.now) <= self.at:
            self._give(job, where)
            return True
        scope = self.capacity.scope(job).allowed
        room = self._room_for(job)
        here = room.sum_of(scope) if job.spread else next((room[node] for node in room.fullest(scope)), 0)
        count = min(maximum, here, self.capacity.room(job))
        where = placement.place(room, count, spread=job.spread, allowed=scope) if count >= job.min_gpus else None
        if where is None:
            return False
        self.then.reserve(where, job)
        self._give(job, where)
        return True

    def _room_for(self, job: Job) -> Levels:
        """Return the GPUs that the job could take now and that are not needed then."""
        if self.capacity.resources is None:
            return self.room
        now, then = self.capacity.levels(job), self.then.levels(job)
        return Levels({node: min(free, then[node]) for node, free in now.items()})

    def _give(self, job: Job, where: Placement) -> None:
        self.capacity.give(job, where)
        for node in where:
            self.room[node] = min(self.capacity.free[node], self.then.free[node])

    def reason(self, ahead: int) -> Message:
        seconds = None if self.at == float("inf") else self.at - self.now
        return reasons.would_hold_up(self.first, ahead, seconds)
