"""HostUpdates about hosts, kept for the ranks that will ask. A rank that asks late still gets it."""

import math
import threading
import time
from collections.abc import Collection, Mapping, Set
from typing import Any

NEWS_SECONDS = 20.0
HURRY_SECONDS = 5.0
"""Ranks of a ring come to form it anew within the time of a step, or they wait for somebody who has left."""
STALL_SECONDS = 600.0
"""So long may ranks wait for one of them in a step, and half as long to form the ring anew. It may validate or save alone
meanwhile, which takes minutes. A job says otherwise by Horovod's own variable."""
STALL_VARIABLE = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
CHECK_SECONDS = 50.0
"""Between two looks of Horovod's inspector, and its warnings, which name the rank that the others wait for. A known step
that stands still is seen after two of them, within two minutes, and ended up to one after its time."""

Place = tuple[str, int]
"""Host and slot of a rank."""


def late_ranks(waiting: Mapping[Place, float], placed: Set[Place], now: float, hurried_at: float) -> Set[Place]:
    """The ranks of the ring that others, each since a moment, wait for too long. None twice within that time."""
    if not waiting or now - max(min(waiting.values()), hurried_at) < HURRY_SECONDS:
        return set()
    return placed - waiting.keys()


def stall_seconds(env: Mapping[str, str]) -> float:
    """How long the ranks of a job with these variables wait for one in a step; infinite when it says 0."""
    try:
        wanted = float(env.get(STALL_VARIABLE, STALL_SECONDS))
    except ValueError:
        wanted = STALL_SECONDS
    return wanted if wanted > 0 else math.inf


def check_seconds(env: Mapping[str, str]) -> float:
    """Between two looks of the inspector of a job with these variables. Horovod reads whole seconds, and 0 as never."""
    return max(1.0, min(CHECK_SECONDS, stall_seconds(env) / 5))


def patience(env: Mapping[str, str]) -> float:
    """How long the ranks of a job with these variables wait for one that does not come to form the ring anew."""
    return stall_seconds(env) / 2


def stuck_ranks(
    waiting: Mapping[Place, float], placed: Set[Place], started: Set[Place], now: float, patience_seconds: float
) -> Set[Place]:
    """Late ranks for which the others have no more patience. One that has never come yet is still starting."""
    if not waiting or now - min(waiting.values()) < patience_seconds:
        return set()
    return (placed & started) - waiting.keys()


class Mailbox:
    """One rank's. Stands where Horovod's driver expects a client of the rank's notification service."""

    def __init__(self, changed: threading.Condition, first: int) -> None:
        self._changed = changed
        self._number = first
        self._result = 0
        self._alive: list[str] = []
        self._forgotten = first
        self.asked = False
        """Whether its rank has ever asked: it does from when it enters the training function on."""

    def notify_hosts_updated(self, _timestamp: int, result: int) -> None:
        with self._changed:
            self._number += 1
            self._result = int(result)
            self._changed.notify_all()

    def break_off(self, alive: list[str]) -> None:
        """The caller holds the condition."""
        self._number += 1
        self._alive = alive
        self._changed.notify_all()

    def forget(self) -> None:
        """A new ring has been formed: older news is no news."""
        self._forgotten = self._number
        self._result, self._alive = 0, []

    def read(self, seen: int) -> dict[str, Any]:
        """Waits for news after number ``seen``; answers with the same number when there was none."""
        until = time.monotonic() + NEWS_SECONDS
        with self._changed:
            self.asked = True
            while self._number <= max(seen, self._forgotten):
                left = until - time.monotonic()
                if left <= 0:
                    return {"seen": seen, "timestamp": 0, "result": 0, "alive": []}
                self._changed.wait(left)
            # To Horovod a timestamp only has to be above the last one. Clocks of two drivers may differ, numbers do not.
            number = self._number
            return {"seen": number, "timestamp": number, "result": self._result, "alive": self._alive}


class HostUpdates:
    """``first``: above all numbers that drivers before this one gave."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._changed = threading.Condition()
        self._boxes: dict[Place, Mailbox] = {}

    def box(self, host: str, slot: int) -> Mailbox:
        with self._changed:
            return self._boxes.setdefault((host, slot), Mailbox(self._changed, self._first))

    def break_off(self, alive: list[str], ranks: Collection[Place] | None = None) -> None:
        """These ranks, or all, are to give up what connects them to others than ``alive``.

        A node that was lost does not say so, nor does a rank that waits to form the ring anew.
        """
        with self._changed:
            for place, box in self._boxes.items():
                if ranks is None or place in ranks:
                    box.break_off(alive)

    def forget(self) -> None:
        with self._changed:
            for box in self._boxes.values():
                box.forget()

    def begins(self, host: str, slot: int) -> None:
        """Another rank than before is started there."""
        self.box(host, slot).asked = False

    def training(self) -> Set[Place]:
        """The ranks that have entered the training function."""
        with self._changed:
            return {place for place, box in self._boxes.items() if box.asked}

    def read(self, host: str, slot: int, seen: int) -> dict[str, Any]:
        return self.box(host, slot).read(seen)
