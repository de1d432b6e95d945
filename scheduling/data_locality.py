"""Where the data of a job is counts between nodes that are otherwise equal choices, under any policy.

A policy knows nothing of data. A job that starts on a node may as well start on another one that is then left with as many
free GPUs as the first would have been: of such nodes, it gets the one that has most of its datasets already.
"""

from collections.abc import Mapping, Set
from dataclasses import replace

from scheduling.gpu_requests import accepts
from scheduling.types import Job, Node, NodeId, Placement, Plan, Snapshot


def prefer_cached_data(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return the plan with starting jobs on nodes that have their data, where that makes no other difference."""
    starting = [job for job in snapshot.jobs if job.cached_bytes and job.waiting and plan.target.get(job.id)]
    if not starting:
        return plan
    nodes = {node.id: node for node in snapshot.nodes if node.open and not node.part_of}
    left = _left(snapshot, plan)
    special = {item.node for item in snapshot.reservations} | set(plan.kept) | _nodes_with_demands(snapshot, plan)
    target = dict(plan.target)
    for job in sorted(starting, key=lambda job: job.queue_key):
        if not job.has_demands:
            target[job.id] = _nearer(job, target[job.id], nodes, left, special)
    return replace(plan, target=target)


def _left(snapshot: Snapshot, plan: Plan) -> dict[NodeId, int]:
    """Return the GPUs of each node that are free after the plan."""
    left = {node.id: node.free for node in snapshot.nodes}
    for job in snapshot.jobs:
        for node, count in plan.target.get(job.id, {}).items():
            left[node] = left.get(node, 0) - max(0, count - job.now_on.get(node, 0))
    return left


def _nodes_with_demands(snapshot: Snapshot, plan: Plan) -> set[NodeId]:
    """Return the nodes on which a job takes other processors or memory than the shares of its GPUs."""
    demanding = [job for job in snapshot.jobs if job.has_demands]
    return {node for job in demanding for where in (job.now_on, plan.target.get(job.id, {})) for node in where}


def _nearer(
    job: Job, where: Placement, nodes: Mapping[NodeId, Node], left: dict[NodeId, int], special: Set[NodeId]
) -> Placement:
    chosen = dict(where)
    for node, count in sorted(where.items()):
        if node in special or node not in nodes:
            continue
        equal = [
            other
            for other in job.cached_bytes
            if other in nodes
            and other not in chosen
            and other not in special
            and left[other] == left[node] + count
            and (job.nodes is None or other in job.nodes)
            and accepts(job, nodes[other])
            and _same_kind(nodes[other], nodes[node])
        ]
        best = min(equal, key=lambda other: (-job.cached_bytes[other], other), default=node)
        if job.cached_bytes.get(best, 0) > job.cached_bytes.get(node, 0):
            chosen[best] = chosen.pop(node)
            left[best] -= count
            left[node] += count
    return chosen


def _same_kind(one: Node, other: Node) -> bool:
    """Return whether GPUs of two nodes are interchangeable, with their processors and memory."""
    return _kind(one) == _kind(other)


def _kind(node: Node) -> tuple[object, ...]:
    return (
        node.kind,
        node.gpu_memory_mib,
        node.parts_of_gpus,
        node.millicpus_per_gpu,
        node.memory_mib_per_gpu,
        node.extra_millicpus,
        node.extra_memory_mib,
    )
