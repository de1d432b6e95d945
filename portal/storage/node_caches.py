"""Which nodes have a version of a dataset already, as their agents report it."""

from typing import Any

from portal.cluster.models import LIVE_NODE, Node
from portal.storage.models import DatasetVersion

CACHED_FACT = "cached_datasets"
"""The fact of a node with the hashes of the manifests of the datasets that it has, as far as it reports them."""


def read_cached() -> dict[int, frozenset[str]]:
    """Return the hashes of the datasets that each node of the lab has, by node."""
    rows = Node.objects.filter(LIVE_NODE).values_list("pk", f"facts__{CACHED_FACT}")
    return {node: hashes_of(listed) for node, listed in rows if listed}


def hashes_of(listed: Any) -> frozenset[str]:
    """Return what a node has reported, without what is no text."""
    return frozenset(each for each in listed if isinstance(each, str)) if isinstance(listed, list) else frozenset()


def nodes_with(version: DatasetVersion) -> list[Node]:
    """Return the nodes of the lab that have a version already, by name: for the page of its dataset."""
    have = [node for node, hashes in read_cached().items() if version.sha256 in hashes]
    return list(Node.objects.filter(pk__in=have).order_by("name"))
