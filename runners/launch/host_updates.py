"""Updates about hosts, kept until the ranks ask for them. A rank that asks late still gets them."""

import math
import threading
import time
from collections.abc import Collection, Mapping, Set
from typing import Any

WAIT_SECONDS = 20.0
LATE_SECONDS = 5.0
"""Ranks ask for a new ring within the time of a step. One that takes longer waits in the old ring for a rank that left."""
STALL_SECONDS = 600.0
"""How long ranks may wait for one of them in a step; half as long to form a new group. That rank may validate or save alone
meanwhile, which takes minutes. A job sets another time by Horovod's own variable."""
STALL_VARIABLE = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
STALL_CHECK_SECONDS = 50.0
"""The interval of the checks of Horovod's stall inspector and of its warnings, which name the rank that the others wait
for. A stalled step is noticed after two intervals, within two minutes, and ended up to one interval after its time."""

Place = tuple[str, int]
"""The host and slot of a rank."""


def late_ranks(waiting: Mapping[Place, float], placed: Set[Place], now: float, last_late_at: float) -> Set[Place]:
    """Return the ranks for which others have waited too long for a new group; none twice within ``LATE_SECONDS``.

    ``waiting`` has the time since which each waiting rank waits; ``last_late_at`` is when late ranks were last returned.
    """
    if not waiting or now - max(min(waiting.values()), last_late_at) < LATE_SECONDS:
        return set()
    return placed - waiting.keys()


def stall_seconds(env: Mapping[str, str]) -> float:
    """Return how long the ranks of a job with these variables wait for one in a step; infinite for 0."""
    try:
        wanted = float(env.get(STALL_VARIABLE, STALL_SECONDS))
    except ValueError:
        wanted = STALL_SECONDS
    return wanted if wanted > 0 else math.inf


def stall_check_seconds(env: Mapping[str, str]) -> float:
    """Return the inspector's interval for a job with these variables. Horovod reads whole seconds, and 0 as never."""
    return max(1.0, min(STALL_CHECK_SECONDS, stall_seconds(env) / 5))


def regroup_timeout_seconds(env: Mapping[str, str]) -> float:
    """Return how long the ranks of a job with these variables wait for one that does not come to form a new group."""
    return stall_seconds(env) / 2


def stuck_ranks(
    waiting: Mapping[Place, float], placed: Set[Place], started: Set[Place], now: float, patience_seconds: float
) -> Set[Place]:
    """Return the late ranks for which others have waited longer than ``patience_seconds``. One that has never asked for its
    place is still starting."""
    if not waiting or now - min(waiting.values()) < patience_seconds:
        return set()
    return (placed & started) - waiting.keys()


class Mailbox:
    """The updates of one rank. Takes the place of Horovod's client of the rank's notification service."""

    def __init__(self, changed: threading.Condition, first: int) -> None:
        self._changed = changed
        self._number = first
        self._result = 0
        self._alive: list[str] = []
        self._discarded = first
        self.asked = False
        """Whether its rank has ever asked: it does so once it has entered the training function."""

    def notify_hosts_updated(self, _timestamp: int, result: int) -> None:
        with self._changed:
            self._number += 1
            self._result = int(result)
            self._changed.notify_all()

    def drop_connections(self, alive: list[str]) -> None:
        """Have the rank drop its connections to all but these addresses. The caller holds the condition."""
        self._number += 1
        self._alive = alive
        self._changed.notify_all()

    def discard(self) -> None:
        """Discard older updates, because a new group has been formed."""
        self._discarded = self._number
        self._result, self._alive = 0, []

    def read(self, seen: int) -> dict[str, Any]:
        """Wait for an update after number ``seen``; the answer has the same number when there was none."""
        until = time.monotonic() + WAIT_SECONDS
        with self._changed:
            self.asked = True
            while self._number <= max(seen, self._discarded):
                left = until - time.monotonic()
                if left <= 0:
                    return {"seen": seen, "timestamp": 0, "result": 0, "alive": []}
                self._changed.wait(left)
            # To Horovod a timestamp only has to be above the last one. Clocks of two drivers may differ, numbers do not.
            number = self._number
            return {"seen": number, "timestamp": number, "result": self._result, "alive": self._alive}


class HostUpdates:
    """The updates of all ranks. ``first`` is above all numbers that earlier drivers have assigned."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._changed = threading.Condition()
        self._mailboxes: dict[Place, Mailbox] = {}

    def mailbox(self, host: str, slot: int) -> Mailbox:
        with self._changed:
            return self._mailboxes.setdefault((host, slot), Mailbox(self._changed, self._first))

    def drop_connections(self, alive: list[str], ranks: Collection[Place] | None = None) -> None:
        """Have these ranks, or all, drop their connections to all addresses but those in ``alive``.

        A lost node does not close its connections, nor does a rank that waits to form a new group.
        """
        with self._changed:
            for place, mailbox in self._mailboxes.items():
                if ranks is None or place in ranks:
                    mailbox.drop_connections(alive)

    def discard(self) -> None:
        with self._changed:
            for mailbox in self._mailboxes.values():
                mailbox.discard()

    def reset_rank(self, host: str, slot: int) -> None:
        """Record that another rank is started in a slot."""
        self.mailbox(host, slot).asked = False

    def training_ranks(self) -> Set[Place]:
        """Return the ranks that have entered the training function."""
        with self._changed:
            return {place for place, mailbox in self._mailboxes.items() if mailbox.asked}

    def read(self, host: str, slot: int, seen: int) -> dict[str, Any]:
        return self.mailbox(host, slot).read(seen)
