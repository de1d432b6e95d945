"""Whether the ranks of a host joined the others, or each ran the whole program for itself.

A script that knows nothing of ranks is started once for each of them, and every rank trains on all of the data: more GPUs
make it no faster, and nothing fails. The ``shim`` leaves marks in files of these names when a rank's Python starts, begins
a process group or Horovod, or trains without either.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from runners.launch.host_worker import Verdict
from runners.launch.ranks import JOINING_FILE

STARTED, JOINED, TRAINS_ALONE = ".started", ".joined", ".trains-alone"
SENTENCE = (
    "The ranks have not joined each other: none has started Horovod, a process group of torch or schedulearn_train's Run. "
    "Each runs the whole program by itself, so unless it divides the work by rank, all of them train on all of the data."
)
"""The portal knows it by its beginning (``portal/jobs/causes.py``)."""


class Joining:
    """Looks at the marks below ``folder``; ``say`` tells the user."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._has_said = False

    def look(self) -> None:
        """While ranks run: say it as soon as one trains, and not when a long training is over."""
        if not self._has_said and self._is_there(TRAINS_ALONE) and not self._is_there(JOINED):
            self._has_said = True
            self._say(SENTENCE)

    def noted(self, verdict: Verdict) -> Verdict:
        """Return how the host ended, with the sentence if it ended well and no rank joined."""
        if verdict.code or not self._is_there(STARTED) or self._is_there(JOINED):
            return verdict
        if not self._has_said:
            self._say(SENTENCE)
        return replace(verdict, detail=verdict.detail or SENTENCE)

    def _is_there(self, mark: str) -> bool:
        return (self._folder / f"{JOINING_FILE}{mark}").exists()
