"""Counts to nodes: pure functions that choose of which nodes a job's GPUs are.

All of them keep what a job holds, prefer one node, and then the tightest fit, so that large groups of free
GPUs stay whole. Ties go to the smaller node id: equal questions get equal answers, in whatever order the
nodes are listed.
"""

from collections.abc import Mapping

from scheduling.types import NodeId, Placement


def total(placement: Placement) -> int:
    return sum(placement.values())


def place(free: Mapping[NodeId, int], count: int, *, spread: bool) -> Placement | None:
    """``count`` GPUs for a job that holds none, or None when they do not fit.

    One node if one has enough: the one that is left with the fewest. Otherwise, for a job that may spread,
    the emptiest nodes, and the tightest fit for the rest.
    """
    chosen: dict[NodeId, int] = {}
    left = count
    while left:
        roomy = [node for node, gpus in free.items() if gpus >= left and node not in chosen]
        if roomy:
            chosen[min(roomy, key=lambda node: (free[node], node))] = left
            return chosen
        some = [node for node, gpus in free.items() if gpus > 0 and node not in chosen]
        if not some or not spread:
            return None
        emptiest = min(some, key=lambda node: (-free[node], node))
        chosen[emptiest] = free[emptiest]
        left -= free[emptiest]
    return chosen


def grow(current: Placement, free: Mapping[NodeId, int], *, spread: bool) -> NodeId | None:
    """The node for one more GPU of a running job: where it has most already, else the tightest new one."""
    at_home = [node for node in current if free.get(node, 0) > 0]
    if at_home:
        return min(at_home, key=lambda node: (-current[node], node))
    abroad = [node for node, gpus in free.items() if gpus > 0 and node not in current]
    if abroad and spread:
        return min(abroad, key=lambda node: (free[node], node))
    return None


def shrink(current: Placement, base: Placement, node: NodeId | None = None) -> NodeId | None:
    """The node that gives one GPU back: never of the base, and far from it first, so that the job draws together.

    With ``node`` only that one is asked.
    """
    spare = [here for here, gpus in current.items() if gpus > base.get(here, 0) and node in (None, here)]
    return min(spare, key=lambda here: (here in base, current[here], here)) if spare else None


def plus(placement: Placement, node: NodeId, by: int = 1) -> dict[NodeId, int]:
    """The placement with ``by`` more (or fewer) GPUs of ``node``; nodes with none are left out."""
    changed = {**placement, node: placement.get(node, 0) + by}
    return {where: gpus for where, gpus in changed.items() if gpus}
