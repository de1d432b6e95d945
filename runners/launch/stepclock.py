"""What a change of its ring costs a rank that begins anew: the time from its slot's last step before to the first one after.

Such a rank ends with its ring, so what it measures must outlive it. The ``shim`` writes the times of its steps to a file
for its slot; the supervisor reads what the last rank left there, and what the next one begins with.
"""

import contextlib
import math
import os
import struct
from pathlib import Path
from typing import NamedTuple

STEPS_VARIABLE = "SCHEDULEARN_STEPS"
"""Names a rank's file."""
LAYOUT = struct.Struct("=ddq")
"""Of the file: first and last step, seconds on the monotonic clock of this machine; how many there were."""


class Steps(NamedTuple):
    first: float
    last: float
    number: int
    """How many there were."""

    @property
    def usual_seconds(self) -> float:
        return (self.last - self.first) / (self.number - 1) if self.number > 1 else 0.0


class StepClock:
    """By slot, as a text. The files lie in ``folder``, where ranks may write whatever they like."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[str, Steps] = {}
        """Of the last rank that made steps there."""
        self._awaited: set[str] = set()
        """Where a first step is to come, after a rank that made some."""

    def file(self, slot: str) -> Path:
        return self._folder / f"steps-{slot}"

    def ended(self, slot: str) -> None:
        if steps := read(self.file(slot)):
            self._before[slot] = steps
        self._awaited.discard(slot)

    def begins(self, slot: str) -> None:
        """Called before the rank is started."""
        with contextlib.suppress(OSError):  # what a rank made there instead of a file is no rank's steps either
            self.file(slot).unlink()
        if slot in self._before:
            self._awaited.add(slot)

    def costs(self) -> dict[str, float]:
        """Seconds by slot, of the ranks that have begun to train since the last call."""
        found = {}
        for slot in sorted(self._awaited):
            if steps := read(self.file(slot)):
                before = self._before[slot]
                found[slot] = max(0.0, steps.first - before.last - before.usual_seconds)
        self._awaited -= found.keys()
        return found


def read(path: Path) -> Steps | None:
    """None without a step, or when what is there cannot be that."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be a pipe that nobody writes to
        try:
            steps = Steps(*LAYOUT.unpack(os.read(handle, LAYOUT.size)))
        finally:
            os.close(handle)
    except (OSError, struct.error):
        return None
    sane = math.isfinite(steps.first) and math.isfinite(steps.last) and 0 <= steps.first <= steps.last
    return steps if sane and steps.number > 0 else None
