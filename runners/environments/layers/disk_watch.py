"""Ends a build before it fills the disk."""

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from runners.environments.preparing import PrepareError
from runners.messages.layer_failures import DiskNearlyFull, LayerTooLarge, TooManyFiles, TooMuchOutput

GIB = 2**30
MAX_BYTES = 20 * GIB
MAX_FILES = 1_000_000
MAX_LOG_BYTES = 64 * 2**20
MIN_FREE_BYTES = GIB
"""What a build leaves to the jobs, the agent and their logs."""
MIN_INTERVAL_SECONDS = 3.0
SHARE = 0.05
"""The part of the time that measuring a folder may take."""


@dataclass
class DiskWatch:
    """The folder and the log of one build, which are measured now and then."""

    work: Path
    log: Path
    max_bytes: int = MAX_BYTES
    min_free_bytes: int = MIN_FREE_BYTES
    next_measure: float = field(default=0.0)

    def check(self) -> None:
        """Raise PrepareError when a limit is exceeded. The free space is read each time, the folder rarely."""
        free = shutil.disk_usage(self.work).free
        if free < self.min_free_bytes:
            raise PrepareError(DiskNearlyFull(free // 2**20, self.min_free_bytes // 2**20, str(self.work.parent)))
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            raise PrepareError(TooMuchOutput(MAX_LOG_BYTES // 2**20))
        began = time.monotonic()
        if began < self.next_measure:
            return
        used, files = measure(self.work)
        taken = time.monotonic() - began
        self.next_measure = began + max(MIN_INTERVAL_SECONDS, taken / SHARE)
        if used > self.max_bytes:
            raise PrepareError(LayerTooLarge(used // 2**20, self.max_bytes // 2**20))
        if files > MAX_FILES:
            raise PrepareError(TooManyFiles(MAX_FILES))


def measure(folder: Path) -> tuple[int, int]:
    """Return the bytes on the disk and the number of files below a folder, which may be changing. Links are not followed."""
    used, seen = 0, set()
    count = 0
    waiting = [str(folder)]
    while waiting and count <= MAX_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    facts = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if facts.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if facts.st_ino in seen:
                            continue
                        seen.add(facts.st_ino)
                    used += facts.st_blocks * 512
        except OSError:  # removed meanwhile
            continue
    return used, count
