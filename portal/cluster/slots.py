"""The noun for what jobs use: GPUs, or CPU slots on machines without GPUs."""

from collections.abc import Iterable

from django.db.models import QuerySet

from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.sentences.words import in_cpu_slots as in_cpu_slots

CPU_SLOT_MODEL = "CPU slot"
"""The model of a CPU slot in the reports of agents."""


def noun(kinds: Iterable[str]) -> str:
    """Return ``CPU slot`` if all are CPU slots; ``GPU`` otherwise, also if there are none."""
    return "CPU slot" if are_cpu_slots(kinds) else "GPU"


def are_cpu_slots(kinds: Iterable[str]) -> bool:
    """Return whether all are CPU slots; no if there are none."""
    return set(kinds) == {Gpu.Kind.CPU}


def lab_noun() -> str:
    """Return the noun for what all nodes of the lab offer."""
    offered = Gpu.objects.filter(present=True, node__in=_nodes())
    return noun(offered.order_by().values_list("kind", flat=True).distinct())


def node_nouns(nodes: Iterable[int]) -> dict[int, str]:
    """Return the noun for what each of these nodes offers, by id, in one query."""
    kinds: dict[int, set[str]] = {node: set() for node in nodes}
    rows = Gpu.objects.filter(present=True, node__in=kinds).order_by()
    for node, kind in rows.values_list("node_id", "kind").distinct():
        kinds[node].add(kind)
    return {node: noun(found) for node, found in kinds.items()}


def counted(count: int, word: str) -> str:
    """Return a count with its noun: ``1 GPU``, ``2 CPU slots``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def _nodes() -> QuerySet[Node]:
    return Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
