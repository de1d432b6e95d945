"""Detects ranks that did not join each other, but each ran the whole program alone.

A script that does not know about ranks is started once for each of them, and every rank trains on all of the data: more
GPUs make it no faster, and nothing fails. The ``shim`` leaves marks in files of these names when a rank's Python starts,
begins a process group or Horovod, or trains without either.
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
"""The portal recognises it by its beginning (``portal/jobs/causes.py``)."""


class JoinCheck:
    """Reads the marks below ``folder``; ``report`` writes a sentence to the user's log."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self._is_reported = False

    def check(self) -> None:
        """Report it as soon as a rank trains, and not only when a long training is over. Called while ranks run."""
        if not self._is_reported and self._is_there(TRAINS_ALONE) and not self._is_there(JOINED):
            self._is_reported = True
            self._report(SENTENCE)

    def with_note(self, verdict: Verdict) -> Verdict:
        """Return how the host ended, with the sentence if it ended well and no rank joined."""
        if verdict.code or not self._is_there(STARTED) or self._is_there(JOINED):
            return verdict
        if not self._is_reported:
            self._report(SENTENCE)
        return replace(verdict, detail=verdict.detail or SENTENCE)

    def _is_there(self, mark: str) -> bool:
        return (self._folder / f"{JOINING_FILE}{mark}").exists()
