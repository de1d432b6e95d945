"""Bounds what password guessing costs the portal: checking one takes a processor most of a second.

django-axes counts wrong passwords by name and address. This module counts all names that one address tries together, and
lets only a few requests check a password, or wait to do so, at the same time.
"""

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.cache import cache

MAX_CONCURRENT = 2
MAX_WAITING = 8
WAIT_SECONDS = 10.0
MAX_FAILURES = 40
"""From one address, whatever the names, within ``WINDOW_SECONDS`` of the first. A lab may share one address."""
WINDOW_SECONDS = 300
PREFIX = 64
"""Bits of an IPv6 address that count: one machine can use any address within them."""


class BusyError(Exception):
    """Too many passwords are being checked: try again in a moment."""


class HashingSlots:
    def __init__(self, concurrent: int = MAX_CONCURRENT, max_waiting: int = MAX_WAITING) -> None:
        self._free = threading.BoundedSemaphore(concurrent)
        self._places = threading.BoundedSemaphore(concurrent + max_waiting)

    @contextmanager
    def occupied(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Raises BusyError when too many requests wait already, or none is free in time."""
        if not self._places.acquire(blocking=False):
            raise BusyError
        try:
            if not self._free.acquire(timeout=wait_seconds):
                raise BusyError
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._places.release()


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
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "wrong-passwords-from-elsewhere"
    where = ipaddress.ip_network((ip, PREFIX), strict=False) if ip.version == 6 else ip
    return f"wrong-passwords-from-{where}"
