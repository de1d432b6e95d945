"""Limits how many messages the viewer of a log may send."""

import time
from collections.abc import Callable

BURST = 200
"""A long list of cursors comes in several messages."""
REFILL_PER_SECOND = 5.0


class Allowance:
    """The messages that one socket may send: one for each that it received, and a burst that refills over time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def record_sent(self) -> None:
        self._left += 1

    def accept(self) -> bool:
        """Return whether one more message is allowed, and count it."""
        now = self._clock()
        if self._left < BURST:
            self._left = min(BURST, self._left + (now - self._at) * REFILL_PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0
