"""An agent removes what it kept of jobs that ended long ago or were erased in the portal, and nothing else."""

import logging
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from runners.agent.claims import Claim
from runners.agent.leftovers import AT_ONCE, KEEP_SECONDS, remove_erased, tidy
from runners.agent.portal_client import PortalRefusedError, PortalUnavailableError
from runners.host.node_files import NodeFiles
from runners.messages import Quotation


class Portal:
    """Answers as one that has erased these jobs, or raises an error."""

    def __init__(self, *erased: str, error: Exception | None = None) -> None:
        self.erased, self.error, self.asked = set(erased), error, list[Sequence[str]]()

    def erased_jobs(self, uids: Sequence[str]) -> list[str]:
        self.asked.append(uids)
        if self.error:
            raise self.error
        return [uid for uid in uids if uid in self.erased] + ["unasked"]


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path)
    files.make()
    return files


def folder(files: NodeFiles, number: int, uid: str = "") -> Path:
    path = files.job(number)
    path.mkdir(parents=True)
    (path / "model.pt").write_bytes(b"weights")
    if uid:
        Claim("lab", uid).write(path)
    return path


def test_only_erased_jobs_without_containers_here_go(files: NodeFiles) -> None:
    mine, other, used = (str(uuid.uuid4()) for _ in range(3))
    gone, kept = folder(files, 1, mine), folder(files, 2, other)
    busy, old = folder(files, 3, used), folder(files, 4)
    portal = Portal(mine, used)
    assert remove_erased(files, portal, {3}) == 1
    assert not gone.exists() and kept.exists() and busy.exists() and old.exists()
    assert portal.asked == [sorted([mine, other])]


def test_many_are_asked_about_in_several_requests(files: NodeFiles) -> None:
    uids = [str(uuid.uuid4()) for _ in range(AT_ONCE + 3)]
    for number, uid in enumerate(uids, 1):
        folder(files, number, uid)
    portal = Portal(*uids[:5])
    assert remove_erased(files, portal, ()) == 5
    assert [len(asked) for asked in portal.asked] == [AT_ONCE, 3]


@pytest.mark.parametrize(
    "error", [PortalUnavailableError(Quotation("away")), PortalRefusedError(404, Quotation("no such endpoint"))]
)
def test_nothing_goes_while_the_portal_does_not_know(files: NodeFiles, error: Exception) -> None:
    uid = str(uuid.uuid4())
    path = folder(files, 1, uid)
    assert remove_erased(files, Portal(uid, error=error), ()) == 0 and path.exists()


def test_the_log_names_how_many(files: NodeFiles, caplog: pytest.LogCaptureFixture) -> None:
    uid = str(uuid.uuid4())
    folder(files, 1, uid)
    with caplog.at_level(logging.INFO):
        remove_erased(files, Portal(uid), ())
        remove_erased(files, Portal(uid), ())
    assert [record.getMessage() for record in caplog.records] == [
        "Removed the checkpoints of 1 job(s) that were erased in the portal."
    ]


def test_an_attempt_that_goes_while_it_is_looked_at_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = NodeFiles(tmp_path)
    files.make()
    (files.attempt(1)).mkdir()
    os.utime(files.attempt(1), (1, 1))
    gone = files.attempt(2)
    monkeypatch.setattr("runners.agent.leftovers.Path.iterdir", lambda folder: iter([gone, *os_list(folder)]))
    tidy(files, Portal(), jobs=[], attempts=[])
    assert not files.attempt(1).exists()


def os_list(folder: Path) -> list[Path]:
    return [folder / name for name in os.listdir(folder)]


def test_checkpoints_of_jobs_long_gone_are_deleted_and_no_others(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.make()
    for job in (1, 2, 3):
        files.checkpoints(job).mkdir(parents=True)
        (files.checkpoints(job) / "step").touch()
    long_ago = time.time() - KEEP_SECONDS - 60
    for job in (1, 2):
        os.utime(files.jobs / str(job), (long_ago, long_ago))
    for attempt in (11, 12, 13):
        files.outputs(attempt).mkdir(parents=True)
    for attempt in (11, 12):
        os.utime(files.attempt(attempt), (long_ago, long_ago))
    tidy(files, Portal(), jobs=[1], attempts=[11])
    assert sorted(path.name for path in files.jobs.iterdir()) == ["1", "3"]
    assert sorted(path.name for path in files.attempts.iterdir()) == ["11", "13"], "13 may have just come"
    assert (files.jobs / "1").stat().st_mtime > long_ago + 60, "it counts as used now"
