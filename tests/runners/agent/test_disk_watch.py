"""Each folder of a container has its limit, and the sentence names the one that was exceeded."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runners.agent.disk_watch import exceeded_limit
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
