"""Bounds what strangers who guess passwords cost the portal: to look at one takes a processor most of a second.

django-axes counts wrong passwords by name and address. Here all names that one address tries are counted together, and
few passwords are looked at at once, with few requests waiting for their turn.
"""

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.cache import cache

AT_ONCE = 2
MOST_WAITING = 8
WAIT_SECONDS = 10.0
MOST_FAILURES = 40
"""From one address, whatever the names, within ``WINDOW_SECONDS`` of the first. A lab may share one address."""
WINDOW_SECONDS = 300
PREFIX = 64
"""Of an IPv6 address, which one machine can change at will beyond it."""


class BusyError(Exception):
    """Too many passwords are being looked at: ask again in a moment."""


class Turns:
    def __init__(self, at_once: int = AT_ONCE, most_waiting: int = MOST_WAITING) -> None:
        self._free = threading.BoundedSemaphore(at_once)
        self._places = threading.BoundedSemaphore(at_once + most_waiting)

    @contextmanager
    def taken(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Raises BusyError when too many wait already, or the turn does not come in time."""
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


turns = Turns()


def failed(address: str) -> None:
    """Counts a wrong password that came from there."""
    cache.add(_key(address), 0, WINDOW_SECONDS)
    try:
        cache.incr(_key(address))
    except ValueError:  # it has just run out
        cache.set(_key(address), 1, WINDOW_SECONDS)


def must_rest(address: str) -> bool:
    return int(cache.get(_key(address), 0)) >= MOST_FAILURES


def _key(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "wrong-passwords-from-elsewhere"
    where = ipaddress.ip_network((ip, PREFIX), strict=False) if ip.version == 6 else ip
    return f"wrong-passwords-from-{where}"
