"""Everybody's minimum first, in order; then what is left, one GPU at a time."""

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduling import placement, reasons
from scheduling.capacity import Capacity, in_turn, queue
from scheduling.params import param
from scheduling.realise import minus, part, shrink_to, start
from scheduling.types import Job, JobId, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class ElasticFifo:
    """Decides in a ledger of what is *coming* (free, leaving, or spare of elastic jobs), acts on what is free now.

    Running jobs are asked for GPUs only on behalf of waiting ones, and only for what is neither free nor coming,
    so that an unchanged world comes to rest. ``state`` is {"wish": {job: since}} of jobs that could grow.
    """

    title: ClassVar[str] = "Elastic first come, first served"
    explanation: ClassVar[str] = (
        "Elastic jobs grow into idle GPUs and shrink, down to their least, as soon as others wait. "
        "Every job gets its least in the order they came; what is left is shared evenly, oldest first."
    )

    strict: bool = param(
        False,
        "Strictly in order",
        "Yes: when the first job of the queue cannot even get its least, all behind it wait. "
        "No: jobs behind it may start first, so that fewer GPUs stand idle.",
    )
    grow_after_seconds: int = param(
        10,
        "Seconds before a running job grows",
        "A running job takes more GPUs only after they have been left over for this long, because each change "
        "interrupts it for some seconds. 0 means at once.",
        least=0,
        most=3600,
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        later = Capacity(snapshot, coming=True)
        running = in_turn(job for job in snapshot.jobs if job.running)
        why: dict[JobId, str] = {}
        served: list[Job] = []
        line: list[Job] = []
        vain: set[Hashable] = set()
        for job in queue(snapshot):
            if alone := reasons.impossible(job, later):
                why[job.id] = alone
            elif self.strict and line:
                line.append(job)
            elif later.terms(job) not in vain and (roomier := _with_least_for(job, later, running)):
                later = roomier
                served.append(job)
            else:
                vain.add(later.terms(job))  # the ledger only gets tighter: no use in trying the like of it again
                if alone := _limited(job, later, running):
                    why[job.id] = alone
                else:
                    line.append(job)
        _share_rest(later, served, running)

        now = Capacity(snapshot)
        shrink_to(now, later, running)
        for job in served:
            if missing := start(job, now, later.held[job.id]):
                why[job.id] = reasons.promised(missing)
        wish = self._grow(snapshot, now, later, running)
        for ahead, job in enumerate(line):
            if self.strict and ahead:
                why[job.id] = reasons.in_line(line[0], ahead)
            else:
                why[job.id] = reasons.shortage(job, now, ahead)
        return Plan(now.held, why, {"wish": wish})

    def _grow(
        self, snapshot: Snapshot, now: Capacity, later: Capacity, running: Sequence[Job]
    ) -> Mapping[JobId, float]:
        """Gives running jobs what was left over long enough; returns since when the others could have grown."""
        before: Mapping[JobId, float] = snapshot.state.get("wish", {})
        wish: dict[JobId, float] = {}
        for job in running:
            more = part(minus(later.held[job.id], job.now_on), now, job)
            if not more:
                continue
            since = before.get(job.id, snapshot.now)
            if snapshot.now - since < self.grow_after_seconds:
                wish[job.id] = since
            else:
                now.give(job, more)
        return wish


def _with_least_for(job: Job, later: Capacity, running: Sequence[Job]) -> Capacity | None:
    """A ledger in which ``job`` has its least, taken from spare GPUs of running jobs if need be; None if it cannot."""
    draft = later.copy()
    for limit, room in later.limits_of(job):
        for _ in range(job.min_gpus - room):
            donor = _richest([other for other in running if other.id in limit.jobs], draft)
            if donor is None:
                return None
            draft.ask_back(donor)
    where = draft.fit(job, job.min_gpus)
    if where is None:
        spare = {node: sum(draft.spare(other, node) for other in running) for node in draft.free_for(job)}
        possible = {node: free + spare[node] for node, free in draft.free_for(job).items()}
        where = placement.place(possible, job.min_gpus, spread=job.spread)
    for node, gpus in (where or {}).items():
        while draft.free[node] < gpus:
            donor = _richest(running, draft, node)
            if donor is None:
                return None
            draft.ask_back(donor, node)
    if where is None:
        return None
    draft.give(job, where)
    return draft


def _limited(job: Job, later: Capacity, running: Sequence[Job]) -> str:
    """The limit that keeps it waiting even when all spare GPUs are given back.

    What running jobs have beyond their least must not decide this: it changes because of what is decided here.
    """
    reason = reasons.limited(job, later)
    if not reason:
        return ""
    bottom = later.copy()
    for other in running:
        for _ in range(bottom.spare(other)):
            bottom.ask_back(other)
    return reason if reasons.limited(job, bottom) else ""


def _richest(running: Sequence[Job], ledger: Capacity, node: str | None = None) -> Job | None:
    """Who gives next: the job furthest above its least; among equals the one whose turn came last."""
    donors = [job for job in running if ledger.spare(job, node)]
    return max(donors, key=lambda job: (_extra(job, ledger), job.turn)) if donors else None


def _extra(job: Job, ledger: Capacity) -> int:
    return ledger.count(job) - job.min_gpus


def _share_rest(later: Capacity, served: Sequence[Job], running: Sequence[Job]) -> None:
    """What is left goes, one GPU at a time, to whoever is least above its least, oldest first.

    A newcomer, or a job that lost a part and is below its least, also takes from a running job that has at least
    two more extra GPUs than itself.
    """
    newcomers = {job.id for job in served}
    growing = [job for job in running if job.elastic and not job.blocked and later.count(job) >= job.gpus]
    heap = [(_extra(job, later), job.turn, job) for job in (*served, *growing) if later.count(job) < job.max_gpus]
    heapq.heapify(heap)
    while heap:
        extra, turn, job = heapq.heappop(heap)
        if job.id not in newcomers and later.count(job) < job.gpus:
            continue  # it has just given to a newcomer
        takes = job.id in newcomers or extra < 0
        if not later.grow(job) and not (takes and _take_from_richer(job, later, running)):
            continue
        if later.count(job) < job.max_gpus:
            heapq.heappush(heap, (extra + 1, turn, job))


def _take_from_richer(job: Job, later: Capacity, running: Sequence[Job]) -> bool:
    if not later.room(job):
        return False
    home = later.held[job.id]
    usable = later.free_for(job)
    for node in sorted(usable, key=lambda node: (-home.get(node, 0), node)):
        donor = _richest(running, later, node) if node in home or job.spread else None
        if donor is not None and _extra(donor, later) >= _extra(job, later) + 2:
            later.ask_back(donor, node)
            later.give(job, {node: 1})
            return True
    return False
