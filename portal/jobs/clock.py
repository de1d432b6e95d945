"""Whether silence can be judged by the clock on the wall.

A clock that was set, or a machine that slept, makes every node look silent for as long. The supervisors' fences run on
monotonic clocks, which do neither: their ranks go on, so nothing may be declared lost before the nodes had the time to
be heard of again. A scheduler that has just started cannot know whether the portal was there to hear them: with it, the
web process may have been away.
"""

import time
from collections.abc import Callable

TOLERATED_SECONDS = 5.0
"""Clocks are corrected in small steps all the time."""
START_SECONDS = 15.0
"""A portal that comes back is up within ten seconds, and agents try again at least every five."""


class WallClock:
    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._drift = wall() - steady()
        self._doubted_until = steady() + START_SECONDS

    def in_doubt(self, seconds: float) -> bool:
        """True from a jump on for so many seconds, and for a moment after the start. To be asked regularly."""
        steady = self._steady()
        drift = self._wall() - steady
        if abs(drift - self._drift) > TOLERATED_SECONDS:
            self._doubted_until = max(self._doubted_until, steady + seconds)
        self._drift = drift
        return steady < self._doubted_until


wall_clock = WallClock()
