"""Ranks of a ring that begins: started before their driver is up, so that they load their libraries meanwhile.

A host that its agent has told of the ring's hosts knows who its ranks will most likely be, and starts them at once. As
ranks do that come to a ring that trains (``joining_ranks``), they ask for their place in ``hvd.init()``. There the forwarder
holds them until the driver has asked for a rank in their slot: then they are that rank, whoever they took themselves for.
"""

import threading
from collections.abc import Sequence

from runners.launch.files import Host
from runners.launch.joining_ranks import ASKS_FOR_PLACE
from runners.launch.slots import Slot, assign


def likely(hosts: Sequence[Host], name: str, count: int) -> list[Slot]:
    """Who the ranks of this host will be if all hosts come; none when it is not said, or has not ``count`` slots there."""
    own = [slot for slot in assign(hosts) if slot.hostname == name]
    return own if len(own) == count else []


class PrestartedRanks:
    """The early ranks of one host by slot. A slot stays here for as long as its early rank runs, or was not asked for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._codes: dict[str, int | None] = {}
        """Of each early rank: None while it runs."""
        self._places: dict[str, dict[str, str]] = {}
        """The variables with which the driver asked for it."""

    def begin(self, slot: str) -> None:
        """Call it before its process starts: from then on the rank may ask who it is at any moment."""
        with self._changed:
            self._codes[slot] = None

    def ended(self, slot: str, code: int) -> None:
        with self._changed:
            if slot in self._places:
                del self._codes[slot], self._places[slot]
            elif slot in self._codes:
                self._codes[slot] = code
            self._changed.notify_all()

    def waiting(self) -> list[str]:
        """Slots whose early ranks the driver has not asked for."""
        with self._changed:
            return [slot for slot in self._codes if slot not in self._places]

    def ask_for(self, slot: str, env: dict[str, str]) -> int | None:
        """The driver wants a rank in a slot that is waiting. The code with which it has ended already, or None."""
        with self._changed:
            code = self._codes[slot]
            if code is None:
                self._places[slot] = env
            else:
                del self._codes[slot]
            self._changed.notify_all()
            return code

    def place(self, slot: str) -> dict[str, str] | None:
        """An early rank asks who it is: waits for the driver. None: only the driver knows, because its ring trains
        already, or the rank is no early one."""
        with self._changed:
            self._changed.wait_for(lambda: slot in self._places or slot not in self._codes)
            env = self._places.get(slot)
            return None if env is None or ASKS_FOR_PLACE in env else env
