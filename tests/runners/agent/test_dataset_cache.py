"""A node fetches a dataset once for all its jobs, keeps it within its limit, and deletes nothing that a job uses."""

import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from runners.agent import dataset_cache, dataset_fetch
from runners.agent.dataset_cache import GIB, DatasetCache
from runners.agent.portal_client import PortalUnavailableError
from runners.host.exclusive import BusyError
from runners.messages import Message
from runners.messages.datasets import FetchingDataset
from runners.runtime import CreateError
from tests.datasets import DatasetGiver, MadeDataset, content_of

NAME = "sl-1-a1-0"
ONE, TWO, THREE = (MadeDataset({"x": bytes([number]) * 400_000}) for number in range(3))
Usage = namedtuple("Usage", ("total", "used", "free"))


def ignore(_: Message) -> None:
    pass


class World:
    def __init__(self, folder: Path, limit_bytes: int = GIB) -> None:
        folder.mkdir()
        self.in_use: set[str] = set()
        self.wanted: set[str] | None = None
        self.giver = DatasetGiver.of(ONE, TWO, THREE)
        self.cache = DatasetCache(
            folder, self.giver, 1, lambda: self.in_use, lambda: {ONE.sha256, TWO.sha256, THREE.sha256}
        )
        self.cache._limit = limit_bytes

    def fetch(self, made: MadeDataset, *, used: bool = True, age: int = 0) -> Path:
        if used:
            self.in_use.add(made.sha256)
        files = self.cache.fetch(NAME, made.mount(), ignore)
        if age:
            os.utime(files.parent, (1_000_000_000 - age, 1_000_000_000 - age))
        return files

    def here(self) -> set[str]:
        return {each.sha256 for each in self.cache.complete()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "datasets")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_fetch, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(dataset_cache, "SPARE_BYTES", 0)


def test_jobs_share_one_tree_that_is_fetched_once_at_the_same_time(world: World) -> None:
    world.in_use.add(ONE.sha256)
    seen: list[Message] = []
    threads = [
        threading.Thread(target=world.cache.fetch, args=(f"{NAME}{each}", ONE.mount(), seen.append))
        for each in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert content_of(world.cache.files(ONE.sha256)) == ONE.files
    assert world.giver.sent == ONE.size + len(ONE.manifest)
    assert FetchingDataset("digits", ONE.size, ONE.size) in seen
    assert world.cache.reported() == [ONE.sha256]


def test_what_is_used_least_recently_makes_room_and_what_is_used_stays(tmp_path: Path) -> None:
    world = World(tmp_path / "datasets", limit_bytes=900_000)
    world.fetch(ONE, used=True, age=100)
    world.fetch(TWO, used=False, age=50)
    world.fetch(THREE, used=False)
    assert world.here() == {ONE.sha256, THREE.sha256}, "the older one is in use"
    assert not list((tmp_path / "datasets").glob("*.deleted"))
    world.in_use.add(THREE.sha256)
    with pytest.raises(BusyError, match="waiting for space for the dataset digits: running jobs use"):
        world.fetch(TWO)
    world.in_use.remove(ONE.sha256)
    world.fetch(TWO)
    assert world.here() == {TWO.sha256, THREE.sha256}


def test_one_that_is_larger_than_the_limit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    world = World(tmp_path / "datasets", limit_bytes=300_000)
    with pytest.raises(CreateError, match="SCHEDULEARN_DATASET_CACHE_GIB"):
        world.fetch(ONE)
    assert not list((tmp_path / "datasets").iterdir())


def test_on_a_full_disk_unused_ones_go_and_else_the_job_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fetch(ONE, used=False)

    def free(path: Path) -> Usage:
        return Usage(1_000_000, 0, 500_000 - 400_000 * len(world.here()))

    monkeypatch.setattr(shutil, "disk_usage", free)
    world.fetch(TWO)
    assert world.here() == {TWO.sha256}
    with pytest.raises(CreateError, match="are free on its node. Ask an admin to make room"):
        world.fetch(THREE)
    assert world.here() == {TWO.sha256}, "nothing that is used was lost"


def test_a_disk_that_fills_up_meanwhile_loses_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fetch(ONE)

    def full(*about: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dataset_fetch._ArrivingFile, "write", full)
        with pytest.raises(CreateError, match="are free on its node"):
            world.fetch(TWO)
    assert [path.name for path in world.cache.folder.iterdir()] == [ONE.sha256]
    world.fetch(TWO)
    assert content_of(world.cache.files(TWO.sha256)) == TWO.files


def test_an_interrupted_fetch_is_continued_by_the_next_agent_and_leftovers_are_deleted(world: World) -> None:
    world.giver.harm = lambda part, number, content: (
        content[:200_000] if number == 1 else content[:0] if number else content
    )
    with pytest.raises(PortalUnavailableError):
        world.fetch(ONE)
    folder = world.cache.folder
    (folder / f"{TWO.sha256}.part").mkdir()
    (folder / f"{TWO.sha256}.0123.deleted" / "files").mkdir(parents=True)
    again = DatasetCache(folder, world.giver, 1, lambda: world.in_use, lambda: world.in_use)
    again.tidy()
    assert [path.name for path in folder.iterdir()] == [f"{ONE.sha256}.part"]
    world.giver.harm = lambda part, number, content: content
    again.fetch(NAME, ONE.mount(), ignore)
    assert world.giver.sent == ONE.size + len(ONE.manifest)
    assert sorted(path.name for path in (folder / ONE.sha256).iterdir()) == ["about.json", "files", "manifest"]


def test_a_smaller_limit_is_reached_by_tidying(world: World) -> None:
    for age, made in ((30, ONE), (20, TWO), (10, THREE)):
        world.fetch(made, used=False, age=age)
    world.in_use.add(ONE.sha256)
    world.cache._limit = 500_000
    world.cache.tidy()
    assert world.here() == {ONE.sha256}, "the least recently used one is in use"


def test_a_cancelled_job_does_not_wait_for_its_dataset(world: World) -> None:
    cache = DatasetCache(world.cache.folder, world.giver, 1, lambda: set(), lambda: set())
    with pytest.raises(BusyError):
        cache.fetch(NAME, ONE.mount(), ignore)
    assert not cache.complete()
