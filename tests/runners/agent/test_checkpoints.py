"""What lies in /checkpoints reaches the portal as it was at one moment, and comes back the same elsewhere."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.agent import checkpoints
from runners.agent.checkpoints import JobCheckpoints
from runners.agent.portal_client import PortalClient, PortalRefusedError, PortalUnavailableError
from runners.messages import Message
from runners.messages.containers import CheckpointsNotKept
from runners.messages.portal import CheckpointsTooLarge
from runners.runtimes import owners
from runners.runtimes.host_config import Owner
from tests.fake_portal import FakePortal
from tests.runners.conftest import make_folders

NAME = "sl-1-a1-0"


def complaint_of(job: JobCheckpoints) -> str:
    return job.complaint.text if job.complaint else ""


class Node:
    """One machine's folder of a job."""

    def __init__(self, home: Path, portal: Any) -> None:
        self.home = home
        self.folder = home / "checkpoints"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.portal = portal
        self.progress: list[Message] = []
        self.lives: Callable[[str], bool] = lambda user: False

    def write(self, path: str, content: bytes, age: float = 60.0) -> None:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        at = time.time_ns() - int(age * 1e9)
        os.utime(place, ns=(at, at))

    def job(self) -> JobCheckpoints:
        """As the next agent finds it."""
        return JobCheckpoints(self.home, self.portal)

    def fetch(self, container: str = NAME) -> None:
        self.job().fetch(container, lambda user: self.lives(user), self.progress.append)

    def send(self, *, ended: bool = False) -> JobCheckpoints:
        job = self.job()
        job.send(NAME, ended=ended)
        return job

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def portal() -> Any:
    with FakePortal() as portal:
        yield portal


@pytest.fixture
def one(portal: FakePortal, tmp_path: Path) -> Any:
    client = PortalClient(portal.url, "sln_fake")
    yield Node(tmp_path / "one", client)
    client.close()


@pytest.fixture
def two(one: Node, tmp_path: Path) -> Node:
    return Node(tmp_path / "two", one.portal)


def test_a_folder_comes_back_the_same_elsewhere(
    one: Node, two: Node, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 1000)
    one.write("model.pt", os.urandom(2500))
    one.write("deep/er/meta.json", b"{}")
    one.write("empty", b"")
    one.send()
    assert portal.checkpoint_version == 1 and len(portal.pieces) == 4
    two.fetch()
    assert two.files() == one.files()
    times = [(node.folder / "model.pt").stat().st_mtime_ns for node in (one, two)]
    assert times[0] == times[1], "so that it is not sent again"
    assert two.progress[0].text == "fetching its checkpoints: 0 of 0 MiB"
    before = portal.requests.total()
    two.send(ended=True)
    assert portal.requests.total() == before, "nothing has changed"


def test_a_portal_that_has_the_set_of_a_backup_gets_all_of_it_again(one: Node, two: Node, portal: FakePortal) -> None:
    for path in ("a", "b"):
        one.write(path, b"1")
        one.send()
    portal.checkpoints.pop("b")
    portal.checkpoint_version = 1
    one.write("a", b"2", 30)
    one.send()
    two.fetch()
    assert two.files() == {"a": b"2", "b": b"1"}, "it was taken to have what it had before the restore"


def test_it_goes_there_and_back_and_only_changes_travel(one: Node, two: Node, portal: FakePortal) -> None:
    one.write("a", b"a1")
    one.write("b", b"b1")
    one.send()
    two.fetch()
    two.write("a", b"a2", 30)
    (two.folder / "b").unlink()
    two.write("c", b"c2", 30)
    two.send()
    assert set(portal.checkpoints) == {"a", "c"} and portal.checkpoint_version == 2
    one.write("left", b"what this node never sent is of the past now")
    one.fetch()
    assert one.files() == {"a": b"a2", "c": b"c2"}
    two.fetch()
    assert portal.requests[f"GET /agent/v1/containers/{NAME}/checkpoints/{hashlib.sha256(b'c2').hexdigest()}"] == 1


