"""Each folder of a container has its limit, and the sentence names the one that was exceeded."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runners.agent.disk_watch import KEEP_SECONDS, exceeded_limit, tidy
from runners.host import node_files
from runners.host.node_files import FolderWalk, NodeFiles
from runners.runtime import Folders
from runners.spec import Resources, RunSpec
from tests.runners.agent_bench import spec_of

SPEC = replace(spec_of("0" * 64), resources=Resources(disk_mib=1))


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return NodeFiles(tmp_path).make_container(SPEC)


def sentence(tmp_path: Path, spec: RunSpec = SPEC) -> str:
    found = exceeded_limit(NodeFiles(tmp_path), spec)
    return found.text if found else ""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (lambda folders: folders.workspace, "/workspace and /outputs"),
        (lambda folders: folders.outputs, "/workspace and /outputs"),
        (lambda folders: folders.checkpoints, "/checkpoints"),
    ],
)
def test_a_folder_over_its_limit_is_named(
    tmp_path: Path, folders: Folders, place: Callable[[Folders], Path], expected: str
) -> None:
    assert sentence(tmp_path) == ""
    (place(folders) / "data").write_bytes(os.urandom(900 << 10))
    assert sentence(tmp_path) == ""
    (place(folders) / "more").write_bytes(os.urandom(200 << 10))
    assert expected in sentence(tmp_path)


def test_workspace_and_outputs_count_together(tmp_path: Path, folders: Folders) -> None:
    (folders.workspace / "a").write_bytes(os.urandom(600 << 10))
    (folders.outputs / "b").write_bytes(os.urandom(600 << 10))
    assert "filled 1 MiB" in sentence(tmp_path)


def test_temporary_files_of_a_process_count_too(tmp_path: Path, folders: Folders) -> None:
    spec = replace(SPEC, resources=Resources(disk_mib=1, tmp_mib=1))
    private = NodeFiles(tmp_path).private(spec.name)
    private.mkdir(parents=True)
    (folders.workspace / "a").write_bytes(os.urandom(900 << 10))
    (private / "b").write_bytes(os.urandom(900 << 10))
    assert sentence(tmp_path, spec) == ""
    (private / "c").write_bytes(os.urandom(900 << 10))
    assert (
        sentence(tmp_path, spec) == "It filled 2 MiB of /workspace, /outputs and temporary files; its limit is 2 MiB."
    )


def test_a_flood_of_names_is_too_much(tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_files, "FolderWalk", partial(FolderWalk, max_entries=10))
    for number in range(20):
        (folders.workspace / str(number)).touch()
    assert "too many files" in sentence(tmp_path)


def test_the_scribe_may_not_be_used_as_a_store(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.disk_watch.MAX_STREAM_BYTES", 0)
    monkeypatch.setattr("runners.agent.disk_watch.MAX_SCRIBE_MIB", 1)
    (folders.scribe / "loot").write_bytes(os.urandom(1100 << 10))
    assert "only its supervisor" in sentence(tmp_path)


def test_an_attempt_that_goes_while_it_is_looked_at_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = NodeFiles(tmp_path)
    files.make()
    (files.attempt(1)).mkdir()
    os.utime(files.attempt(1), (1, 1))
    gone = files.attempt(2)
    monkeypatch.setattr("runners.agent.disk_watch.Path.iterdir", lambda folder: iter([gone, *os_list(folder)]))
    tidy(files, jobs=[], attempts=[])
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
    tidy(files, jobs=[1], attempts=[11])
    assert sorted(path.name for path in files.jobs.iterdir()) == ["1", "3"]
    assert sorted(path.name for path in files.attempts.iterdir()) == ["11", "13"], "13 may have just come"
    assert (files.jobs / "1").stat().st_mtime > long_ago + 60, "it counts as used now"
