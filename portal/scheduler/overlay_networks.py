"""The networks of attempts over several nodes: a number that no other live attempt has, and what follows from it.

Every container of such an attempt has a fixed address, so nothing has to ask for a name. An attempt that stays on one
node has no number: its engine chooses the addresses.
"""

from collections.abc import Iterable

from django.conf import settings

from portal.cluster.models import Node
from portal.jobs.models import Attempt

PREFIX = 22
"""Of one attempt's network: some thousand containers in its whole life, and as many networks as a lab has GPUs."""
FIRST = 2
"""The first address is the network's own name, the second the engine's."""
ADDRESSES = 2 ** (32 - PREFIX) - FIRST - 1
"""The last one means everybody."""


def how_many() -> int:
    return 2 ** (PREFIX - int(settings.RING_NETWORK.prefixlen))


def free() -> int | None:
    """A number for a new attempt; None when all are in use.

    The one after the last: a node may still be clearing away the network of an attempt that has just ended.
    """
    numbered = Attempt.objects.filter(ring__isnull=False)
    taken = set(numbered.filter(ended_at__isnull=True).values_list("ring", flat=True))
    last = numbered.order_by("-pk").values_list("ring", flat=True).first()
    start = 0 if last is None else last + 1
    most = how_many()
    return next((number for each in range(most) if (number := (start + each) % most) not in taken), None)


def network_number(ring: int) -> int:
    """As the nodes know it."""
    return int(settings.RING_VNI_BASE) + ring


def subnet_of(ring: int) -> str:
    base = settings.RING_NETWORK.network_address + ring * 2 ** (32 - PREFIX)
    return f"{base}/{PREFIX}"


def place_of(index: int) -> int:
    """Containers whose places are the same have the same address: only one of them may live."""
    return index % ADDRESSES


def address_of(ring: int, index: int) -> str:
    return str(settings.RING_NETWORK.network_address + ring * 2 ** (32 - PREFIX) + FIRST + place_of(index))


def next_index(used: Iterable[int], live: Iterable[int]) -> int:
    """The next container's: above all that were ever used, at an address of none that lives."""
    places = {place_of(index) for index in live}
    index = max(used, default=-1) + 1
    while place_of(index) in places:
        index += 1
    return index


def reaches_others(node: Node) -> bool:
    """It says where containers of other nodes reach its own."""
    return bool(node.facts.get("ring_address"))
