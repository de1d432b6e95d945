"""Limits the cost of password guessing: checking a password takes most of a second of processor time.

django-axes counts wrong passwords by name and address. This module counts those of one address for all names together, and
allows only a few requests at a time to check a password or to wait for that.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.cache import cache

from portal.addresses import counted_address

MAX_CONCURRENT = 2
MAX_WAITING = 8
WAIT_SECONDS = 10.0
MAX_FAILURES = 40
"""Wrong passwords from one address, for any names, within ``WINDOW_SECONDS``. The users of a lab may share an address."""
WINDOW_SECONDS = 300


class BusyError(Exception):
    """Too many passwords are being checked: try again in a moment."""


class HashingSlots:
    def __init__(self, concurrent: int = MAX_CONCURRENT, max_waiting: int = MAX_WAITING) -> None:
        self._free = threading.BoundedSemaphore(concurrent)
        self._queue = threading.BoundedSemaphore(concurrent + max_waiting)

    @contextmanager
    def hold(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Hold a slot. Raises BusyError when too many requests wait already, or no slot becomes free in time."""
        if not self._queue.acquire(blocking=False):
            raise BusyError
        try:
            if not self._free.acquire(timeout=wait_seconds):
                raise BusyError
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._queue.release()


slots = HashingSlots()


def record_failure(address: str) -> None:
    """Count a wrong password from that address."""
    cache.add(_key(address), 0, WINDOW_SECONDS)
    try:
        cache.incr(_key(address))
    except ValueError:  # it has just expired
        cache.set(_key(address), 1, WINDOW_SECONDS)


def is_blocked(address: str) -> bool:
    return int(cache.get(_key(address), 0)) >= MAX_FAILURES


def _key(address: str) -> str:
    return f"wrong-passwords-from-{counted_address(address)}"
