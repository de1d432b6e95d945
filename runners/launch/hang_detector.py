"""Processes that were stopped (SIGSTOP) and not woken: one such rank holds up all others, and their GPUs with them.

A rank that merely hangs still answers in the background, and Horovod's stall inspector misses what it does not do. One
that was stopped answers nobody: who waits for it waits inside Gloo or NCCL, where no inspector looks.
"""

import os
import time
from collections.abc import Callable, Mapping

from runners.launch.fence import shortened
from runners.launch.processes import descendants

STOPPED_SECONDS = 30.0
"""Whoever stops a process to look at it has gone by then. Gloo's patience is 120 s."""
LOOK_SECONDS = 5.0
STOPPED = "T"
"""The kernel's letter for it. ``t`` is another thing: somebody traces it, and lets it go on."""


class HangDetector:
    """``states``: the letters of all processes of the container, by their ids."""

    def __init__(
        self,
        seconds: float = STOPPED_SECONDS,
        states: Callable[[], Mapping[int, str]] = lambda: descendants(os.getpid()),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._states = states
        self._clock = clock
        self._since: dict[int, float] = {}
        self._looked_at = -LOOK_SECONDS

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "HangDetector":
        """``SCHEDULEARN_STOPPED_SECONDS`` shortens the time in tests."""
        return cls(shortened(env, "SCHEDULEARN_STOPPED_SECONDS", STOPPED_SECONDS))

    def overdue(self) -> list[int]:
        """Called again and again; looks every few seconds. The processes that have stood still for too long."""
        now = self._clock()
        if now - self._looked_at < min(LOOK_SECONDS, self.seconds):
            return []
        self._looked_at = now
        stopped = [pid for pid, state in self._states().items() if state == STOPPED]
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return [pid for pid, at in self._since.items() if now - at >= self.seconds]
