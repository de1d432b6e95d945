"""On which nodes an attempt held which GPUs, in words for its job's page."""

from collections import defaultdict

from portal.cluster.slots import counted, noun
from portal.jobs.models import Allocation, Attempt


def held_now(attempt: Attempt) -> str:
    """``3 GPUs`` or ``1 CPU slot``; empty when it holds none."""
    held = [each for each in _allocations(attempt) if each.released_at is None]
    return _counted_gpus(held) if held else ""


def held_by_node(attempt: Attempt) -> list[tuple[str, str]]:
    """Node and ``2 GPUs``: all that it held there at one time or another, each counted once."""
    by_node = defaultdict(list)
    for each in _allocations(attempt):
        by_node[each.container.node.name].append(each)
    return [(name, _counted_gpus(held)) for name, held in by_node.items()]


def _allocations(attempt: Attempt) -> list[Allocation]:
    """As they were fetched with it: no query."""
    found = []
    for part in attempt.containers.all():
        for each in part.allocations.all():
            each.container = part
            found.append(each)
    return found


def _counted_gpus(held: list[Allocation]) -> str:
    return counted(len({each.gpu_id for each in held}), noun(each.gpu.kind for each in held))
