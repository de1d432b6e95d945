"""Hosts that come to a ring that trains: their ranks are started at once, and taken in when they are ready for it.

Horovod would have the ring stop first and start them then, so that all of it waits while the new ranks import their
libraries. Here a new rank that comes to ``hvd.init()`` asks for its place (``shim``), and only when all ranks of its
host have asked does Horovod hear of the host.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runners.launch.host_updates import Place
from runners.launch.hosts import Hosts, RankRun
from runners.launch.rendezvous import RefusedError
from runners.launch.slots import Slot, slot_env

ASKS_FOR_PLACE = "SCHEDULEARN_NEWCOMER"
"""Set for a rank that has to ask for its place when it begins (``hvd.init()``)."""


class JoiningRanks:
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._changed = threading.Condition()
        self._known: set[str] = set()
        """Hosts that Horovod has heard of."""
        self._started: set[str] = set()
        self._runs: dict[Place, RankRun] = {}
        self._taken: set[Place] = set()
        self._asked: set[Place] = set()
        self._places: dict[Place, dict[str, str]] = {}
        """What ranks of the present ring have to know."""
        self._failed: set[str] = set()

    def ready(self, available: Mapping[str, int], ring: Collection[str], least: int) -> dict[str, int]:
        """Slots of the hosts that the ring may use: those that Horovod knows, and those whose ranks have asked for their
        place. The ranks of others are started. All may be used while there is no ring, or none of ``least`` ranks."""
        with self._changed:
            if not ring:
                self._known |= available.keys()
            there = sum(slots for name, slots in available.items() if name in self._known)
            for name in [name for name in available if name not in self._known]:
                places = [(name, slot) for slot in range(available[name])]
                if name not in self._started:
                    self._start(name, available[name], there)
                if any(self._runs[place].ended.is_set() for place in places):
                    self._failed.add(name)
                elif there < least or self._asked.issuperset(places):
                    self._known.add(name)
            return {name: slots for name, slots in available.items() if name in self._known}

    def _start(self, name: str, slots: int, ranks: int) -> None:
        """As the ranks that they will most likely be; ``ranks`` are there already."""
        self._started.add(name)
        for slot in range(slots):
            likely = Slot(name, ranks + slot, ranks + slots, slot, slots, 0, 1)
            env = {**slot_env(likely), ASKS_FOR_PLACE: "1"}
            self._runs[name, slot] = self._hosts.start(name, slot, likely.rank, env)

    def take(self, host: str, slot: int) -> RankRun | None:
        """The rank that was started there, if there is one; once."""
        with self._changed:
            if (host, slot) in self._taken:
                return None
            self._taken.add((host, slot))
            return self._runs.get((host, slot))

    def formed(self, plan: Sequence[Any]) -> None:
        """A new ring; the entries are Horovod's SlotInfo."""
        with self._changed:
            self._places = {(slot.hostname, slot.local_rank): slot_env(slot) for slot in plan}
            self._changed.notify_all()

    def first_place(self, host: str, slot: int) -> dict[str, str]:
        """A new rank asks who it is: waits for the ring that has it. Raises RefusedError when there will be none."""
        place = (host, slot)
        with self._changed:
            run = self._runs.get(place)
            if run is None:  # a driver before this one started it, and the ring that it was for is gone
                for stray in self._hosts.runs():
                    if (stray.host, stray.slot) == place:
                        self._hosts.stop(stray)
                raise RefusedError(404, "this rank is none of the ring")
            self._asked.add(place)
            while place not in self._places and not run.ended.is_set():
                self._changed.wait(1.0)
            if place not in self._places:
                raise RefusedError(404, "this rank has ended")
            return self._places[place]

    def turn_away(self, host: str) -> None:
        """It was asked back before its ranks were taken in: nobody waits for them."""
        with self._changed:
            for (name, _), run in self._runs.items():
                if name == host and host not in self._known:
                    self._hosts.stop(run)

    def failed(self, host: str) -> bool:
        """Its ranks ended before they came to the ring."""
        return host in self._failed
