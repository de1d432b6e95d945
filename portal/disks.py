"""The disks of the portal's files, and how much of them is free."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from portal.incoming import MARGIN_BYTES
from portal.refused import Refused

LOW_PART, LOW_BYTES = 0.1, 50 << 30
"""A disk fills up when less than this part of it is free, and less than so many bytes of a large one."""
RESERVE_BYTES = 256 << 20
"""With less than this, logs and outputs wait on their nodes, too: the rest is for a database on the same disk, without which
jobs could not go on."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk with files of the portal; free space and size in bytes."""

    folder: str
    """The first of the portal's folders on it."""
    free: int
    total: int

    @property
    def taken(self) -> int:
        return self.total - self.free

    @property
    def is_full(self) -> bool:
        """Whether uploads to it are refused."""
        return self.free < MARGIN_BYTES

    @property
    def is_low(self) -> bool:
        return self.is_full or self.free < min(LOW_PART * self.total, LOW_BYTES)


def require_room(folder: Path) -> None:
    """Refuse what would be stored in a folder whose disk is full: the rest is for logs, outputs and the database."""
    if shutil.disk_usage(folder).free < MARGIN_BYTES:
        raise Refused(
            "The disk of the portal is full. Nothing was saved: ask an admin to make room, then try again.", "full"
        )


def has_reserve(name: str, more: int = 0) -> bool:
    """Return whether a folder of ``HOME`` may get ``more`` bytes from a node."""
    home = Path(settings.HOME)
    try:
        free = shutil.disk_usage(home / name).free
    except FileNotFoundError:  # nothing was stored there yet
        free = shutil.disk_usage(home).free
    return free - more >= RESERVE_BYTES


def portal_disks() -> list[Disk]:
    """Return the disks of ``HOME`` and of its folders, which an admin may have moved to others. A folder that cannot be
    reached is left out."""
    found: dict[int, Disk] = {}
    for folder in (Path(settings.HOME), *_folders_within(Path(settings.HOME))):
        try:
            device = folder.stat().st_dev
            if device not in found:
                usage = shutil.disk_usage(folder)
                found[device] = Disk(str(folder), usage.free, usage.total)
        except OSError:
            continue
    return list(found.values())


def _folders_within(home: Path) -> Iterator[Path]:
    try:
        yield from sorted(each for each in home.iterdir() if each.is_dir())
    except OSError:
        return
