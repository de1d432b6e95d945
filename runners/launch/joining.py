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
from runners.messages.launch import RanksApart

STARTED, JOINED, TRAINS_ALONE = ".started", ".joined", ".trains-alone"


class JoinCheck:
    """Reads the marks below ``folder``; ``report`` writes a sentence to the user's log."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self._is_reported = False

    def check(self) -> None:
        """Report a rank that trains alone at once, not only when a long training is over. Called while ranks run."""
        if not self._is_reported and self._has_mark(TRAINS_ALONE) and not self._has_mark(JOINED):
            self._is_reported = True
            self._report(RanksApart().text)

    def add_warning(self, verdict: Verdict) -> Verdict:
        """Return the verdict, with a warning if the host ended normally and no rank joined."""
        if verdict.code or not self._has_mark(STARTED) or self._has_mark(JOINED):
            return verdict
        if not self._is_reported:
            self._report(RanksApart().text)
        return replace(verdict, message=verdict.message or RanksApart())

    def _has_mark(self, mark: str) -> bool:
        return (self._folder / f"{JOINING_FILE}{mark}").exists()
