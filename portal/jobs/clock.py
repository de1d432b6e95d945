"""Whether silence can be judged by the clock on the wall.

A clock that was set, or a machine that slept, makes every node look silent for as long. The supervisors' fences run on
monotonic clocks, which do neither: their ranks go on, so nothing may be declared lost before the nodes had the time to
be heard of again. A scheduler that has just started cannot know whether the portal was there to hear them: with it, the
web process may have been away.

A step of the clock also makes everything that runs look older or younger by as much. ``clock_steps`` takes it out of the
times that limits are counted from.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

TOLERATED_SECONDS = 5.0
"""Clocks are corrected in small steps all the time."""
START_SECONDS = 15.0
"""A portal that comes back is up within ten seconds, and agents try again at least every five."""
KNOWN_SECONDS = 60.0
"""A step is measured between two looks. When the last one is longer ago, another scheduler may have led and accounted for it."""


class Step(NamedTuple):
    """By how much the wall clock was set since it was last accounted for, and how long ago that was by the steady clock."""

    seconds: float
    """Positive when it was set forwards, or the machine slept; 0 when it was not set, or by how much is unknown."""
    since_seconds: float


class WallClock:
    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """``start_seconds``: how long to doubt it from now on."""
        self._wall, self._steady = wall, steady
        self._drift = wall() - steady()
        self._doubted_until = steady() + start_seconds
        self._accounted_drift, self._accounted_at = self._drift, steady()
        self._seen_drift, self._seen_at = self._drift, steady()

    def in_doubt(self, seconds: float) -> bool:
        """True from a jump on for so many seconds, and for a moment after the start. To be asked regularly."""
        steady = self._steady()
        drift = self._wall() - steady
        if abs(drift - self._drift) > TOLERATED_SECONDS:
            self._doubted_until = max(self._doubted_until, steady + seconds)
        self._drift = drift
        return steady < self._doubted_until

    def step(self) -> Step:
        """Since the last ``accounted``. Small corrections count as none."""
        self._seen_at = self._steady()
        self._seen_drift = self._wall() - self._seen_at
        moved, since = self._seen_drift - self._accounted_drift, self._seen_at - self._accounted_at
        known = abs(moved) > TOLERATED_SECONDS and since <= KNOWN_SECONDS
        return Step(moved if known else 0.0, since)

    def accounted(self) -> None:
        """What the last ``step`` returned has been taken out of all times, for good."""
        self._accounted_drift, self._accounted_at = self._seen_drift, self._seen_at


wall_clock = WallClock()
