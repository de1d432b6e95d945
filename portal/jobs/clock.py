"""Decides whether the wall clock can be trusted to judge how long nodes have been silent.

When the clock is set or the machine slept, every node seems to have been silent for that time. The fences of supervisors
use monotonic clocks, which are not affected: their ranks still run, so no container may be declared lost before the
nodes had time to report again. A scheduler that has just started does not know whether the web process was there to
receive reports.

A step of the clock also makes everything that runs seem older or younger by that time. ``clock_steps`` corrects the
stored times from which limits are counted.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

TOLERATED_SECONDS = 5.0
"""Smaller steps are ignored: clocks are corrected all the time."""
START_SECONDS = 15.0
"""A portal restarts within ten seconds, and agents retry at least every five."""
KNOWN_SECONDS = 60.0
"""The maximum time between two measurements of a step. After a longer one, another scheduler may have been the leader
and have corrected the times already."""


class Step(NamedTuple):
    """By how much the wall clock was set since the last correction, and the time since then by the monotonic clock."""

    seconds: float
    """Positive when it was set forwards or the machine slept; 0 when it was not set, or by an unknown time."""
    since_seconds: float


class WallClock:
    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Start to measure; the clock counts as in doubt for ``start_seconds``."""
        self._wall, self._steady = wall, steady
        self._drift = wall() - steady()
        self._doubted_until = steady() + start_seconds
        self._accounted_drift, self._accounted_at = self._drift, steady()
        self._seen_drift, self._seen_at = self._drift, steady()

    def in_doubt(self, seconds: float) -> bool:
        """Return whether the clock was set within the last ``seconds``, or the process has just started. Call it regularly."""
        steady = self._steady()
        drift = self._wall() - steady
        if abs(drift - self._drift) > TOLERATED_SECONDS:
            self._doubted_until = max(self._doubted_until, steady + seconds)
        self._drift = drift
        return steady < self._doubted_until

    def step(self) -> Step:
        """Return the step since the last ``accounted()``. Small corrections are ignored."""
        self._seen_at = self._steady()
        self._seen_drift = self._wall() - self._seen_at
        moved, since = self._seen_drift - self._accounted_drift, self._seen_at - self._accounted_at
        known = abs(moved) > TOLERATED_SECONDS and since <= KNOWN_SECONDS
        return Step(moved if known else 0.0, since)

    def accounted(self) -> None:
        """Record that all times have been corrected by the result of the last ``step()``."""
        self._accounted_drift, self._accounted_at = self._seen_drift, self._seen_at


wall_clock = WallClock()
