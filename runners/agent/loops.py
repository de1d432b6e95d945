"""Threads that do one thing again and again, and how long to wait for what should end by itself."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from runners.agent.reconcile import Desired, Note
from runners.host.node_files import NodeFiles, read_beneath
from runners.runtime import Observed

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0
"""Beyond a container's grace, before it is ended through the runtime; also after exit.json, which comes last."""
MOST_GRACE_SECONDS = 3600


class Loop(threading.Thread):
    """Calls ``work`` every so many seconds (or as many as it answers), and at once when its bell rings.

    An exception costs one turn, never the loop: this is the one place that catches everything.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], float | None]) -> None:
        super().__init__(name=name, daemon=True)
        self.seconds = seconds
        self.bell = threading.Event()
        self.ending = False
        self._work = work

    def run(self) -> None:
        while not self.ending:
            rest: float | None = None
            try:
                rest = self._work()
            except Exception:
                if not self.ending:
                    logger.exception("The loop %s stumbled; it goes on.", self.name)
            self.bell.wait(self.seconds if rest is None else rest)
            self.bell.clear()

    def end(self) -> None:
        self.ending = True
        self.bell.set()


class Patience:
    """Since when each container should have ended by itself. By this process's monotonic clock."""

    def __init__(self, files: NodeFiles, seconds: float = PATIENCE_SECONDS) -> None:
        self._files = files
        self._seconds = seconds
        self._told_at: dict[str, float] = {}
        self._exit_seen_at: dict[str, float] = {}

    def overdue(
        self, desired: Mapping[str, Desired], observed: Mapping[str, Observed], notes: Mapping[str, Note]
    ) -> frozenset[str]:
        """Names of those that were told to stop, or have written exit.json, and run on beyond all grace."""
        now = time.monotonic()
        running = {name for name in desired if name in notes and name in observed and observed[name].state == "running"}
        told = {name for name in running if (said := notes[name].told) is not None and said.stop_reason}
        left = {name for name in running if read_beneath(self._files.scribe(name), "exit.json", 1) is not None}
        self._told_at = {name: self._told_at.get(name, now) for name in told}
        self._exit_seen_at = {name: self._exit_seen_at.get(name, now) for name in left}
        return frozenset(
            [name for name, at in self._told_at.items() if now - at > _grace(notes[name]) + self._seconds]
            + [name for name, at in self._exit_seen_at.items() if now - at > self._seconds]
        )


def _grace(note: Note) -> int:
    return max(0, min(note.told.grace_seconds, MOST_GRACE_SECONDS)) if note.told else 0
