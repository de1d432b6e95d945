"""Detects processes that were stopped (SIGSTOP) and not woken: one such rank blocks all others, and their GPUs with them.

A rank that merely hangs still answers in the background, so Horovod's stall inspector notices what it does not do. A
stopped one does not answer at all: others wait for it inside Gloo or NCCL, which the inspector does not see.
"""

import os
import time
from collections.abc import Callable, Mapping

from runners.launch.fence import seconds_from_env
from runners.launch.processes import descendants

STOPPED_SECONDS = 30.0
"""Longer than anyone stops a process to inspect it. Gloo's timeout is 120 s."""
CHECK_SECONDS = 5.0
STOPPED = "T"
"""The kernel's letter for a stopped process. ``t`` is different: a debugger traces the process and will continue it."""


class HangDetector:
    """Finds processes that have been stopped for too long. ``states`` returns the letters of all processes by their ids."""

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
        self._checked_at = -CHECK_SECONDS

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "HangDetector":
        """Make a detector with the default time. ``SCHEDULEARN_STOPPED_SECONDS`` shortens it in tests."""
        return cls(seconds_from_env(env, "SCHEDULEARN_STOPPED_SECONDS", STOPPED_SECONDS))

    def hung_processes(self) -> list[int]:
        """Return the processes that have been stopped for too long. Called repeatedly; checks every few seconds."""
        now = self._clock()
        if now - self._checked_at < min(CHECK_SECONDS, self.seconds):
            return []
        self._checked_at = now
        stopped = [pid for pid, state in self._states().items() if state == STOPPED]
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return [pid for pid, at in self._since.items() if now - at >= self.seconds]
