"""Each job goes to the next node of a ring."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from scheduling import reasons
from scheduling.capacity import Capacity, queue
from scheduling.params import param
from scheduling.types import Job, JobId, NodeId, Placement, Plan, Snapshot


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """``state`` is {"last": the node looked at last}: a node that joins or leaves does not turn the ring."""

    title: ClassVar[str] = "Round robin over nodes"
    explanation: ClassVar[str] = (
        "Each job, first come first, goes to the next node in turn that has room, so that work spreads evenly. "
        "A job larger than any node is spread over neighbouring nodes; nothing is moved later."
    )

    size: str = param(
        "most",
        "GPUs at the start",
        "What a job that asked for a range of GPUs is given when it starts.",
        choices=[("most", "as many as are free on the node, up to its most"), ("least", "its least")],
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        capacity = Capacity(snapshot)
        why: dict[JobId, str] = {}
        ring = Ring(list(capacity.nodes), snapshot.state.get("last", ""))
        ahead = 0
        for job in queue(snapshot):
            if alone := reasons.impossible(job, capacity) or reasons.limited(job, capacity):
                why[job.id] = alone
            elif where := self._next(job, capacity, ring):
                capacity.give(job, where)
            else:
                may_spread = job.spread and _is_larger_than_any_node(job, capacity)
                why[job.id] = reasons.shortage(replace(job, spread=may_spread), capacity, ahead)
                ahead += 1
        return Plan(capacity.held, why, {"last": ring.last})

    def _next(self, job: Job, capacity: Capacity, ring: "Ring") -> Placement | None:
        """Looks once around the ring. Each look turns it, whether the node had room or not."""
        free = capacity.free_for(job)
        wanted = min(capacity.room(job), job.max_gpus if self.size == "most" else job.min_gpus)
        for node in ring.turn():
            if free.get(node, 0) >= job.min_gpus:
                return {node: min(free[node], wanted)}
        if _is_larger_than_any_node(job, capacity):
            return _spread(job, free, wanted, ring)
        return None


def _is_larger_than_any_node(job: Job, capacity: Capacity) -> bool:
    return all(node.total < job.min_gpus for node in capacity.nodes_of(job))


def _spread(job: Job, free: Mapping[NodeId, int], wanted: int, ring: "Ring") -> Placement | None:
    """Neighbours of the ring, for a job that is larger than any node."""
    if not job.spread or sum(free.values()) < job.min_gpus:
        return None
    where: dict[NodeId, int] = {}
    for node in ring.turn():
        if wanted and free.get(node, 0):
            where[node] = min(free[node], wanted)
            wanted -= where[node]
            if not wanted:
                break
    return where


class Ring:
    """Nodes in the order of their ids, from the one after the last."""

    def __init__(self, nodes: list[NodeId], last: NodeId) -> None:
        self.nodes = sorted(nodes)
        self.last = last

    def turn(self) -> Iterator[NodeId]:
        """Once around. It stays turned at the node where the caller stops."""
        after = [node for node in self.nodes if node > self.last]
        for node in after + [node for node in self.nodes if node <= self.last]:
            self.last = node
            yield node
