"""The disks that the files of an agent are on, and how much of them is free."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.messages.problems import FullDisk, Problem, SmallDisk

STEP_MIB, FULL_STEP_MIB = 256, 64
"""The precision of what is reported; smaller changes would only make each report differ."""
SMALL_MIB = 10 * 1024
"""With less than this, a disk is about to be full: an environment alone takes about 8 GiB."""
FULL_MIB, FULL_PART = 1024, 0.05
"""A disk with less than this, or of a small disk with less than this part of it, gets no new jobs."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk, and what the agent has on it."""

    folder: str
    """The first of the agent's folders on it."""
    uses: tuple[str, ...]
    """Keys of ``runners.messages.problems.DISK_USES``."""
    free_mib: int
    total_mib: int

    @property
    def is_full(self) -> bool:
        return self.free_mib < min(FULL_MIB, FULL_PART * self.total_mib)

    @property
    def problem(self) -> Problem | None:
        """What an admin should know about it."""
        if self.is_full:
            return FullDisk(self.free_mib // FULL_STEP_MIB * FULL_STEP_MIB, self.folder, self.uses)
        if self.free_mib < SMALL_MIB:
            return SmallDisk(round(self.free_mib / 1024, 1), self.folder, self.uses)
        return None

    def to_json(self) -> dict[str, Any]:
        free = self.free_mib // STEP_MIB * STEP_MIB
        return {"folder": self.folder, "uses": list(self.uses), "free_mib": free, "total_mib": self.total_mib}


def find_disks(folders: Mapping[str, Path]) -> list[Disk]:
    """Return the disks of some folders by their use, in this order. Folders that are on another machine are left out."""
    found: dict[int, Disk] = {}
    for use, folder in folders.items():
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        first = found.get(device)
        found[device] = Disk(
            first.folder if first else str(folder),
            (*first.uses, use) if first else (use,),
            usage.free >> 20,
            usage.total >> 20,
        )
    return list(found.values())
