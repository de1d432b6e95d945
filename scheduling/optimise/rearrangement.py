"""Computes placements for new counts that move the fewest workers.

Confirmed from Voda's placement manager: best fit of all jobs on blank nodes, larger ones first, then the blank nodes are
given the names of real ones so that the most workers stay where they are (a maximum-weight assignment). Corrected here:
the second piece of a split job gets what is left of it and not the whole again, blank and real nodes are exchanged only
when they are alike (kind and GPUs), and a job counts once, in however many pieces it is.

Different on purpose: a job that keeps its count keeps its place, so blank nodes are a second try, for when that leaves
a job out or spread over more nodes than necessary.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from scheduling.renamed import renamed
from scheduling.toolkit import placement
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.placement import minus
from scheduling.types import Job, JobId, NodeId, Placement, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"choose": "rearrange_if_better"})

MAX_REPACKED_NODES = 2_000
"""The largest number of nodes that are repacked at once: the time of the assignment grows with their cube."""

Kinds = Mapping[JobId, str]


def rearrange(
    snapshot: Snapshot, order: Sequence[Job], wanted: Mapping[JobId, int], kinds: Kinds | None = None
) -> dict[JobId, Placement]:
    """Return the target placement of each job, for when all GPUs that are asked back are free.

    ``order`` has every running and waiting job, the most deserving first; ``kinds`` has the kind of node for the new GPUs
    of a job. No job is stopped or shrunk if no other one gets its GPUs. A job that fits only with fewer GPUs than wanted
    gets fewer, but at least its minimum.
    """
    first = _Draft(snapshot, order, wanted, kinds or {})
    first.place_jobs()
    if first.short or first.torn:
        second = _Draft(snapshot, order, wanted, kinds or {})
        if second.repack(first) and second.is_better_than(first):
            return second.finish()
    return first.finish()


def rearrange_if_better(
    snapshot: Snapshot,
    order: Sequence[Job],
    wanted: Mapping[JobId, int],
    value_of: Callable[[Mapping[JobId, Placement]], float],
    kinds: Kinds | None = None,
) -> dict[JobId, Placement]:
    """Return the result of ``rearrange``, unless leaving the running jobs as they are has at least the same value.

    Counts that look better may not fit on the actual nodes. A change that does not pay off with its actual placements
    would be undone by the next decision, and made again by the one after.
    """
    target = rearrange(snapshot, order, wanted, kinds)
    if all(target.get(job.id) == job.now_on for job in order if job.running):
        return target
    kept = {**wanted, **{job.id: job.gpus for job in order if job.running}}
    homes = {job.id: kinds[job.id] for job in order if kinds and job.waiting and job.id in kinds}
    stay = rearrange(snapshot, order, _within_limits(snapshot, order, kept), homes)
    return target if value_of(target) > value_of(stay) else stay


def _within_limits(snapshot: Snapshot, order: Sequence[Job], wanted: Mapping[JobId, int]) -> dict[JobId, int]:
    """Return ``wanted`` without the waiting jobs for which limits leave no room next to the running jobs."""
    kept = {job.id: wanted.get(job.id, 0) for job in order if job.running}
    headroom = [
        limit.max_gpus - limit.elsewhere - sum(kept.get(id, 0) for id in limit.jobs) for limit in snapshot.limits
    ]
    for job in order:
        count = wanted.get(job.id, 0) if job.waiting else 0
        under = [index for index, limit in enumerate(snapshot.limits) if count and job.id in limit.jobs]
        if count and all(count <= headroom[index] for index in under):
            kept[job.id] = count
            for index in under:
                headroom[index] -= count
    return kept


class Bins:
    """The free GPUs of nodes, with an index that finds the tightest fit without looking at every node."""

    def __init__(self, room: Mapping[NodeId, int], kind: Mapping[NodeId, str]) -> None:
        self.room = dict(room)
        self.kind = kind
        self._heaps: dict[tuple[int, str], list[NodeId]] = defaultdict(list)
        for node, free in self.room.items():
            if free > 0:
                self._heaps[free, kind[node]].append(node)
        for heap in self._heaps.values():
            heapify(heap)

    def take(self, node: NodeId, gpus: int) -> None:
        self.room[node] -= gpus
        if self.room[node] > 0:
            heappush(self._heaps[self.room[node], self.kind[node]], node)

    def tightest(self, count: int, allowed: frozenset[NodeId] | None, kind: str | None) -> NodeId | None:
        """Return the node with the smallest room that is enough; the smaller id among equals."""
        if allowed is not None:
            roomy = [node for node in allowed if self.room.get(node, 0) >= count and self._has_kind(node, kind)]
            return min(roomy, key=lambda node: (self.room[node], node)) if roomy else None
        return min(self._smallest_nodes(kind, lambda free: free >= count), default=(0, None))[1]

    def emptiest(self, allowed: frozenset[NodeId] | None, kind: str | None) -> NodeId | None:
        if allowed is not None:
            some = [node for node in allowed if self.room.get(node, 0) > 0 and self._has_kind(node, kind)]
            return min(some, key=lambda node: (-self.room[node], node)) if some else None
        return min(((-free, node) for free, node in self._smallest_nodes(kind, bool)), default=(0, None))[1]

    def _has_kind(self, node: NodeId, kind: str | None) -> bool:
        return kind is None or self.kind[node] == kind

    def _smallest_nodes(self, kind: str | None, enough: Any) -> Iterable[tuple[int, NodeId]]:
        for (free, of), heap in self._heaps.items():
            if enough(free) and kind in (None, of):
                while heap and self.room[heap[0]] != free:
                    heappop(heap)
                if heap:
                    yield free, heap[0]


def best_fit(
    bins: Bins, count: int, *, spread: bool, allowed: frozenset[NodeId] | None = None, kind: str | None = None
) -> Placement | None:
    """Take ``count`` GPUs: of the tightest node that has them all, or else of the emptiest and the tightest for the rest."""
    where: dict[NodeId, int] = {}
    left = count
    while left:
        node = bins.tightest(left, allowed, kind)
        if node is None:
            node = bins.emptiest(allowed, kind) if spread else None
        if node is None:
            for taken, gpus in where.items():
                bins.take(taken, -gpus)
            return None
        where[node] = min(left, bins.room[node])
        bins.take(node, where[node])
        left -= where[node]
    return where


def relabel(
    blank: Mapping[JobId, Placement], now: Mapping[JobId, Placement], alike: Iterable[Sequence[NodeId]]
) -> dict[JobId, Placement]:
    """Rename nodes within each group of ``alike`` ones so that as many workers as possible stay where they are."""
    on_real: dict[NodeId, dict[JobId, int]] = defaultdict(dict)
    for job, where in now.items():
        for node, gpus in where.items():
            on_real[node][job] = gpus
    name: dict[NodeId, NodeId] = {}
    for group in alike:
        rows = {node: row for row, node in enumerate(group)}
        stay = np.zeros((len(group), len(group)))
        for column, real in enumerate(group):
            for job, gpus in on_real[real].items():
                for node, there in blank.get(job, {}).items():
                    if node in rows:
                        stay[rows[node], column] += min(gpus, there)
        for row, column in zip(*linear_sum_assignment(stay, maximize=True), strict=True):
            name[group[row]] = group[column]
    return {job: {name.get(node, node): gpus for node, gpus in where.items()} for job, where in blank.items()}


class _Draft:
    """One attempt to place all jobs: ``place`` has their placements, ``bins`` the remaining GPUs."""

    def __init__(self, snapshot: Snapshot, order: Sequence[Job], wanted: Mapping[JobId, int], kinds: Kinds) -> None:
        self.order, self.wanted, self.kinds = order, wanted, kinds
        self.later = Capacity(snapshot, coming=True)
        self.kind = {node.id: node.kind for node in self.later.nodes.values()}
        self.largest: dict[str | None, int] = defaultdict(int)
        for node in self.later.nodes.values():
            self.largest[node.kind] = max(self.largest[node.kind], node.total)
            self.largest[None] = max(self.largest[None], node.total)
        self.bins = Bins(self.later.free, self.kind)
        self.place: dict[JobId, Placement] = {job.id: job.now_on for job in order if job.running}
        self.changed: set[JobId] = set()
        self.short: dict[JobId, int] = {}
        """The GPUs that jobs lack of their wanted count."""
        self.torn: set[JobId] = set()
        """Changed jobs on more nodes than necessary."""
        self.moved = 0
        """The number of jobs that keep their count but move."""

    def place_jobs(self) -> None:
        """Place the jobs: those that keep their count stay; the others first release GPUs, then take them, largest first."""
        takers: list[tuple[int, int, Job]] = []
        for rank, job in enumerate(self.order):
            want = self._wanted_count(job)
            if job.running and (want < job.gpus or self._must_change_kind(job)):
                self.changed.add(job.id)
                self._release(job, want)
            if want > placement.total(self.place.get(job.id, {})):
                takers.append((-want, rank, job))
        takers.sort()
        late: list[tuple[int, int, Job]] = []
        for less, rank, job in takers:
            self.changed.add(job.id)
            taken = self._grow(job, -less) if job.id in self.place else self._start(job, -less)
            if not taken:
                late.append((rank, -less, job))
        for _, want, job in sorted(late):
            self._take_less(job, want)

    def finish(self) -> dict[JobId, Placement]:
        """Undo changes from which no job gains, and start the jobs that were left out and fit after all."""
        for job in self.order:
            if job.running and job.id in self.changed:
                self._restore(job)
        for job in self.order:
            if job.waiting and job.id not in self.place:
                self._take_less(job, self.wanted.get(job.id) or job.asked)
        return {job: where for job, where in self.place.items() if where}

    def is_better_than(self, other: "_Draft") -> bool:
        mine, theirs = sum(self.short.values()), sum(other.short.values())
        return mine < theirs or (mine == theirs and len(self.torn) + self.moved < len(other.torn) + other.moved)

    def repack(self, first: "_Draft") -> bool:
        """Place all movable jobs again on blank nodes: first on the nodes that are affected, then on all nodes.

        A node that is full of jobs which keep their counts is not affected. Return False when not all jobs fit.
        """
        touched = {node for id in first.changed for node in first.place.get(id, {})}
        near = {node for node, free in first.bins.room.items() if free > 0 or node in touched}
        scopes = (near, set(first.bins.room))
        return any(len(scope) <= MAX_REPACKED_NODES and self._repack(first, scope) for scope in scopes)

    def _repack(self, first: "_Draft", scope: set[NodeId]) -> bool:
        movers = [job for job in self.order if self._may_move(job, first, scope)]
        blank = {node: room for node, room in first.bins.room.items() if node in scope}
        for job in movers:
            for node, gpus in first.place.get(job.id, {}).items():
                blank[node] += gpus
        alike: dict[tuple[str, int], list[NodeId]] = defaultdict(list)
        for node in sorted(blank):
            alike[self.kind[node], blank[node]].append(node)
        bins = Bins(blank, self.kind)
        found: dict[JobId, Placement] = {}
        for job in sorted(movers, key=lambda job: -self._wanted_count(job)):
            minimum = placement.total(first.place.get(job.id, {}))
            where = best_fit(bins, self._wanted_count(job), spread=job.spread, kind=self._kind(job))
            if where is None and minimum:
                where = best_fit(bins, minimum, spread=job.spread, kind=self._kind(job))
            if where is None and minimum:
                return False
            if where:
                found[job.id] = where
        now = {job.id: job.now_on for job in movers if job.running}
        found = relabel(found, now, alike.values())
        self.place = {**first.place, **found}
        self.changed = first.changed | {id for id, where in found.items() if where != now.get(id)}
        self.moved = sum(id not in first.changed for id in self.changed)
        free = {**first.bins.room, **blank}
        for where in found.values():
            for node, gpus in where.items():
                free[node] -= gpus
        self.bins = Bins(free, self.kind)
        self.short, self.torn = {}, set()
        for job in self.order:
            self._record_shortage(job)
        return True

    def _may_move(self, job: Job, first: "_Draft", scope: set[NodeId]) -> bool:
        """Whether a job may move as a whole: running jobs must be preemptible, because the new GPUs may not be free yet."""
        if job.nodes is not None or self._wanted_count(job) < job.min_gpus:
            return False
        if job.waiting:
            return scope.issuperset(first.place.get(job.id, {}))
        return job.elastic and job.preemptible and scope.issuperset(first.place.get(job.id, job.now_on))

    def _wanted_count(self, job: Job) -> int:
        """Return the wanted count, within the sizes that the job can have."""
        want = self.wanted.get(job.id, 0)
        if not job.running:
            return min(max(want, job.min_gpus), job.max_gpus) if want else 0
        if not want and job.preemptible:
            return 0
        if not job.elastic:
            return job.gpus
        minimum = max(min(job.min_gpus, job.gpus), placement.total(job.base))
        return min(max(want, minimum), max(job.max_gpus, job.gpus))

    def _kind(self, job: Job) -> str | None:
        return self.kinds.get(job.id)

    def _must_change_kind(self, job: Job) -> bool:
        kind = self._kind(job)
        if kind is None or not (job.elastic and job.preemptible) or self._wanted_count(job) < job.min_gpus:
            return False
        return any(self.kind.get(node) != kind for node in job.now_on)

    def _release(self, job: Job, want: int) -> None:
        """Release what exceeds ``want``, from the nodes where it has the fewest; all GPUs when it changes their kind."""
        if not want or self._must_change_kind(job):
            self._set_placement(job, {})
            return
        held = job.now_on
        while placement.total(held) > want and (node := placement.node_to_shrink_on(held, job.base)):
            held = placement.plus(held, node, -1)
        self._set_placement(job, held)

    def _set_placement(self, job: Job, where: Placement) -> None:
        """Set the placement of a job; no other job can use what it releases on a closed node."""
        for node, gpus in self.place.pop(job.id, {}).items():
            if node in self.bins.room:
                self.bins.take(node, -gpus)
        for node, gpus in where.items():
            if node in self.bins.room:
                self.bins.take(node, gpus)
        if where:
            self.place[job.id] = where

    def _start(self, job: Job, want: int) -> bool:
        where = best_fit(self.bins, want, spread=job.spread, allowed=job.nodes, kind=self._kind(job))
        if where is None:
            return False
        self.place[job.id] = where
        self._record_shortage(job)
        return True

    def _grow(self, job: Job, want: int) -> bool:
        """Grow on its own nodes if it stays compact, else move as a whole if it is preemptible, else take any free GPUs."""
        before = self.place[job.id]
        held = self._grown_in_place(job, before, want)
        if placement.total(held) < want or not self._is_compact(job, held):
            if self._move(job, want):
                return True
            away = min(want - placement.total(held), sum(self.bins.room.values())) if job.spread else 0
            self._set_placement(job, held)
            while away and not (
                more := best_fit(self.bins, away, spread=True, allowed=job.nodes, kind=self._kind(job))
            ):
                away -= 1
            held = _add_placements(held, more) if away and more else held
            self.place[job.id] = held
        else:
            self._set_placement(job, held)
        self._record_shortage(job)
        return placement.total(held) >= want

    def _grown_in_place(self, job: Job, held: Placement, want: int) -> Placement:
        left = want - placement.total(held)
        grown = dict(held)
        for node in sorted(held, key=lambda node: (-held[node], node)):
            usable = node in self.kind and (job.nodes is None or node in job.nodes)
            more = min(left, self.bins.room[node]) if usable else 0
            grown[node] += more
            left -= more
        return grown

    def _move(self, job: Job, want: int) -> bool:
        """Move a job as a whole to where it is compact. Nothing changes when there is no such place."""
        if not job.preemptible or want < job.min_gpus:
            return False
        before = self.place[job.id]
        self._set_placement(job, {})
        where = best_fit(self.bins, want, spread=job.spread, allowed=job.nodes, kind=self._kind(job))
        if where is not None and self._is_compact(job, where):
            self.place[job.id] = where
            self._record_shortage(job)
            return True
        for node, gpus in (where or {}).items():
            self.bins.take(node, -gpus)
        self._set_placement(job, before)
        return False

    def _take_less(self, job: Job, want: int) -> None:
        """Take as many GPUs as fit, when the wanted count does not."""
        if job.id not in self.place and want:
            free = [
                room for node, room in self.bins.room.items()
                if room > 0 and (job.nodes is None or node in job.nodes) and self._kind(job) in (None, self.kind[node])
            ]  # fmt: skip
            maximum = min(sum(free) if job.spread else max(free, default=0), want, self._room_in_limits(job))
            if maximum >= job.min_gpus:
                self._start(job, maximum)
                self.changed.add(job.id)
        self._record_shortage(job)

    def _room_in_limits(self, job: Job) -> int:
        """Return the number of GPUs that the limits of a job leave in this draft."""
        headroom = [
            limit.max_gpus - limit.elsewhere - sum(placement.total(self.place.get(id, {})) for id in limit.jobs)
            for limit, _ in self.later.limits_of(job)
        ]
        return min(headroom, default=job.max_gpus)

    def _restore(self, job: Job) -> None:
        """Restore what a job holds now, as far as no other job took it."""
        have = self.place.get(job.id, {})
        if placement.total(have) >= job.gpus or self._must_change_kind(job):
            return
        lost = minus(job.now_on, have)
        back = {node: min(gpus, self.bins.room[node]) for node, gpus in lost.items() if node in self.bins.room}
        count = min(placement.total(back), job.gpus - placement.total(have), self._room_in_limits(job))
        if have and not job.elastic or count <= 0:
            return
        some = placement.place(back, count, spread=True) or {}
        if not have and (count < job.gpus):
            return
        self._set_placement(job, _add_placements(have, some))

    def _is_compact(self, job: Job, where: Placement) -> bool:
        size = self.largest[self._kind(job)] or 1
        return len(where) <= -(-placement.total(where) // size)

    def _record_shortage(self, job: Job) -> None:
        want, where = self._wanted_count(job), self.place.get(job.id, {})
        missing = want - placement.total(where)
        self.short.pop(job.id, None)
        self.torn.discard(job.id)
        if missing > 0:
            self.short[job.id] = missing
        if where and job.id in self.changed and not self._is_compact(job, where):
            self.torn.add(job.id)


def _add_placements(one: Placement, other: Placement) -> Placement:
    return {
        node: one.get(node, 0) + other.get(node, 0) for node in (*one, *(node for node in other if node not in one))
    }
