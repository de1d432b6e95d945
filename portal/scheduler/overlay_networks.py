"""Overlay networks of attempts over several nodes: each has a number of its own, which gives subnet and addresses.

Every container of such an attempt has a fixed address, so no name has to be resolved. An attempt that stays on one node
has no number: the container engine chooses the addresses.
"""

from collections.abc import Iterable

from django.conf import settings

from portal.cluster.models import Node
from portal.jobs.models import Attempt

PREFIX_LENGTH = 22
"""The prefix length of one network: about a thousand containers in all, and as many networks as a lab has GPUs."""
FIRST_ADDRESS = 2
"""The first address is that of the network, the second that of the engine."""
ADDRESS_COUNT: int = 2 ** (32 - PREFIX_LENGTH) - FIRST_ADDRESS - 1
"""Addresses for containers; the last one of the network is for broadcasts."""


def network_count() -> int:
    """Return how many networks there can be at once."""
    count: int = 2 ** (PREFIX_LENGTH - int(settings.RING_NETWORK.prefixlen))
    return count


def next_free_number() -> int | None:
    """Return a number for a new attempt; None when all are in use.

    It is the next after the last one: a node may still be removing the network of an attempt that has just ended.
    """
    numbered = Attempt.objects.filter(overlay_network__isnull=False)
    taken = set(numbered.filter(ended_at__isnull=True).values_list("overlay_network", flat=True))
    last = numbered.order_by("-pk").values_list("overlay_network", flat=True).first()
    start = 0 if last is None else last + 1
    count = network_count()
    return next((number for each in range(count) if (number := (start + each) % count) not in taken), None)


def vni_of(number: int) -> int:
    """Return the VXLAN network identifier (VNI) of a network."""
    return int(settings.RING_VNI_BASE) + number


def subnet_of(number: int) -> str:
    """Return the subnet of a network, ``10.77.0.0/22`` for example."""
    base = settings.RING_NETWORK.network_address + number * 2 ** (32 - PREFIX_LENGTH)
    return f"{base}/{PREFIX_LENGTH}"


def slot_of(index: int) -> int:
    """Return a container's slot: containers with the same slot have the same address, and only one may be live."""
    return index % ADDRESS_COUNT


def address_of(number: int, index: int) -> str:
    """Return the address of a container in a network."""
    return str(
        settings.RING_NETWORK.network_address + number * 2 ** (32 - PREFIX_LENGTH) + FIRST_ADDRESS + slot_of(index)
    )


def next_index(used: Iterable[int], live: Iterable[int]) -> int:
    """Return the next container's index: above all that were ever used, with an address that no live container has."""
    taken = {slot_of(index) for index in live}
    index = max(used, default=-1) + 1
    while slot_of(index) in taken:
        index += 1
    return index


def is_reachable(node: Node) -> bool:
    """Return whether the node has reported an address at which containers on other nodes reach its own."""
    return bool(node.facts.get("ring_address"))
