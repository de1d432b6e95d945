"""News about hosts, kept for the ranks that will ask. A rank that asks late still gets it."""

import threading
import time
from typing import Any

NEWS_SECONDS = 20.0


class Mailbox:
    """One rank's. Stands where Horovod's driver expects a client of the rank's notification service."""

    def __init__(self, changed: threading.Condition, first: int) -> None:
        self._changed = changed
        self._number = first
        self._result = 0
        self._alive: list[str] = []
        self._forgotten = first

    def notify_hosts_updated(self, _timestamp: int, result: int) -> None:
        with self._changed:
            self._number += 1
            self._result = int(result)
            self._changed.notify_all()

    def break_off(self, alive: list[str]) -> None:
        """The caller holds the condition."""
        self._number += 1
        self._alive = alive
        self._changed.notify_all()

    def forget(self) -> None:
        """A new ring has been formed: older news is no news."""
        self._forgotten = self._number
        self._result, self._alive = 0, []

    def read(self, seen: int) -> dict[str, Any]:
        """Waits for news after number ``seen``; answers with the same number when there was none."""
        until = time.monotonic() + NEWS_SECONDS
        with self._changed:
            while self._number <= max(seen, self._forgotten):
                left = until - time.monotonic()
                if left <= 0:
                    return {"seen": seen, "timestamp": 0, "result": 0, "alive": []}
                self._changed.wait(left)
            # To Horovod a timestamp only has to be above the last one. Clocks of two drivers may differ, numbers do not.
            number = self._number
            return {"seen": number, "timestamp": number, "result": self._result, "alive": self._alive}


class News:
    """``first``: above all numbers that drivers before this one gave."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._changed = threading.Condition()
        self._boxes: dict[tuple[str, int], Mailbox] = {}

    def box(self, host: str, slot: int) -> Mailbox:
        with self._changed:
            return self._boxes.setdefault((host, slot), Mailbox(self._changed, self._first))

    def break_off(self, alive: list[str]) -> None:
        """All ranks are to give up what connects them to others than these: a node that was lost does not say so."""
        with self._changed:
            for box in self._boxes.values():
                box.break_off(alive)

    def forget(self) -> None:
        with self._changed:
            for box in self._boxes.values():
                box.forget()

    def read(self, host: str, slot: int, seen: int) -> dict[str, Any]:
        return self.box(host, slot).read(seen)
