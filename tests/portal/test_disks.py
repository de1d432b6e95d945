"""The disks of the portal: which there are, and when they count as filling up or full."""

from pathlib import Path

import pytest
from django.conf import LazySettings

from portal import disks
from portal.disks import Disk, portal_disks

GIB = 1 << 30


def test_the_folders_of_one_disk_are_one(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    (tmp_path / "code").mkdir()
    (tmp_path / "outputs").symlink_to("/proc")
    (tmp_path / "lost").symlink_to(tmp_path / "none")
    first, second = portal_disks()
    assert (first.folder, second.folder) == (str(tmp_path), str(tmp_path / "outputs"))
    assert first.total > first.free > 0 and first.taken == first.total - first.free


def test_a_folder_that_cannot_be_read_is_no_error(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path / "none"
    assert portal_disks() == []


@pytest.mark.parametrize(
    ("free", "total", "low", "full"),
    [
        (11 * GIB, 100 * GIB, False, False),
        (9 * GIB, 100 * GIB, True, False),
        (51 * GIB, 8000 * GIB, False, False),
        (49 * GIB, 8000 * GIB, True, False),
        (GIB, 100 * GIB, True, False),
        (GIB - 1, 100 * GIB, True, True),
        (GIB - 1, 2 * GIB, True, True),
    ],
)
def test_a_disk_is_low_before_it_is_full(free: int, total: int, low: bool, full: bool) -> None:
    disk = Disk("/srv", free, total)
    assert (disk.is_low, disk.is_full) == (low, full)
    assert disks.LOW_BYTES == 50 * GIB
