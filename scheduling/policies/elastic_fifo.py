"""Elastic FIFO: first the minimum of each job, in order; then the remaining GPUs, one at a time."""

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import estimates, placement, reasons
from scheduling.toolkit.capacity import Capacity, in_queue_order, queue
from scheduling.toolkit.levels import Levels
from scheduling.toolkit.placement import minus
from scheduling.toolkit.plan_builder import available_part, shrink_to, start
from scheduling.types import Job, JobId, Knows, Limit, NodeId, Placement, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class ElasticFifo:
    """Elastic FIFO. It decides in a ledger of *coming* GPUs (free, leaving, or spare), and acts on those free now.

    Running jobs are asked for GPUs only for waiting ones, and only for GPUs that are neither free nor coming, so that
    an unchanged cluster comes to rest. ``state`` is {"wish": {job: since}} of jobs that could grow.
    """

    title: ClassVar[str] = "Elastic first come, first served"
    explanation: ClassVar[str] = (
        "Elastic jobs grow into idle GPUs, and shrink down to their minimum as soon as others wait. "
        "Every job gets its minimum in the order of submission; the remaining GPUs are shared evenly, oldest job first."
    )
    good_for: ClassVar[str] = "using idle GPUs, and making room for new jobs"
    needs: ClassVar[str] = "nothing; the gain of more GPUs, where it is known"
    knows: ClassVar[Knows] = "speeds"

    strict: bool = param(
        False,
        "Strictly in order",
        "Yes: when the first job of the queue cannot get even its minimum, all jobs behind it wait. "
        "No: jobs behind it may start first, so that fewer GPUs are idle.",
    )
    grow_after_seconds: int = param(
        10,
        "Seconds before a running job grows",
        "A running job takes more GPUs only after they have been idle for this long, because each change "
        "interrupts it for some seconds. 0 means at once.",
        minimum=0,
        maximum=3600,
    )

    up_to: str = param(
        "asked",
        "How far jobs grow",
        "Growing beyond the size asked for keeps idle GPUs busy, but gains little where jobs scale badly.",
        choices=[("asked", "to the size asked for"), ("most", "to their maximum")],
    )
    least_gain: float = param(
        0.05,
        "Minimum gain of a GPU",
        "A job grows only as long as each additional GPU makes it faster by at least this fraction of one GPU, "
        "where its speed was measured.",
        minimum=0,
        maximum=1,
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        later = Capacity(snapshot, coming=True)
        running = in_queue_order(job for job in snapshot.jobs if job.running)
        spares = SpareGpus(later, running)
        why: dict[JobId, Message] = {}
        served: list[Job] = []
        line: list[Job] = []
        unfit: set[Hashable] = set()
        for job in queue(snapshot):
            if alone := reasons.impossible(job, later):
                why[job.id] = alone
            elif self.strict and line:
                line.append(job)
            elif later.fit_key(job) not in unfit and _give_minimum(job, spares):
                served.append(job)
            else:
                unfit.add(later.fit_key(job))  # the ledger only gets tighter, so similar jobs do not fit either
                if alone := _limit_that_blocks(job, spares):
                    why[job.id] = alone
                else:
                    line.append(job)
        self._share_rest(spares, served, running)

        now = Capacity(snapshot)
        shrink_to(now, later, running)
        for job in served:
            if missing := start(job, now, later.held[job.id]):
                why[job.id] = reasons.awaiting(job, now, missing)
        wish = self._grow(snapshot, now, later, running)
        for ahead, job in enumerate(line):
            if self.strict and ahead:
                why[job.id] = reasons.in_line(line[0], ahead)
            else:
                why[job.id] = reasons.shortage(job, now, ahead)
        again_at = min(wish.values()) + self.grow_after_seconds if wish else None
        return Plan(now.held, why, {"wish": wish}, again_at=again_at)

    def _grow(
        self, snapshot: Snapshot, now: Capacity, later: Capacity, running: Sequence[Job]
    ) -> Mapping[JobId, float]:
        """Give running jobs what was idle for long enough; return since when the others could have grown."""
        before: Mapping[JobId, float] = snapshot.state.get("wish", {})
        wish: dict[JobId, float] = {}
        for job in running:
            more = available_part(minus(later.held[job.id], job.now_on), now, job)
            if not more:
                continue
            since = before.get(job.id, snapshot.now)
            if snapshot.now - since < self.grow_after_seconds:
                wish[job.id] = since
            else:
                now.give(job, more)
        return wish

    def _share_rest(self, spares: "SpareGpus", served: Sequence[Job], running: Sequence[Job]) -> None:
        """Share the remaining GPUs one at a time: the job that is the least above its minimum is next, oldest first.

        A new job, or one that lost GPUs and is below its minimum, also takes GPUs from a running job that has at least
        two more extra GPUs.
        """
        later = spares.ledger
        new_jobs = {job.id for job in served}
        growing = [job for job in running if job.elastic and not job.blocked and later.count(job) >= job.gpus]
        maximum = {job.id: self._max_gpus(job) for job in (*served, *growing)}
        heap = [
            (_gpus_above_minimum(job, later), job.queue_key, job)
            for job in (*served, *growing)
            if later.count(job) < maximum[job.id]
        ]
        heapq.heapify(heap)
        while heap:
            extra, queue_key, job = heapq.heappop(heap)
            if job.id not in new_jobs and later.count(job) < job.gpus:
                continue  # it has just given to a new job
            takes = job.id in new_jobs or extra < 0
            if not spares.grow(job) and not (takes and _take_from_donor(job, spares)):
                continue
            if later.count(job) < maximum[job.id]:
                heapq.heappush(heap, (extra + 1, queue_key, job))

    def _max_gpus(self, job: Job) -> int:
        """Return the size at which a job stops growing: its maximum, or the largest worthwhile size."""
        maximum = job.asked if self.up_to == "asked" else job.max_gpus
        known = estimates.curve(job)
        if known is not None and known.speeds and self.least_gain:
            steps = estimates.steps(job, job.min_gpus, job.min_gpus, job.max_gpus)
            worthwhile = max((size for size, gain in steps if gain >= self.least_gain), default=job.min_gpus)
            maximum = min(maximum, worthwhile)
        return max(maximum, job.min_gpus)


class SpareGpus:
    """The GPUs that running jobs could release, kept up to date with the ledger of coming GPUs."""

    def __init__(self, ledger: Capacity, running: Sequence[Job]) -> None:
        self.ledger = ledger
        self._on: dict[NodeId, list[Job]] = {}
        self._of: dict[str, int] = {limit.name: 0 for limit in ledger.limits}
        self._spare: dict[JobId, int] = {}
        self._parts: dict[tuple[JobId, NodeId], int] = {}
        on_node = dict.fromkeys(ledger.free, 0)
        extras: dict[str, int] = {}
        self._donors: dict[str, Job] = {}
        self._key: dict[JobId, str] = {}
        for number, job in enumerate(reversed(running)):
            if not (spare := ledger.spare(job)):
                continue
            self._spare[job.id] = spare
            key = self._key[job.id] = f"{number:09}"
            self._donors[key], extras[key] = job, _gpus_above_minimum(job, ledger)
            for limit, _ in ledger.limits_of(job):
                self._of[limit.name] += spare
            for node in job.now_on:
                if node in on_node:
                    self._on.setdefault(node, []).append(job)
                    self._parts[job.id, node] = ledger.spare(job, node)
                    on_node[node] += self._parts[job.id, node]
        self.possible = Levels({node: free + on_node[node] for node, free in ledger.free.items()})
        """Free GPUs of each node plus those that jobs there could release."""
        self._extras = Levels(extras)
        """By how much each job that can release GPUs is above its minimum; the last in the queue has the smallest key."""

    def releasable_under(self, limit: Limit) -> int:
        """Return the GPUs that the jobs under a limit could release together."""
        return self._of[limit.name]

    def next_donor(self, node: NodeId | None = None, limit: Limit | None = None) -> Job | None:
        """Return the next job to release GPUs: the furthest above its minimum; among equals the last in the queue."""
        if node is not None:
            donors = [job for job in self._on.get(node, ()) if self._parts[job.id, node]]
            return max(donors, key=lambda job: (_gpus_above_minimum(job, self.ledger), job.queue_key), default=None)
        return next((job for job in self.donors(1) if limit is None or job.id in limit.jobs), None)

    def donors(self, extra: int) -> Iterator[Job]:
        """Yield the jobs that can release GPUs and are at least ``extra`` above their minimum, the furthest first."""
        for key in self._extras.fullest():
            if self._extras[key] < extra:
                return
            yield self._donors[key]

    def take(self, job: Job, node: NodeId | None = None) -> NodeId:
        taken = self.ledger.ask_back(job, node)
        self._update_job(job)
        if taken in self.possible:
            self._update_node(taken)
        return taken

    def undo_take(self, job: Job, node: NodeId) -> None:
        """Undo ``take``."""
        self.ledger.undo_ask_back(job, node)
        self._update_job(job)

    def give(self, job: Job, where: Placement) -> None:
        self.ledger.give(job, where)
        self._update_job(job)
        for node in where:
            self._update_node(node)

    def grow(self, job: Job) -> bool:
        before = self.ledger.held[job.id]
        grown = self.ledger.grow(job)
        if grown:
            self._update_job(job)
            for node, gpus in self.ledger.held[job.id].items():
                if gpus != before.get(node, 0):
                    self._update_node(node)
        return grown

    def _update_job(self, job: Job) -> None:
        if job.id not in self._spare:
            return
        spare = self.ledger.spare(job)
        for limit, _ in self.ledger.limits_of(job):
            self._of[limit.name] += spare - self._spare[job.id]
        self._spare[job.id] = spare
        self._extras[self._key[job.id]] = _gpus_above_minimum(job, self.ledger) if spare else 0
        for node in job.now_on:
            if node in self.possible:
                self._parts[job.id, node] = self.ledger.spare(job, node)
                self._update_node(node)

    def _update_node(self, node: NodeId) -> None:
        spare = sum(self._parts[job.id, node] for job in self._on.get(node, ()))
        self.possible[node] = self.ledger.free[node] + spare


def _give_minimum(job: Job, spares: SpareGpus) -> bool:
    """Give ``job`` its minimum, also from spare GPUs of running jobs. Return False, with no change, if impossible."""
    taken: list[tuple[Job, NodeId]] = []
    where = _room_for(job, spares, taken)
    if where is None:
        for donor, node in reversed(taken):
            spares.undo_take(donor, node)
        return False
    spares.give(job, where)
    return True


def _room_for(job: Job, spares: SpareGpus, taken: list[tuple[Job, NodeId]]) -> Placement | None:
    later = spares.ledger
    for limit, room in later.limits_of(job):
        for _ in range(job.min_gpus - room):
            donor = spares.next_donor(limit=limit)
            if donor is None:
                return None
            taken.append((donor, spares.take(donor)))
    where = later.fit(job, job.min_gpus)
    if where is None:
        allowed = later.scope(job).allowed
        where = placement.place(spares.possible, job.min_gpus, spread=job.spread, allowed=allowed)
    for node, gpus in (where or {}).items():
        while later.levels(job)[node] < gpus:
            donor = spares.next_donor(node)
            if donor is None:
                return None
            taken.append((donor, spares.take(donor, node)))
    return where


def _limit_that_blocks(job: Job, spares: SpareGpus) -> Message | None:
    """Return the limit that keeps a job waiting even when all spare GPUs are released, or None.

    GPUs of running jobs above their minimum must not matter here: they change with this very decision.
    """
    limits = spares.ledger.limits_of(job)
    short = any(job.min_gpus > room + spares.releasable_under(limit) for limit, room in limits)
    return reasons.limited(job, spares.ledger) if short else None


def _gpus_above_minimum(job: Job, ledger: Capacity) -> int:
    return ledger.count(job) - job.min_gpus


def _take_from_donor(job: Job, spares: SpareGpus) -> bool:
    later = spares.ledger
    if not later.room(job):
        return False
    home = later.held[job.id]
    allowed = later.scope(job).allowed
    enough = _gpus_above_minimum(job, later) + 2
    for node in sorted(home, key=lambda node: (-home[node], node)):
        if node in later.free and (allowed is None or node in allowed):
            donor = spares.next_donor(node)
            able = donor is not None and _gpus_above_minimum(donor, later) >= enough
            if donor is not None and able and _take_and_give(donor, job, node, spares):
                return True
    if not job.spread:
        return False
    for donor in spares.donors(enough):
        held = later.held[donor.id]
        usable = {node: held[node] for node in held if node in later.free and (allowed is None or node in allowed)}
        there = placement.node_to_shrink_on(usable, donor.base)
        if there is not None and _take_and_give(donor, job, there, spares):
            return True
    return False


def _take_and_give(donor: Job, job: Job, node: NodeId, spares: SpareGpus) -> bool:
    """Move a GPU from one job to another, unless the other needs more of the node's processors or memory than are left."""
    spares.take(donor, node)
    if spares.ledger.levels(job)[node] < 1:
        spares.undo_take(donor, node)
        return False
    spares.give(job, {node: 1})
    return True
