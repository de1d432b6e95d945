"""Slow work that one thread at a time may do, without a lock that others could need.

A lock of the agent protects memory and is held for moments only: never across a call to the portal, the disk, an
engine or a driver, since the loop that renews the leases takes the same locks (tests/runners/lock_guard.py watches
over that). What must happen one at a time and takes long has a ``Turn`` instead.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runners.runtime import RunError


class BusyError(RunError):
    """Somebody else has the turn: ask again later."""


class Turn:
    """``what`` is done in it, as in "sending the outputs": for the sentence of a BusyError."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._taken = False

    @contextmanager
    def taken(self, wait_seconds: float = 0.0) -> Iterator[None]:
        """Raises BusyError when it does not come within that time. Never waited for by loops that renew leases."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._taken, wait_seconds):
                raise BusyError(f"Something else is {self._what} just now.")
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify()