def test_a_node_whose_copy_is_the_newest_keeps_it(one: Node, portal: FakePortal) -> None:
    """Even what it could not send: its machine lost its power."""
    one.write("a", b"a1")
    one.send()
    one.write("a", b"a2", 30)
    one.fetch()
    assert one.files() == {"a": b"a2"}
    one.send()
    assert portal.checkpoint_version == 2


def test_what_is_there_before_the_portal_has_anything_stays(one: Node) -> None:
    one.write("a", b"a1")
    one.fetch()
    assert one.files() == {"a": b"a1"}


def test_a_checkpoint_being_written_is_waited_for_but_not_for_ever(
    one: Node, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one.job()
    one.write("old", b"1")
    one.write("new", b"2", age=0)
    job.send(NAME, ended=False)
    assert not portal.checkpoints
    monkeypatch.setattr(checkpoints, "MAX_UNSTABLE_SECONDS", 0)
    job.send(NAME, ended=False)
    assert set(portal.checkpoints) == {"old", "new"}


def test_at_the_end_nothing_is_waited_for(one: Node, portal: FakePortal) -> None:
    one.write("new", b"2", age=0)
    one.send(ended=True)
    assert set(portal.checkpoints) == {"new"}


def test_a_set_is_of_one_moment(one: Node, portal: FakePortal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job writes a second file while the first is read."""
    read = JobCheckpoints._read

    def meanwhile(self: JobCheckpoints, path: str, *more: Any) -> Any:
        one.write("meta.json", b"new", 1)
        return read(self, path, *more)

    one.write("meta.json", b"old")
    one.write("model.pt", b"old")
    with monkeypatch.context() as busy:
        busy.setattr(JobCheckpoints, "_read", meanwhile)
        one.send()
    assert not portal.checkpoints
    one.write("meta.json", b"new", 30)
    one.send()
    assert set(portal.checkpoints) == {"meta.json", "model.pt"}


def test_a_file_that_is_replaced_while_it_is_sent_is_sent_as_it_was(
    one: Node, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PortalClient.put_checkpoint

    def replaced(self: PortalClient, *more: Any) -> None:
        fresh = one.folder / "fresh"
        fresh.write_bytes(b"second")
        fresh.rename(one.folder / "model.pt")
        put(self, *more)

    one.write("model.pt", b"first")
    one.write("other.pt", b"other")
    monkeypatch.setattr(PortalClient, "put_checkpoint", replaced)
    one.send()
    assert set(portal.pieces.values()) == {b"first", b"other"}
    one.send(ended=True)
    assert b"second" in portal.pieces.values()


def test_a_file_written_over_while_it_is_sent_is_left_for_the_next_time(
    one: Node, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = PortalClient.change_checkpoints

    def written(self: PortalClient, container: str, changed: dict[str, Any], deleted: dict[str, int]) -> Any:
        answer = change(self, container, changed, deleted)
        if answer["missing"]:
            (one.folder / "model.pt").write_bytes(b"other")
        return answer

    one.write("model.pt", b"first")
    monkeypatch.setattr(PortalClient, "change_checkpoints", written)
    one.send()
    assert not portal.checkpoints
    with pytest.raises(PortalUnavailableError, match="still being written"):
        one.write("model.pt", b"third")
        one.send(ended=True)
    monkeypatch.undo()
    one.send(ended=True)
    assert list(portal.pieces.values()) == [b"other"]


def test_links_and_pipes_are_not_sent(one: Node, portal: FakePortal, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (one.folder / "link").symlink_to(tmp_path / "secret")
    (one.folder / "hard").hardlink_to(tmp_path / "secret")
    os.mkfifo(one.folder / "pipe")
    one.write("honest", b"1")
    (one.folder / "bad\udcff").write_bytes(b"x")
    (one.folder / "hard").unlink()
    one.send(ended=True)
    assert set(portal.checkpoints) == {"honest"}


@pytest.mark.parametrize("path", ["../out", "/out", "a//b", "a/../../out", "."])
def test_a_portal_cannot_write_anywhere_else(one: Node, portal: FakePortal, path: str) -> None:
    portal.pieces[hashlib.sha256(b"x").hexdigest()] = b"x"
    portal.checkpoints = {path: [1, 1, [hashlib.sha256(b"x").hexdigest()]]}
    portal.checkpoint_version = 1
    with pytest.raises(OSError, match="invalid name"):
        one.fetch()
    assert sorted(each.name for each in one.home.iterdir()) == ["checkpoints", "checkpoints.new"]


def test_a_piece_that_was_altered_on_its_way_is_not_used(one: Node, portal: FakePortal) -> None:
    sha256 = hashlib.sha256(b"x").hexdigest()
    portal.pieces[sha256] = b"y"
    portal.checkpoints, portal.checkpoint_version = {"a": [1, 1, [sha256]]}, 1
    with pytest.raises(PortalUnavailableError, match="SHA-256"):
        one.fetch()
    assert one.files() == {}


def test_a_folder_in_use_is_left_alone(one: Node, two: Node) -> None:
    one.fetch()
    two.write("a", b"a1")
    two.send()
    one.lives = lambda user: user == NAME
    one.fetch("sl-1-a1-1")
    assert one.files() == {}
    one.lives = lambda user: False
    one.fetch("sl-1-a1-2")
    assert one.files() == {"a": b"a1"}


def test_it_waits_for_a_node_that_has_yet_to_send(one: Node, portal: FakePortal) -> None:
    portal.waiting_for = "gpu-2"
    with pytest.raises(PortalUnavailableError, match="from gpu-2"):
        one.fetch()


def test_a_refusal_is_reported_and_not_tried_again_until_something_changes(one: Node) -> None:
    class Full:
        asked = 0

        def change_checkpoints(self, *_: object) -> dict[str, Any]:
            self.asked += 1
            raise PortalRefusedError(413, CheckpointsTooLarge(1))

    full = Full()
    job = JobCheckpoints(one.home, full)  # type: ignore[arg-type]
    one.write("a", b"1")
    job.send(NAME, ended=False)
    job.send(NAME, ended=True)
    assert full.asked == 1
    assert job.complaint == CheckpointsNotKept(CheckpointsTooLarge(1))
    assert job.complaint.text.startswith("Its checkpoints were not kept in the portal: they take more than 1 MiB")
    one.write("a", b"22")
    job.send(NAME, ended=True)
    assert full.asked == 2


def test_too_many_files_stay_here_with_a_sentence(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MAX_FILES", 2)
    for number in range(3):
        one.write(f"f{number}", b"x")
    assert "more than 2 files" in complaint_of(one.send(ended=True))


def test_more_than_the_portal_keeps_is_not_even_read(one: Node, portal: FakePortal) -> None:
    """A file with a hole costs a job nothing, and whoever reads it hours."""
    with (one.folder / "hole").open("wb") as file:
        file.truncate(1 << 42)
    assert "more than 1,024 MiB" in complaint_of(one.send(ended=True))
    (one.folder / "hole").unlink()
    one.write("a", b"1")
    assert one.send(ended=True).complaint is None
    assert set(portal.checkpoints) == {"a"}


def test_what_was_fetched_belongs_to_the_job_in_its_container(
    one: Node, two: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.write("deep/a", b"1")
    one.send()
    two.fetch()
    folders = make_folders(two.home)
    given: dict[str, int] = {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda name, uid, gid, **_: given.update({str(name): uid}))
    owners.chown_folders(folders, Owner(7, 7))
    assert given["deep"] == given["a"] == 7
    given.clear()
    owners.chown_folders(folders, Owner(os.stat(two.folder).st_uid, 7))
    assert "a" not in given, "once it is the job's own, its files are left alone"


def test_an_older_portal_keeps_none(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: PortalClient, container: str) -> Any:
        raise PortalRefusedError(404, "There is nothing here.")

    monkeypatch.setattr(PortalClient, "checkpoints", missing)
    one.write("a", b"1")
    one.fetch()
    assert one.files() == {"a": b"1"}
