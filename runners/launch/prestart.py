"""Ranks that a host starts before its driver is up, so that they load their libraries meanwhile.

A host that knows all hosts of its attempt from control.json knows which ranks its own will most likely be, and starts them
at once. Like ranks that join a running group (``joining_ranks``), they ask for their place in ``hvd.init()``. The forwarder
holds that request until the driver has asked for a rank in their slot: they then become that rank, whatever rank they
expected to be.
"""

import threading
from collections.abc import Sequence

from runners.launch.files import Host
from runners.launch.joining_ranks import ASKS_FOR_PLACE
from runners.launch.slots import Slot, assign


def expected_slots(hosts: Sequence[Host], name: str, count: int) -> list[Slot]:
    """Return the slots of this host if all hosts come; none unless the host is listed with ``count`` slots."""
    own = [slot for slot in assign(hosts) if slot.hostname == name]
    return own if len(own) == count else []


class PrestartedRanks:
    """The prestarted ranks of one host by slot. A slot is kept while its rank runs or has not been claimed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._codes: dict[str, int | None] = {}
        """The exit code of each prestarted rank: None while it runs."""
        self._places: dict[str, dict[str, str]] = {}
        """The variables with which the driver claimed it."""

    def expect(self, slot: str) -> None:
        """Expect a rank in a slot. Called before its process starts: the rank may ask for its place at any moment then."""
        with self._changed:
            self._codes[slot] = None

    def record_exit(self, slot: str, code: int) -> None:
        with self._changed:
            if slot in self._places:
                del self._codes[slot], self._places[slot]
            elif slot in self._codes:
                self._codes[slot] = code
            self._changed.notify_all()

    def unclaimed_slots(self) -> list[str]:
        """Return the slots whose prestarted ranks the driver has not claimed."""
        with self._changed:
            return [slot for slot in self._codes if slot not in self._places]

    def claim(self, slot: str, env: dict[str, str]) -> int | None:
        """Give the driver the rank in a waiting slot. Returns the exit code if the rank has ended already, else None."""
        with self._changed:
            code = self._codes[slot]
            if code is None:
                self._places[slot] = env
            else:
                del self._codes[slot]
            self._changed.notify_all()
            return code

    def wait_for_place(self, slot: str) -> dict[str, str] | None:
        """Wait until the driver claims the rank in this slot, and return its variables. None: ask the driver, because
        it starts this rank for a running group, or because the rank was not prestarted."""
        with self._changed:
            self._changed.wait_for(lambda: slot in self._places or slot not in self._codes)
            env = self._places.get(slot)
            return None if env is None or ASKS_FOR_PLACE in env else env
