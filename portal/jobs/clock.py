"""Whether silence can be judged by the clock on the wall.

A clock that was set, or a machine that slept, makes every node look silent for as long. The supervisors' fences run on
monotonic clocks, which do neither: their ranks go on, so nothing may be declared lost before the nodes had the time to
be heard of again.
"""

import time
from collections.abc import Callable

TOLERATED_SECONDS = 5.0
"""Clocks are corrected in small steps all the time."""


class WallClock:
    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._drift = wall() - steady()
        self._doubted_until = float("-inf")

    def in_doubt(self, seconds: float) -> bool:
        """True from a jump on for so many seconds. To be asked regularly."""
        steady = self._steady()
        drift = self._wall() - steady
        if abs(drift - self._drift) > TOLERATED_SECONDS:
            self._doubted_until = steady + seconds
        self._drift = drift
        return steady < self._doubted_until


wall_clock = WallClock()
