"""Processors and memory: how many GPUs of a node a job can take when others took more than the shares of theirs.

Each GPU has a share of its node's processors and memory, and a job without demands takes the shares of its GPUs. A node
therefore counts only the difference: what is free in addition to the shares of its free GPUs. While no job asks for
another amount, all differences are zero, and GPUs alone decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduling.toolkit.levels import Levels
from scheduling.types import Job, Node, NodeId, Placement, Snapshot


class Amount(NamedTuple):
    """Thousandths of a processor, and MiB of memory."""

    millicpus: int = 0
    memory_mib: int = 0

    def plus(self, other: "Amount", times: int = 1) -> "Amount":
        """Return the sum with ``times`` the other."""
        return Amount(self.millicpus + times * other.millicpus, self.memory_mib + times * other.memory_mib)


class Demand(NamedTuple):
    """What a job needs for each GPU; None for the share of a GPU."""

    millicpus: int | None = None
    memory_mib: int | None = None


NOTHING = Amount()


def demand_of(job: Job) -> Demand:
    return Demand(job.millicpus_per_gpu, job.memory_mib_per_gpu)


def with_demand(job: Job, index: int, value: int) -> Job:
    """Return the job with another demand for one of the ``RESOURCES``."""
    demand = list(demand_of(job))
    demand[index] = value
    return replace(job, millicpus_per_gpu=demand[0], memory_mib_per_gpu=demand[1])


def share_of(node: Node) -> Amount:
    """Return the share of one GPU of the node."""
    return Amount(node.millicpus_per_gpu, node.memory_mib_per_gpu)


def beyond_share(job: Job | Demand, node: Node) -> Amount:
    """Return what the job takes with one GPU of the node in addition to its share; negative where it takes less."""
    if isinstance(job, Job):
        if not job.has_demands:
            return NOTHING
        job = demand_of(job)
    pairs = zip(job, share_of(node), strict=True)
    return Amount(*(0 if own is None or not share else own - share for own, share in pairs))


def extra_of(node: Node, *, coming: bool = False) -> Amount:
    """Return what is free in addition to the shares of the free GPUs; with ``coming``, also what is being released."""
    extra = Amount(node.extra_millicpus, node.extra_memory_mib)
    return extra.plus(Amount(node.leaving_millicpus, node.leaving_memory_mib)) if coming else extra


def with_more(node: Node, extra: Amount = NOTHING, leaving: Amount = NOTHING) -> Node:
    """Return the node with more that is free, or that is being released, in addition to the shares of GPUs."""
    if extra == NOTHING == leaving:
        return node
    return replace(
        node,
        extra_millicpus=node.extra_millicpus + extra.millicpus,
        extra_memory_mib=node.extra_memory_mib + extra.memory_mib,
        leaving_millicpus=node.leaving_millicpus + leaving.millicpus,
        leaving_memory_mib=node.leaving_memory_mib + leaving.memory_mib,
    )


def with_extra(node: Node, extra: Amount) -> Node:
    """Return the node with exactly so much free in addition to the shares of its free GPUs, and nothing being released."""
    now = extra_of(node, coming=True)
    if now == extra and extra_of(node) == extra:
        return node
    return replace(
        node,
        extra_millicpus=extra.millicpus,
        extra_memory_mib=extra.memory_mib,
        leaving_millicpus=0,
        leaving_memory_mib=0,
    )


def matter(snapshot: Snapshot) -> bool:
    """Whether more than GPUs decides what fits: shares are known, and a job has demands or had some."""
    if not any(node.millicpus_per_gpu or node.memory_mib_per_gpu for node in snapshot.nodes):
        return False
    return any(job.has_demands for job in snapshot.jobs) or any(
        extra_of(node) != NOTHING or extra_of(node, coming=True) != NOTHING for node in snapshot.nodes
    )


def gpus_that_fit(node: Node, free: int, extra: Amount, demand: Demand) -> int:
    """Return how many of the ``free`` GPUs a job can take when ``extra`` is free in addition to their shares."""
    count = free
    for share, more, own in zip(share_of(node), extra, demand, strict=True):
        each = share if own is None else own
        if share and each:  # a share of 0 is unknown: no limit
            count = min(count, (free * share + more) // each)
    return max(0, count) if free > 0 else free


def gpus_when_empty(node: Node, job: Job) -> int:
    """Return how many GPUs of the node the job could take if it were alone there."""
    return gpus_that_fit(node, node.total, NOTHING, demand_of(job)) if job.has_demands else node.total


class ResourceLedger:
    """What is left of processors and memory while a policy decides: for each demand, the GPUs that jobs can take."""

    def __init__(self, nodes: Mapping[NodeId, Node], free: Levels, extra: Mapping[NodeId, Amount]) -> None:
        self.nodes = nodes
        self.free = free
        """The free GPUs of each node, which the owner of this ledger changes before it reports a change."""
        self.extra = dict(extra)
        self._levels: dict[Demand, Levels] = {}

    def copy(self, free: Levels) -> "ResourceLedger":
        """Return an independent copy, for a copy of the free GPUs."""
        return ResourceLedger(self.nodes, free, self.extra)

    def levels(self, job: Job) -> Levels:
        """Return the number of GPUs of each node that the job could take, if it may run there."""
        demand = demand_of(job)
        if demand not in self._levels:
            self._levels[demand] = Levels({node: self._fitting(node, demand) for node in self.free})
        return self._levels[demand]

    def update(self, node: NodeId, job: Job | None, gpus: int) -> None:
        """Count ``gpus`` more GPUs of a node for the job, or fewer if negative; without a job, with their shares."""
        if job is not None and job.has_demands:
            self.extra[node] = self.extra[node].plus(beyond_share(job, self.nodes[node]), -gpus)
        for demand, levels in self._levels.items():
            levels[node] = self._fitting(node, demand)

    def add(self, node: NodeId, amount: Amount) -> None:
        """Count more that is free in addition to the shares of the free GPUs."""
        self.extra[node] = self.extra[node].plus(amount)
        self.update(node, None, 0)

    def _fitting(self, node: NodeId, demand: Demand) -> int:
        return gpus_that_fit(self.nodes[node], self.free[node], self.extra[node], demand)


def extra_after(snapshot: Snapshot, target: Mapping[str, Placement]) -> dict[NodeId, Amount]:
    """Return what is left in addition to the shares of free GPUs once jobs have what the target adds to their GPUs.

    What jobs release is not free yet, so it does not count.
    """
    nodes = {node.id: node for node in snapshot.nodes}
    extra = {node.id: extra_of(node) for node in snapshot.nodes}
    for job in snapshot.jobs:
        if not job.has_demands:
            continue
        for node, gpus in target.get(job.id, {}).items():
            more = gpus - (0 if job.stopping else job.now_on.get(node, 0))
            if more > 0 and node in nodes:
                extra[node] = extra[node].plus(beyond_share(job, nodes[node]), -more)
    return extra


# --- what a job could ask for -----------------------------------------------------------------------------------------

RESOURCES = ("processors", "memory")
"""The names of the parts of an ``Amount``, in its order."""


class Room(NamedTuple):
    """Free GPUs of a node, and what is free in addition to their shares."""

    node: Node
    gpus: int
    extra: Amount = NOTHING

    def left(self, index: int) -> int:
        """Return how much of one resource is left."""
        return max(0, self.gpus * share_of(self.node)[index] + self.extra[index])


def scarcer(job: Job, room: Room) -> int:
    """Return the index of the resource of which less is left for the job on this node."""
    demand = demand_of(job)
    alone = [Demand(*(own if index == each else 0 for each, own in enumerate(demand))) for index in range(len(demand))]
    counts = [gpus_that_fit(room.node, room.gpus, room.extra, each) for each in alone]
    return counts.index(min(counts))


def largest_demand(job: Job, rooms: Sequence[Room], index: int) -> int:
    """Return the most of one resource per GPU with which the job fits into the rooms; 0 when it does not fit with any."""
    demand = list(demand_of(job))
    possible = {
        (each.left(index)) // count for each in rooms for count in range(1, max(1, each.gpus) + 1) if each.gpus > 0
    }
    for value in sorted(possible, reverse=True):
        demand[index] = value
        if value and fits(job, rooms, Demand(*demand)):
            return value
    return 0


def fits(job: Job, rooms: Iterable[Room], demand: Demand) -> bool:
    """Whether the job fits into the rooms with its minimum of GPUs and this demand."""
    counts = [gpus_that_fit(each.node, each.gpus, each.extra, demand) for each in rooms]
    return (sum(counts) if job.spread else max(counts, default=0)) >= job.min_gpus
