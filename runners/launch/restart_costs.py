"""Measures what a change costs ranks that it restarts: the time from the last step before it to the first one after it.

Such a rank ends at the change, so what it measures must outlive it. The ``shim`` writes the times of its steps to a file
for its slot; the supervisor reads what the last rank left there, and the first step of the next one.
"""

import contextlib
import math
import os
import struct
from pathlib import Path
from typing import NamedTuple

STEPS_VARIABLE = "SCHEDULEARN_STEPS"
"""The variable with the path of a rank's file."""
LAYOUT = struct.Struct("=ddq")
"""The layout of the file: times of the first and last step in seconds on this machine's monotonic clock; their number."""


class Steps(NamedTuple):
    first: float
    last: float
    number: int
    """How many steps were made."""

    @property
    def mean_seconds(self) -> float:
        return (self.last - self.first) / (self.number - 1) if self.number > 1 else 0.0


class RestartCosts:
    """Measures the cost of changes by slot (as text). The files are in ``folder``, where ranks may write anything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[str, Steps] = {}
        """The steps, by slot, of the last rank that made some."""
        self._awaited: set[str] = set()
        """Slots in which a first step is expected, after a rank that made steps."""

    def file(self, slot: str) -> Path:
        return self._folder / f"steps-{slot}"

    def record_exit(self, slot: str) -> None:
        if steps := read_steps(self.file(slot)):
            self._before[slot] = steps
        self._awaited.discard(slot)

    def expect(self, slot: str) -> None:
        """Expect the first step of a new rank. Called before the rank is started."""
        with contextlib.suppress(OSError):  # it may be a folder that a rank made there
            self.file(slot).unlink()
        if slot in self._before:
            self._awaited.add(slot)

    def take_new(self) -> dict[str, float]:
        """Return the cost in seconds by slot, of the ranks that have begun to train since the last call."""
        found = {}
        for slot in sorted(self._awaited):
            if steps := read_steps(self.file(slot)):
                before = self._before[slot]
                found[slot] = max(0.0, steps.first - before.last - before.mean_seconds)
        self._awaited -= found.keys()
        return found


def read_steps(path: Path) -> Steps | None:
    """Return the steps in a file, None without any or when the content is invalid."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be a pipe without a writer
        try:
            steps = Steps(*LAYOUT.unpack(os.read(handle, LAYOUT.size)))
        finally:
            os.close(handle)
    except (OSError, struct.error):
        return None
    sane = math.isfinite(steps.first) and math.isfinite(steps.last) and 0 <= steps.first <= steps.last
    return steps if sane and steps.number > 0 else None
