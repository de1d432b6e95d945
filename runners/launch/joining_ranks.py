"""Ranks of hosts that join a running group: they are started at once, and join when they are ready.

Horovod would first stop the group and then start them, so that all ranks wait while the new ones import their libraries.
Here a new rank asks for its place in ``hvd.init()`` (``shim``), and Horovod learns of a host only when all its ranks have
asked.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runners.launch.host_updates import Place
from runners.launch.hosts import Hosts, RankRun
from runners.launch.rendezvous import RefusedError
from runners.launch.slots import Slot, slot_env

ASKS_FOR_PLACE = "SCHEDULEARN_NEWCOMER"
"""The variable of a rank that has to ask for its place in ``hvd.init()``."""


class JoiningRanks:
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._changed = threading.Condition()
        self._known: set[str] = set()
        """Hosts that Horovod knows."""
        self._started: set[str] = set()
        self._runs: dict[Place, RankRun] = {}
        self._taken: set[Place] = set()
        self._asked: set[Place] = set()
        self._places: dict[Place, dict[str, str]] = {}
        """The variables of each rank of the present group."""
        self._failed: set[str] = set()

    def usable_slots(self, available: Mapping[str, int], current: Collection[str], min_ranks: int) -> dict[str, int]:
        """Return the slots of the hosts that may be used: those that Horovod knows, and those whose ranks have asked for
        their place. The ranks of other hosts are started. All hosts may be used while no group runs (``current`` is empty)
        or fewer than ``min_ranks`` ranks are left."""
        with self._changed:
            if not current:
                self._known |= available.keys()
            there = sum(slots for name, slots in available.items() if name in self._known)
            for name in [name for name in available if name not in self._known]:
                places = [(name, slot) for slot in range(available[name])]
                if name not in self._started:
                    self._start(name, available[name], there)
                if any(self._runs[place].ended.is_set() for place in places):
                    self._failed.add(name)
                elif there < min_ranks or self._asked.issuperset(places):
                    self._known.add(name)
            return {name: slots for name, slots in available.items() if name in self._known}

    def _start(self, name: str, slots: int, ranks: int) -> None:
        """Start the ranks of a host as those that they will most likely be; the group has ``ranks`` already."""
        self._started.add(name)
        for slot in range(slots):
            likely = Slot(name, ranks + slot, ranks + slots, slot, slots, 0, 1)
            env = {**slot_env(likely), ASKS_FOR_PLACE: "1"}
            self._runs[name, slot] = self._hosts.start(name, slot, likely.rank, env)

    def take(self, host: str, slot: int) -> RankRun | None:
        """Return the rank that was started in a slot, if there is one. Each is returned once."""
        with self._changed:
            if (host, slot) in self._taken:
                return None
            self._taken.add((host, slot))
            return self._runs.get((host, slot))

    def record_group(self, plan: Sequence[Any]) -> None:
        """Record a new group; the entries are Horovod's SlotInfo."""
        with self._changed:
            self._places = {(slot.hostname, slot.local_rank): slot_env(slot) for slot in plan}
            self._changed.notify_all()

    def first_place(self, host: str, slot: int) -> dict[str, str]:
        """Wait for the group that has a new rank, and return the rank's variables. Raises RefusedError if there is none."""
        place = (host, slot)
        with self._changed:
            run = self._runs.get(place)
            if run is None:  # an earlier driver started it, for a group that is gone
                for stray in self._hosts.runs():
                    if (stray.host, stray.slot) == place:
                        self._hosts.stop(stray)
                raise RefusedError(404, "this rank is not in the group")
            self._asked.add(place)
            while place not in self._places and not run.ended.is_set():
                self._changed.wait(1.0)
            if place not in self._places:
                raise RefusedError(404, "this rank has ended")
            return self._places[place]

    def cancel_join(self, host: str) -> None:
        """Stop the ranks of a host that is removed again before it has joined."""
        with self._changed:
            for (name, _), run in self._runs.items():
                if name == host and host not in self._known:
                    self._hosts.stop(run)

    def has_failed(self, host: str) -> bool:
        """Whether a rank of this host ended before it joined."""
        return host in self._failed
