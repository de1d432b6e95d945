"""A section for slow work that only one thread may do at a time, without a lock that other threads could need.

A lock of the agent protects memory and is held for microseconds: never across a call to the portal, the disk, an engine
or a driver, because the loop that renews the leases takes the same locks (tests/runners/lock_guard.py enforces it). Slow
work that must not run twice at the same time enters an ``ExclusiveSection`` instead.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runners.runtime import RunError


class BusyError(RunError):
    """Another thread is in the section; try again later."""


class ExclusiveSection:
    """Admits one thread at a time. ``what`` names the work for a BusyError, as in "sending the outputs"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._occupied = False

    @contextmanager
    def enter(self, wait_seconds: float = 0.0) -> Iterator[None]:
        """Enter the section. Raises BusyError when it is not free within that time. Loops that renew leases never wait."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._occupied, wait_seconds):
                raise BusyError(f"Another thread is {self._what}.")
            self._occupied = True
        try:
            yield
        finally:
            with self._changed:
                self._occupied = False
                self._changed.notify()
