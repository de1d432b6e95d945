"""Limits expensive work to one piece at a time per user."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BusyError(Exception):
    """The user's earlier piece of work is not finished, or the limit for all users together is reached."""


class UserSlots:
    """At most one piece of work per user at a time, and ``count`` for all users together (None: no limit).

    What exceeds a limit is refused; it does not wait.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._users: set[int] = set()

    @contextmanager
    def hold(self, user_id: int) -> Iterator[None]:
        """Hold the slot of a user. Raises BusyError."""
        with self._lock:
            if user_id in self._users or (self._count is not None and len(self._users) >= self._count):
                raise BusyError
            self._users.add(user_id)
        try:
            yield
        finally:
            with self._lock:
                self._users.discard(user_id)
