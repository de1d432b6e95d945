"""Pure functions that choose the nodes for a number of GPUs.

All of them keep what a job holds, prefer one node, and then the tightest fit, so that large groups of free
GPUs stay whole. Ties go to the smaller node id, so the result does not depend on the order of the nodes.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from scheduling.renamed import renamed
from scheduling.toolkit.levels import Levels
from scheduling.types import NodeId, Placement

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"grow": "node_to_grow_on", "shrink": "node_to_shrink_on"})


def total(placement: Placement) -> int:
    return sum(placement.values())


def place(
    free: Mapping[NodeId, int], count: int, *, spread: bool, allowed: Collection[NodeId] | None = None
) -> Placement | None:
    """Return nodes with ``count`` GPUs for a job that holds none, or None when they do not fit on the ``allowed`` nodes.

    If one node has enough, it is the one that is left with the fewest. Otherwise, for a job that may spread,
    they are the emptiest nodes, and the tightest fit for the rest.
    """
    chosen: dict[NodeId, int] = {}
    if count <= 0:
        return chosen
    free = free if isinstance(free, Levels) else Levels(free)
    if (node := free.tightest(count, allowed)) is not None:
        return {node: count}
    if not spread or free.sum < count:
        return None
    left = count
    for node in free.fullest(allowed):
        if free[node] >= left:
            last = free.tightest(left, allowed, chosen)
            chosen[node if last is None else last] = left
            return chosen
        chosen[node] = free[node]
        left -= free[node]
    return None


def node_to_grow_on(
    current: Placement, free: Mapping[NodeId, int], *, spread: bool, allowed: Collection[NodeId] | None = None
) -> NodeId | None:
    """Return the node for one more GPU of a running job: where it has the most already, else the tightest new one."""
    at_home = [node for node in current if free.get(node, 0) > 0 and (allowed is None or node in allowed)]
    if at_home:
        return min(at_home, key=lambda node: (-current[node], node))
    if not spread:
        return None
    return (free if isinstance(free, Levels) else Levels(free)).tightest(1, allowed, current)


def node_to_shrink_on(current: Placement, base: Placement, node: NodeId | None = None) -> NodeId | None:
    """Return the node on which a job releases one GPU: never of its base, and outside the nodes of the base first.

    So the job contracts to few nodes. With ``node``, consider only that one.
    """
    spare = [here for here, gpus in current.items() if gpus > base.get(here, 0) and node in (None, here)]
    return min(spare, key=lambda here: (here in base, current[here], here)) if spare else None


def plus(placement: Placement, node: NodeId, by: int = 1) -> dict[NodeId, int]:
    """Return the placement with ``by`` more (or fewer) GPUs of ``node``; nodes with none are left out."""
    changed = {**placement, node: placement.get(node, 0) + by}
    return {where: gpus for where, gpus in changed.items() if gpus}


def minus(one: Placement, other: Placement) -> Placement:
    """Return the GPUs of ``one`` that are not in ``other``."""
    left = {node: gpus - other.get(node, 0) for node, gpus in one.items()}
    return {node: gpus for node, gpus in left.items() if gpus > 0}


def without_empty_nodes(placement: Placement) -> Placement:
    """Return the placement without nodes with 0 GPUs."""
    return placement if all(placement.values()) else {node: gpus for node, gpus in placement.items() if gpus}
