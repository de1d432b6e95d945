"""How much a viewer may say: answers to what it was sent, and a little besides."""

import time
from collections.abc import Callable

AT_ONCE = 200
"""Messages. A list of cursors comes in several."""
PER_SECOND = 5.0


class Allowance:
    """One socket's. Each message to the viewer may be answered by one; the rest is so many at once and in a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(AT_ONCE)
        self._at = clock()

    def sent(self) -> None:
        self._left += 1

    def hear(self) -> bool:
        """Whether one more message is within it."""
        now = self._clock()
        if self._left < AT_ONCE:
            self._left = min(AT_ONCE, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0
