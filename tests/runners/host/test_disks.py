"""Which disks an agent measures, and what it reports of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from portal.sentences.problems import problem_of
from runners.host import disks
from runners.host.disks import Disk, find_disks
from runners.messages import message_from
from runners.messages.problems import FullDisk, SmallDisk

GIB = 1024


def disk(free_mib: int, total_mib: int = 500 * GIB, *uses: str) -> Disk:
    return Disk("/srv", uses or ("agent",), free_mib, total_mib)


def test_folders_of_one_disk_are_one_and_missing_ones_none(tmp_path: Path) -> None:
    [found] = find_disks({"agent": tmp_path, "engine": tmp_path / "none", "cache": tmp_path.parent})
    assert found.uses == ("agent", "cache") and found.folder == str(tmp_path) and 0 < found.free_mib < found.total_mib


def test_folders_of_two_disks_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/proc")
    [first, second] = find_disks({"agent": tmp_path, "cache": shared})
    assert (first.uses, second.uses, second.folder) == (("agent",), ("cache",), "/proc")
    usage = SimpleNamespace(total=8 << 30, used=0, free=3 << 30)
    monkeypatch.setattr(disks.shutil, "disk_usage", lambda folder: usage)
    assert find_disks({"agent": tmp_path})[0].to_json() == {
        "folder": str(tmp_path),
        "uses": ["agent"],
        "free_mib": 3 * GIB,
        "total_mib": 8 * GIB,
    }


@pytest.mark.parametrize(
    ("free", "total", "kind"),
    [
        (11 * GIB, 500 * GIB, None),
        (9 * GIB, 500 * GIB, SmallDisk),
        (GIB, 500 * GIB, SmallDisk),
        (GIB - 1, 500 * GIB, FullDisk),
        (500, 2 * GIB, SmallDisk),
        (100, 2 * GIB, FullDisk),
    ],
)
def test_a_disk_is_small_before_it_is_full(free: int, total: int, kind: type | None) -> None:
    problem = disk(free, total).problem
    assert (problem is None) if kind is None else isinstance(problem, kind)
    assert problem is None or problem.blocking is (kind is FullDisk)


def test_reports_differ_only_when_it_matters() -> None:
    assert disk(900).problem == disk(930).problem != disk(700).problem
    assert disk(300 * GIB + 10).to_json() == disk(300 * GIB + 200).to_json()


def test_the_page_names_what_is_on_the_disk() -> None:
    problem = disk(900, 500 * GIB, "agent", "cache", "engine").problem
    assert problem is not None
    shown = problem_of(problem.to_json())
    assert shown.blocking and shown.text == (
        "The disk with files of jobs, environments and images of the engine is full: 896 MiB are free (/srv)."
    )


def test_an_agent_of_the_release_before_reports_one_disk() -> None:
    old = message_from({"code": "problem.small_disk", "free_gib": 1.5, "folder": "/var"})
    assert old == SmallDisk(1.5, "/var") and "files of jobs (/var)" in problem_of(old.to_json()).text
