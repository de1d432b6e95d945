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

TOLERANCE_SECONDS = 5.0
"""Smaller steps are ignored: clocks are corrected all the time."""
STARTUP_DOUBT_SECONDS = 15.0
"""A portal restarts within ten seconds, and agents retry at least every five."""
MAX_MEASUREMENT_SECONDS = 60.0
"""The maximum time between two measurements of a step. After a longer one, another scheduler may have been the leader
and have corrected the times already."""


class ClockStep(NamedTuple):
    """By how much the wall clock was set since the last correction, and the time since then by the monotonic clock."""

    seconds: float
    """Positive when it was set forwards or the machine slept; 0 when it was not set, or by an unknown time."""
    since_seconds: float


class WallClock:
    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        start_seconds: float = STARTUP_DOUBT_SECONDS,
    ) -> None:
        """Start to measure; the clock counts as in doubt for ``start_seconds``."""
        self._wall, self._monotonic = wall, monotonic
        self._drift = wall() - monotonic()
        self._doubted_until = monotonic() + start_seconds
        self._corrected_drift, self._corrected_at = self._drift, monotonic()
        self._seen_drift, self._seen_at = self._drift, monotonic()

    def is_in_doubt(self, seconds: float) -> bool:
        """Return whether the clock was set within the last ``seconds``, or the process has just started. Call it regularly."""
        steady = self._monotonic()
        drift = self._wall() - steady
        if abs(drift - self._drift) > TOLERANCE_SECONDS:
            self._doubted_until = max(self._doubted_until, steady + seconds)
        self._drift = drift
        return steady < self._doubted_until

    def step(self) -> ClockStep:
        """Return the step since the last ``mark_corrected()``. Small corrections are ignored."""
        self._seen_at = self._monotonic()
        self._seen_drift = self._wall() - self._seen_at
        moved, since = self._seen_drift - self._corrected_drift, self._seen_at - self._corrected_at
        known = abs(moved) > TOLERANCE_SECONDS and since <= MAX_MEASUREMENT_SECONDS
        return ClockStep(moved if known else 0.0, since)

    def mark_corrected(self) -> None:
        """Record that all times have been corrected by the result of the last ``step()``."""
        self._corrected_drift, self._corrected_at = self._seen_drift, self._seen_at


wall_clock = WallClock()
