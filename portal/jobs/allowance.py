"""How many messages the viewer of a log may send."""

import time
from collections.abc import Callable

BURST = 200
"""A long list of cursors comes in several messages."""
PER_SECOND = 5.0


class Allowance:
    """Of one socket: one message for each that the viewer was sent, plus a burst that refills at ``PER_SECOND``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def record_sent(self) -> None:
        self._left += 1

    def accept(self) -> bool:
        """Whether one more message is allowed; counts it."""
        now = self._clock()
        if self._left < BURST:
            self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0
