"""The GPUs that are left while a policy decides: the only place that knows what fits.

A policy creates a ``Capacity`` from its snapshot, consumes it, and reads its plan from ``held``. It counts the free GPUs
of open nodes, the processors and the memory that go with them, the nodes that a job can run on and its limits, and never
takes from the base of a running job.
"""

from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from scheduling.renamed import renamed, warn
from scheduling.toolkit import placement, resources
from scheduling.toolkit.levels import Levels
from scheduling.types import Job, JobId, Limit, Node, NodeId, Placement, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"in_turn": "in_queue_order"})

UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """The open nodes that a job can run on, free or not."""

    nodes: tuple[Node, ...]
    allowed: frozenset[NodeId] | None
    """Their ids; None means all open nodes."""
    total: int
    """Healthy GPUs of all of them together, as far as their processors and memory suffice for the job."""
    largest: int
    """The same of the largest one."""

    def max_gpus(self, job: Job) -> int:
        """Return the largest number of GPUs that the job could start with if all of these nodes were empty."""
        return self.total if job.spread else self.largest


class Capacity:
    """A scratch copy of the GPUs of a snapshot.

    By default it is the present: only free GPUs may be given, and GPUs that are asked back stay in use. With
    ``coming=True`` it is the near future, in which all GPUs that are asked back are free again: the ledger for deciding
    which job gets those GPUs, so that no job is asked twice for the same new job.
    """

    def __init__(self, snapshot: Snapshot, *, coming: bool = False) -> None:
        self.coming = coming
        self.nodes: dict[NodeId, Node] = {node.id: node for node in snapshot.nodes if node.open}
        self.free = Levels({id: node.free + (node.leaving if coming else 0) for id, node in self.nodes.items()})
        self._has_parts = any(node.part_of for node in self.nodes.values())
        self.kept: dict[NodeId, int] = {id: node.kept for id, node in self.nodes.items() if node.kept}
        """Free GPUs of nodes that no later job of the queue may have in this cycle, and those kept for higher layers."""
        self._scopes: dict[Hashable, Scope] = {}
        self.resources: resources.ResourceLedger | None = None
        """The processors and memory; None while GPUs alone decide what fits."""
        if resources.matter(snapshot):
            extra = {id: resources.extra_of(node, coming=coming) for id, node in self.nodes.items()}
            self.resources = resources.ResourceLedger(self.nodes, self.free, extra)
        self.held: dict[JobId, Placement] = {
            job.id: job.now_on for job in snapshot.jobs if job.now_on and not job.stopping
        }
        self._held_at_first = dict(self.held)
        self._limits_of: dict[JobId, list[int]] = {}
        self.limits: tuple[Limit, ...] = snapshot.limits
        gpus = {job: sum(where.values()) for job, where in self.held.items()} if snapshot.limits else {}
        self.room_of: list[int] = []
        for index, limit in enumerate(snapshot.limits):
            taken = sum(gpus.get(job, 0) for job in limit.jobs) + (0 if coming else limit.leaving)
            self.room_of.append(limit.max_gpus - limit.elsewhere - taken)
            for job in limit.jobs:
                self._limits_of.setdefault(job, []).append(index)
        self._room_at_first = tuple(self.room_of)

    def copy(self) -> Self:
        """Return an independent copy, as a draft."""
        draft = copy(self)
        draft.free, draft.kept = Levels(self.free), dict(self.kept)
        draft.resources = self.resources.copy(draft.free) if self.resources else None
        draft.held, draft.room_of = dict(self.held), list(self.room_of)
        return draft

    def when_released(self) -> Self:
        """Return a copy in which the GPUs that are asked back are free."""
        draft = self.copy()
        draft.coming = True
        for id, node in self.nodes.items():
            if node.leaving:
                draft.free[id] += node.leaving
            if draft.resources is not None:
                draft.resources.add(id, resources.Amount(node.leaving_millicpus, node.leaving_memory_mib))
        return draft

    # Questions

    def scope(self, job: Job) -> Scope:
        key: Hashable = job.nodes if self.resources is None else (job.nodes, resources.demand_of(job))
        if key not in self._scopes:
            nodes = tuple(node for node in self.nodes.values() if job.nodes is None or node.id in job.nodes)
            totals = [resources.gpus_when_empty(node, job) for node in nodes]
            allowed = None if len(nodes) == len(self.nodes) else job.nodes
            self._scopes[key] = Scope(nodes, allowed, sum(totals), max(totals, default=0))
        return self._scopes[key]

    def levels(self, job: Job) -> Levels:
        """Return the number of free GPUs of each open node that the job could take, if it may run there.

        It is less than ``free`` where the processors or the memory that are left do not suffice for more.
        """
        return self.free if self.resources is None else self.resources.levels(job)

    def nodes_of(self, job: Job) -> tuple[Node, ...]:
        """Return the open nodes that the job can run on, free or not."""
        return self.scope(job).nodes

    def free_for(self, job: Job) -> Mapping[NodeId, int]:
        """Return the free GPUs on each of those nodes that it could take."""
        allowed, levels = self.scope(job).allowed, self.levels(job)
        return levels if allowed is None else {node: levels[node] for node in levels if node in allowed}

    def left(self, job: Job) -> int:
        """Return the number of free GPUs on all of those nodes that it could take."""
        return self.levels(job).sum_of(self.scope(job).allowed)

    def fullest(self, job: Job) -> Node | None:
        """Return the node with the most free GPUs for the job among those; None when it can take none."""
        node = next(self.levels(job).fullest(self.scope(job).allowed), None)
        return None if node is None else self.nodes[node]

    def fit_key(self, job: Job) -> Hashable:
        """Return a key that is equal for waiting jobs that fit alike: if one does not fit, neither does the next."""
        key = job.min_gpus, job.spread, self.scope(job).allowed, tuple(self._limits_of.get(job.id, ()))
        return key if self.resources is None else (*key, resources.demand_of(job))

    def terms(self, job: Job) -> Hashable:
        """The old name of ``fit_key``, for one release."""
        warn("Capacity.terms", "Capacity.fit_key")
        return self.fit_key(job)

    def count(self, job: Job) -> int:
        return placement.total(self.held.get(job.id, {}))

    def limits_of(self, job: Job) -> list[tuple[Limit, int]]:
        """Return each limit of the job, with the number of GPUs that it still allows."""
        return [(self.limits[index], self.room_of[index]) for index in self._limits_of.get(job.id, [])]

    def promises(self, limit: Limit) -> bool:
        """Whether jobs of a limit may count with GPUs that they do not hold yet: GPUs that are not free, or that are kept
        for growth, which other layers count as held."""
        index = self.limits.index(limit)
        return bool(self.kept) or (self.coming and self.room_of[index] < self._room_at_first[index])

    def coming_for(self, job: Job) -> int:
        """Count the GPUs that other jobs are releasing, on nodes that the job can run on or under one of its limits."""
        nodes = {node.id: node.leaving for node in self.nodes_of(job)}
        for other, where in self._held_at_first.items():
            left = self.held.get(other, {})
            for node in where.keys() & nodes.keys():
                nodes[node] += max(0, where[node] - left.get(node, 0))
        return sum(nodes.values()) + max((limit.leaving for limit, _ in self.limits_of(job)), default=0)

    def ceiling(self, job: Job) -> int:
        """Return the largest number of GPUs that the job could hold if it ran alone on the open nodes."""
        return min([self.scope(job).max_gpus(job), *(limit.max_gpus for limit, _ in self.limits_of(job))])

    def room(self, job: Job) -> int:
        """Return how many more GPUs the limits of the job allow."""
        return max(0, min((room for _, room in self.limits_of(job)), default=UNLIMITED))

    def fit(self, job: Job, count: int) -> Placement | None:
        """Return where a waiting job could start with exactly ``count`` GPUs, or None."""
        if count > self.room(job):
            return None
        return placement.place(self.levels(job), count, spread=job.spread, allowed=self.scope(job).allowed)

    def best_fit(self, job: Job, maximum: int) -> Placement | None:
        """Return where the job could start with the largest number of GPUs from its minimum to ``maximum``, or None."""
        if job.spread:
            here = self.left(job)
        else:
            node = self.fullest(job)
            here = self.levels(job)[node.id] if node is not None else 0
        maximum = min(maximum, here, self.room(job))
        return self.fit(job, maximum) if maximum >= job.min_gpus else None

    def spare(self, job: Job, node: NodeId | None = None) -> int:
        """Return the GPUs (of one node) that it could release without a restart: above its minimum and outside its base."""
        held = self.held.get(job.id, {})
        if not job.elastic or not held:
            return 0
        above = placement.total(held) - job.min_gpus
        outside = sum(gpus - job.base.get(where, 0) for where, gpus in held.items() if node in (None, where))
        return max(0, min(above, outside))

    # Changes

    def give(self, job: Job, where: Placement) -> None:
        """Give a job GPUs in addition to what it holds."""
        held = dict(self.held.get(job.id, {}))
        for node, gpus in where.items():
            held[node] = held.get(node, 0) + gpus
            self._use(node, gpus, job)
        self.held[job.id] = held
        self._use_room(job, placement.total(where))

    def grow(self, job: Job) -> bool:
        """Give a job one more GPU on the most suitable node. Return False when there is none for it."""
        node = None
        if self.room(job):
            spread, allowed = job.spread, self.scope(job).allowed
            if self._has_parts and job.running and not spread:  # a waiting one starts on one of its parts
                spread, allowed = True, self._on_machines_of(job)
            node = placement.node_to_grow_on(self.held[job.id], self.levels(job), spread=spread, allowed=allowed)
        if node is not None:
            self.give(job, {node: 1})
        return node is not None

    def _on_machines_of(self, job: Job) -> frozenset[NodeId]:
        """Return the nodes that the job can run on, and that are parts of the machines on which it is."""
        machines = {self.nodes[node].machine for node in self.held[job.id] if node in self.nodes}
        return frozenset(node.id for node in self.nodes_of(job) if node.machine in machines)

    def ask_back(self, job: Job, node: NodeId | None = None) -> NodeId:
        """Ask a job for a GPU that it can spare (of ``node``). With ``coming`` it is free at once, otherwise not yet."""
        where = placement.node_to_shrink_on(self.held[job.id], job.base, node)
        if where is None:
            raise ValueError(f"job {job.id} has nothing to spare")
        self.held[job.id] = placement.plus(self.held[job.id], where, -1)
        if self.coming:
            if where in self.free:
                self._use(where, -1, job)
            self._use_room(job, -1)
        return where

    def undo_ask_back(self, job: Job, node: NodeId) -> None:
        """Undo ``ask_back``."""
        self.held[job.id] = placement.plus(self.held[job.id], node)
        if self.coming:
            if node in self.free:
                self._use(node, 1, job)
            self._use_room(job, 1)

    def leave_with(self, job: Job, node: NodeId) -> None:
        """The old name of ``undo_ask_back``, for one release."""
        warn("Capacity.leave_with", "Capacity.undo_ask_back")
        self.undo_ask_back(job, node)

    def evict(self, job: Job) -> Placement:
        """Take all GPUs of a running job and return them. With ``coming`` they are free at once, otherwise not yet."""
        held = self.held.pop(job.id)
        if self.coming:
            for node, gpus in held.items():
                if node in self.free:
                    self._use(node, -gpus, job)
            self._use_room(job, -placement.total(held))
        return held

    def reserve(self, where: Placement, job: Job | None = None) -> None:
        """Keep free GPUs from later jobs of this cycle, with the processors and memory that the job needs."""
        for node, gpus in where.items():
            self._use(node, gpus, job)
            self.kept[node] = self.kept.get(node, 0) + gpus

    def unreserve(self, where: Placement, job: Job | None = None) -> None:
        """Undo ``reserve``."""
        for node, gpus in where.items():
            self._use(node, -gpus, job)
            self.kept[node] -= gpus
            if not self.kept[node]:
                del self.kept[node]  # reasons read which nodes have such GPUs

    @property
    def reserved(self) -> dict[NodeId, int]:
        """The GPUs kept by ``reserve``, by node, without those that the snapshot kept already."""
        more = {node: gpus - (self.nodes[node].kept if node in self.nodes else 0) for node, gpus in self.kept.items()}
        return {node: gpus for node, gpus in more.items() if gpus > 0}

    def _use(self, node: NodeId, gpus: int, job: Job | None) -> None:
        self.free[node] -= gpus
        if self.resources is not None:
            self.resources.update(node, job, gpus)

    def _use_room(self, job: Job, gpus: int) -> None:
        for index in self._limits_of.get(job.id, []):
            self.room_of[index] -= gpus


def in_queue_order(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.queue_key)


def queue(snapshot: Snapshot) -> list[Job]:
    """Return the waiting jobs, higher priority first, then in the order of submission."""
    return in_queue_order(job for job in snapshot.jobs if job.waiting)
