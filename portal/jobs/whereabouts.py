"""Describes on which nodes an attempt held how many GPUs, for the page of its job."""

from collections import defaultdict

from portal.cluster.slots import counted, noun
from portal.jobs.models import Allocation, Attempt


def held_now(attempt: Attempt) -> str:
    """Return ``3 GPUs`` or ``1 CPU slot``; empty if the attempt holds none."""
    held = [each for each in _allocations(attempt) if each.released_at is None]
    return _counted_gpus(held) if held else ""


def held_by_node(attempt: Attempt) -> list[tuple[str, str]]:
    """Return each node with ``2 GPUs``: all that the attempt ever held there, each counted once."""
    by_node = defaultdict(list)
    for each in _allocations(attempt):
        by_node[each.container.node.name].append(each)
    return [(name, _counted_gpus(held)) for name, held in by_node.items()]


def _allocations(attempt: Attempt) -> list[Allocation]:
    """Return the allocations that were fetched with the attempt, without a query."""
    found = []
    for container in attempt.containers.all():
        for each in container.allocations.all():
            each.container = container
            found.append(each)
    return found


def _counted_gpus(held: list[Allocation]) -> str:
    return counted(len({each.gpu_id for each in held}), noun(each.gpu.kind for each in held))
