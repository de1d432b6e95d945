"""What is in /outputs reaches the portal once, and nothing that only looks like being there."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runners.agent import outputs as module
from runners.agent.outputs import MIN_OFFER_BYTES, BesideCodeSender, OutputSender
from runners.agent.portal_client import PortalClient, PortalRefusedError, PortalUnavailableError
from runners.messages import Message, Quotation
from runners.messages.outputs import FileNotKept, OutputsNotKept, TooLarge
from tests.fake_portal import FakePortal


class MemoryPortal:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.offered: list[str] = []
        self.away_after: int | None = None
        self.refuse: set[str] = set()

    def offer_output(self, container: str, path: str, size: int) -> None:
        self.offered.append(path)
        if path in self.refuse:
            raise PortalRefusedError(413, "over the limit of 1 MiB.")

    def put_output(self, container: str, path: str, file: BinaryIO, size: int) -> None:
        if self.away_after is not None and len(self.puts) >= self.away_after:
            raise PortalUnavailableError("away")
        self.puts.append(path)
        if path in self.refuse:
            raise PortalRefusedError(413, "over the limit of 1 MiB.")
        self.files[path] = file.read(size)


@pytest.fixture
def portal() -> MemoryPortal:
    return MemoryPortal()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


def sender(folder: Path, portal: object) -> OutputSender:
    return OutputSender(folder, folder.parent / "sent.json", portal)  # type: ignore[arg-type]


def complaint_of(sender: OutputSender) -> str:
    complaint = sender.complaint()
    return complaint.text if complaint else ""


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_each_version_of_a_file_is_sent_once(folder: Path, portal: MemoryPortal) -> None:
    (folder / "a").mkdir()
    (folder / "a/model #1?.pt").write_bytes(b"1")
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    outputs.send("c", ended=True)
    sender(folder, portal).send("c", ended=True)  # the next agent
    assert portal.puts == ["a/model #1?.pt"]
    (folder / "a/model #1?.pt").write_bytes(b"22")
    outputs.send("c", ended=True)
    assert portal.files == {"a/model #1?.pt": b"22"}


def test_while_it_runs_only_files_left_alone_are_sent(folder: Path, portal: MemoryPortal) -> None:
    (folder / "old").write_bytes(b"old")
    age(folder / "old", 60)
    (folder / "new").write_bytes(b"new")
    outputs = sender(folder, portal)
    outputs.send("c", ended=False)
    assert set(portal.files) == {"old"}
    outputs.send("c", ended=True)
    assert set(portal.files) == {"old", "new"}


def test_links_and_pipes_are_not_sent(folder: Path, portal: MemoryPortal, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    (folder / "honest").write_bytes(b"honest")
    sender(folder, portal).send("c", ended=True)
    assert portal.files == {"honest": b"honest"}


def test_what_is_refused_is_named_and_not_sent_again(folder: Path, portal: MemoryPortal) -> None:
    portal.refuse = {"big"}
    (folder / "big").write_bytes(b"x")
    (folder / "small").write_bytes(b"y")
    (folder / "bad\udcff").write_bytes(b"z")
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    outputs.send("c", ended=True)
    assert sorted(portal.puts) == ["big", "small"]
    assert "big was not kept: over the limit of 1 MiB." in complaint_of(outputs)
    assert "bad? was not kept: its name is not UTF-8." in complaint_of(outputs)
    assert sender(folder, portal).complaint() == outputs.complaint(), "the next agent still knows"


REFUSED = FileNotKept("big", Quotation("over the limit of 1 MiB."))


def test_complaints_are_data_and_the_release_before_still_reads_them(folder: Path, portal: MemoryPortal) -> None:
    portal.refuse = {"big"}
    (folder / "big").write_bytes(b"x")
    outputs = sender(folder, portal)
    assert outputs.complaint() is None
    outputs.send("c", ended=True)
    assert outputs.complaint() == OutputsNotKept((REFUSED,), 0)
    kept = json.loads((folder.parent / "sent.json").read_text())
    assert kept["refused"] == {"big": "big was not kept: over the limit of 1 MiB."}
    assert kept["complaints"] == {"big": REFUSED.data()}


@pytest.mark.parametrize("complaints", [{}, {"complaints": {"big": {"code": "output.of_a_later_release"}}}])
def test_what_another_release_has_recorded_is_reported_by_its_text(
    folder: Path, portal: MemoryPortal, complaints: dict[str, Any]
) -> None:
    (folder / "small").write_bytes(b"x")
    former = {"files": {"big": [1, 2]}, "refused": {"big": "big was not kept: as before."}, **complaints}
    (folder.parent / "sent.json").write_text(json.dumps(former))
    outputs = sender(folder, portal)
    assert outputs.complaint() == OutputsNotKept((Quotation("big was not kept: as before."),), 0)
    outputs.send("c", ended=True)
    assert complaint_of(sender(folder, portal)) == "big was not kept: as before."


@pytest.mark.parametrize(
    ("reason", "understood"),
    [
        (TooLarge(5).data(), TooLarge(5)),
        (None, Quotation("No, as text.")),  # a portal of the release before
        ({"code": "output.of_a_later_release"}, Quotation("No, as text.")),
    ],
)
def test_what_the_portal_answers_is_passed_on(folder: Path, reason: Any, understood: Message) -> None:
    (folder / "a").write_bytes(b"x")
    with (folder / "big").open("wb") as file:
        file.truncate(MIN_OFFER_BYTES)
    error = {"code": "too_large", "message": "No, as text."} | ({"reason": reason} if reason else {})
    with FakePortal() as portal:
        portal.offer = lambda path, size: (413, {"error": error})  # type: ignore[method-assign]
        client = PortalClient(portal.url, "sln_fake")
        outputs = sender(folder, client)
        outputs.send("c", ended=True)
        client.close()
    assert outputs.complaint() == OutputsNotKept((FileNotKept("big", understood),), 0)


def test_many_complaints_are_counted(folder: Path, portal: MemoryPortal) -> None:
    for number in range(20):
        (folder / f"f{number}").write_bytes(b"x")
        portal.refuse.add(f"f{number}")
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    assert "17 more files were not kept." in complaint_of(outputs)


def test_a_portal_that_goes_away_gets_the_rest_later(folder: Path, portal: MemoryPortal) -> None:
    for number in range(5):
        (folder / f"f{number}").write_bytes(b"x")
    portal.away_after = 2
    outputs = sender(folder, portal)
    with pytest.raises(PortalUnavailableError):
        outputs.send("c", ended=True)
    portal.away_after = None
    sender(folder, portal).send("c", ended=True)
    assert sorted(portal.puts) == ["f0", "f1", "f2", "f3", "f4"]


def test_too_many_files_are_cut_with_a_sentence(
    folder: Path, portal: MemoryPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.outputs.MAX_FILES", 3)
    for number in range(5):
        (folder / f"f{number}").write_bytes(b"x")
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    assert len(portal.files) == 3 and "Only the first 3 files" in complaint_of(outputs)


def test_a_file_that_changes_while_it_is_sent_is_sent_again(folder: Path) -> None:
    class Shrinking(PortalClient):
        """The job truncates the file after its size was read and before it is sent."""

        def put_output(self, container: str, path: str, file: BinaryIO, size: int) -> None:
            if cut:
                os.truncate(folder / "a", cut.pop())
            super().put_output(container, path, file, size)

    cut = [3]
    (folder / "a").write_bytes(b"0123456789")
    with FakePortal() as portal:
        client = Shrinking(portal.url, "sln_fake")
        outputs = sender(folder, client)
        with pytest.raises(PortalUnavailableError, match="still being written"):
            outputs.send("c", ended=True)
        assert portal.outputs == {}
        outputs.send("c", ended=True)
        assert portal.outputs == {("c", "a"): b"012"}
        client.close()


def test_a_large_file_that_the_portal_would_not_keep_is_not_sent(folder: Path, portal: MemoryPortal) -> None:
    for name in ("too-large", "large", "small"):
        with (folder / name).open("wb") as file:
            file.truncate(10 if name == "small" else MIN_OFFER_BYTES)
    portal.refuse = {"too-large"}
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    assert sorted(portal.offered) == ["large", "too-large"] and sorted(portal.puts) == ["large", "small"]
    assert complaint_of(outputs) == "too-large was not kept: over the limit of 1 MiB."


@pytest.mark.parametrize(("answer", "raises"), [(200, False), (405, False), (413, True)])
def test_a_portal_of_the_release_before_cannot_be_asked_and_is_sent_the_file(answer: int, raises: bool) -> None:
    with FakePortal() as portal:
        portal.offer = lambda path, size: (answer, {"error": {"code": "x", "message": "no"}})  # type: ignore[method-assign]
        client = PortalClient(portal.url, "sln_fake")
        with pytest.raises(PortalRefusedError) if raises else nullcontext():
            client.offer_output("c", "a b", 7)


# Links


def test_links_within_the_outputs_become_copies_at_the_end(folder: Path, portal: MemoryPortal) -> None:
    (folder / "runs/3").mkdir(parents=True)
    (folder / "runs/3/model.pt").write_bytes(b"weights")
    (folder / "best.pt").symlink_to("runs/3/model.pt")
    (folder / "runs/last.pt").symlink_to("3/model.pt")
    (folder / "again.pt").symlink_to("best.pt")
    (folder / "in-the-container.pt").symlink_to("/outputs/runs/3/model.pt")
    (folder / "on-the-node.pt").symlink_to(folder / "runs/3/model.pt")
    outputs = sender(folder, portal)
    outputs.send("c", ended=False)
    assert portal.files == {}  # they may still change
    outputs.send("c", ended=True)
    names = {"runs/3/model.pt", "best.pt", "runs/last.pt", "again.pt", "in-the-container.pt", "on-the-node.pt"}
    assert portal.files == dict.fromkeys(names, b"weights") and not complaint_of(outputs)
    outputs.send("c", ended=True)
    assert len(portal.puts) == 6


def test_links_that_lead_elsewhere_are_listed_and_never_read(folder: Path, portal: MemoryPortal) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes(b"secret")
    (folder / "data").mkdir()
    (folder / "up").symlink_to("../secret")
    outputs = sender(folder, portal)
    for name, target in {
        "absolute": str(secret),
        "through-outputs": "/outputs/../secret",
        "through-a-folder": "data/../../secret",
        "nowhere": "missing",
        "itself": "itself",
    }.items():
        (folder / name).symlink_to(target)
        outputs.send("c", ended=True)
        assert portal.files == {}
        (folder / name).unlink()
    (folder / "beyond").symlink_to(folder.parent)
    (folder / "inside").symlink_to("beyond/secret")
    (folder / "latest").symlink_to("data")
    outputs = sender(folder, portal)
    outputs.send("c", ended=True)
    assert portal.files == {}
    assert "latest was not kept: it is a link to a folder" in complaint_of(outputs)
    assert "is a link to something outside the outputs" in complaint_of(outputs)


# Beside the code


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "src").mkdir(parents=True)
    (workspace / "train.py").write_bytes(b"code")
    (workspace / "src/net.py").write_bytes(b"code")
    return workspace


def beside(workspace: Path, portal: object, **more: Any) -> BesideCodeSender:
    prepared = workspace.parent / "prepared"
    if not prepared.exists():
        time.sleep(0.02)  # the clock of the file system has steps
        prepared.touch()
        time.sleep(0.02)
    record = workspace.parent / "beside.json"
    return BesideCodeSender(workspace, record, portal, prepared.stat().st_mtime_ns, **more)  # type: ignore[arg-type]


def test_what_was_written_beside_the_code_is_kept(workspace: Path, portal: MemoryPortal) -> None:
    outputs = beside(workspace, portal)
    (workspace / "model.pt").write_bytes(b"weights")
    (workspace / "src/net.py").write_bytes(b"changed")
    (workspace / "old.csv").write_bytes(b"1")
    age(workspace / "old.csv", 10**6)  # as a copy that keeps the time of its source
    for noise in ("__pycache__/a.pyc", "src/__pycache__/b.pyc", ".cache/x", "core", "core.41", ".hidden", "c.pyc"):
        (workspace / noise).parent.mkdir(parents=True, exist_ok=True)
        (workspace / noise).write_bytes(b"noise")
    outputs.send("c", ended=True)
    beside(workspace, portal).send("c", ended=True)  # the next agent
    assert portal.files == {
        "beside-code/model.pt": b"weights",
        "beside-code/src/net.py": b"changed",
        "beside-code/old.csv": b"1",
    }
    assert len(portal.puts) == 3 and not complaint_of(outputs)


def test_each_host_of_a_group_has_a_folder_of_its_own(workspace: Path, portal: MemoryPortal) -> None:
    outputs = beside(workspace, portal, subfolder="h1")
    (workspace / "log.txt").write_bytes(b"1")
    outputs.send("c", ended=True)
    assert list(portal.files) == ["beside-code/h1/log.txt"]


def test_the_smallest_are_kept_up_to_a_limit_and_the_others_listed(
    workspace: Path, portal: MemoryPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BESIDE_MIB", 1)
    outputs = beside(workspace, portal)
    (workspace / "large.bin").write_bytes(bytes(2 << 20))
    (workspace / "half.bin").write_bytes(bytes(600 << 10))
    (workspace / "other.bin").write_bytes(bytes(500 << 10))
    outputs.send("c", ended=True)
    assert list(portal.files) == ["beside-code/other.bin"]
    assert (
        "beside-code/half.bin was not kept: of the files beside the code, only 200 and 1 MiB together"
        in complaint_of(outputs)
    )
    monkeypatch.setattr(module, "MAX_BESIDE_FILES", 2)
    monkeypatch.setattr(module, "MAX_BESIDE_MIB", 100)
    (workspace / "tiny").write_bytes(b"1")
    again = beside(workspace, portal)
    again.send("c", ended=True)
    assert "beside-code/tiny" in portal.files


def test_links_and_pipes_beside_the_code_are_not_followed(workspace: Path, portal: MemoryPortal) -> None:
    outputs = beside(workspace, portal)
    (workspace.parent / "secret").write_bytes(b"secret")
    (workspace / "link").symlink_to("../secret")
    os.mkfifo(workspace / "pipe")
    outputs.send("c", ended=True)
    assert portal.files == {}
