"""The assignment of ranks to the slots of hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runners.launch.files import Host


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one rank; the fields are those of Horovod's SlotInfo."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slot_env(slot: Any) -> dict[str, str]:
    """Return the variables of Horovod's ``create_slot_env_vars`` for a Slot or a SlotInfo."""
    return {
        "HOROVOD_HOSTNAME": str(slot.hostname),
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }


def assign(hosts: Sequence[Host]) -> list[Slot]:
    """Assign ranks host by host. The cross ring of a local rank consists of the hosts that have such a rank."""
    size = sum(host.slots for host in hosts)
    slots, rank = [], 0
    for host in hosts:
        for local_rank in range(host.slots):
            peers = [other.name for other in hosts if other.slots > local_rank]
            cross_rank = peers.index(host.name)
            slots.append(Slot(host.name, rank, size, local_rank, host.slots, cross_rank, len(peers)))
            rank += 1
    return slots
