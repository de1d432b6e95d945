"""Threads that repeat one task, and how long to wait for containers that should end by themselves."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from runners.agent.reconcile import DesiredContainer, JournalEntry
from runners.host.node_files import NodeFiles, read_beneath
from runners.runtime import ObservedContainer

logger = logging.getLogger(__name__)

OVERDUE_SECONDS = 15.0
"""How long a container may run on beyond its grace period, or after writing exit.json (its last act), until the runtime
ends it."""
MAX_GRACE_SECONDS = 3600


class Loop(threading.Thread):
    """Calls ``work`` every ``seconds`` (or after the seconds that it returns), and at once after ``wake_up``.

    An exception ends one call, never the loop: this is the one place that catches everything.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], float | None]) -> None:
        super().__init__(name=name, daemon=True)
        self.seconds = seconds
        self.wake = threading.Event()
        self.ending = False
        self._work = work

    def run(self) -> None:
        while not self.ending:
            rest: float | None = None
            try:
                rest = self._work()
            except Exception:
                if not self.ending:
                    logger.exception("The loop %s failed; it continues.", self.name)
            self.wake.wait(self.seconds if rest is None else rest)
            self.wake.clear()

    def wake_up(self) -> None:
        self.wake.set()

    def end(self) -> None:
        self.ending = True
        self.wake_up()


class OverdueTracker:
    """Records since when each container should have ended by itself, by this process's monotonic clock."""

    def __init__(self, files: NodeFiles, seconds: float = OVERDUE_SECONDS) -> None:
        self._files = files
        self._seconds = seconds
        self._stop_sent_at: dict[str, float] = {}
        self._exit_seen_at: dict[str, float] = {}

    def overdue(
        self,
        desired: Mapping[str, DesiredContainer],
        observed: Mapping[str, ObservedContainer],
        entries: Mapping[str, JournalEntry],
    ) -> frozenset[str]:
        """Name the containers that run on too long after their stop was sent, or after they wrote exit.json."""
        now = time.monotonic()
        running = {
            name for name in desired if name in entries and name in observed and observed[name].state == "running"
        }
        stopping = {name for name in running if (sent := entries[name].control) is not None and sent.stop_reason}
        left = {name for name in running if read_beneath(self._files.scribe(name), "exit.json", 1) is not None}
        self._stop_sent_at = {name: self._stop_sent_at.get(name, now) for name in stopping}
        self._exit_seen_at = {name: self._exit_seen_at.get(name, now) for name in left}
        return frozenset(
            [
                name
                for name, at in self._stop_sent_at.items()
                if now - at > _grace_seconds(entries[name]) + self._seconds
            ]
            + [name for name, at in self._exit_seen_at.items() if now - at > self._seconds]
        )


def _grace_seconds(entry: JournalEntry) -> int:
    return max(0, min(entry.control.grace_seconds, MAX_GRACE_SECONDS)) if entry.control else 0
