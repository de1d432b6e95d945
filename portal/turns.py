"""Costly work, one piece at a time for each user."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BusyError(Exception):
    """The user's earlier piece of work, or as many as there may be, are still being done."""


class Turns:
    """At most one piece of work of each user at once, and ``count`` of all users together, if that is limited. No one
    waits for a turn."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._users: set[int] = set()

    @contextmanager
    def of(self, user_id: int) -> Iterator[None]:
        """Raises BusyError."""
        with self._lock:
            if user_id in self._users or (self._count is not None and len(self._users) >= self._count):
                raise BusyError
            self._users.add(user_id)
        try:
            yield
        finally:
            with self._lock:
                self._users.discard(user_id)
