"""The outputs of an earlier job reach the folder of inputs: complete, checked, once for each attempt, and read-only."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from runners.agent.inputs import JobInputs
from runners.agent.portal_client import PortalClient, PortalRefusedError, PortalUnavailableError
from runners.host import processes
from runners.host.node_files import NodeFiles
from runners.messages import Message
from runners.messages.containers import InputsArrived
from runners.runtime import INPUTS
from runners.runtimes import host_config
from runners.spec import RunSpec
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import NAME, AgentProcess, entry, give_code, spec_of

FILES = {"model.pt": b"weights", "logs/a b.txt": b"", "data/deep/x": b"1" * 3_000_000}
READ = b"""
import json, os, pathlib
top = pathlib.Path(os.environ["SCHEDULEARN_INPUTS"])
found = {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}
pathlib.Path(os.environ["SCHEDULEARN_OUTPUTS"], "found.json").write_text(json.dumps(found))
"""


@pytest.fixture
def inputs(portal: FakePortal) -> JobInputs:
    portal.inputs = dict(FILES)
    return JobInputs(PortalClient(portal.url, "sln_fake"))


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ignore(_: Message) -> None:
    pass


def test_all_files_arrive_read_only_and_the_progress_is_reported(inputs: JobInputs, tmp_path: Path) -> None:
    seen: list[Message] = []
    inputs.fetch(NAME, tmp_path / "inputs", seen.append)
    assert content_of(tmp_path / "inputs") == FILES
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in (tmp_path / "inputs").rglob("*") if path.is_file())
    assert seen[0] == InputsArrived(0, 2) and len(seen) == len(FILES)
    assert not (tmp_path / "inputs.new").exists()


def test_two_containers_of_an_attempt_fetch_once(inputs: JobInputs, portal: FakePortal, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=inputs.fetch, args=(f"{NAME}{each}", tmp_path / "inputs", ignore)) for each in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert content_of(tmp_path / "inputs") == FILES
    assert sum(count for path, count in portal.requests.items() if path.endswith("/inputs")) == 1


def test_an_agent_that_was_killed_begins_again(inputs: JobInputs, portal: FakePortal, tmp_path: Path) -> None:
    (tmp_path / "inputs.new").mkdir()
    (tmp_path / "inputs.new" / "half").write_bytes(b"x")
    portal.faults = lambda path: "down" if "inputs/" in path else ""
    with pytest.raises(PortalUnavailableError):
        inputs.fetch(NAME, tmp_path / "inputs", ignore)
    assert not (tmp_path / "inputs").exists(), "a folder of this name is complete"
    portal.faults = lambda path: ""
    inputs.fetch(NAME, tmp_path / "inputs", ignore)
    assert content_of(tmp_path / "inputs") == FILES


def test_no_outputs_are_an_empty_folder(inputs: JobInputs, portal: FakePortal, tmp_path: Path) -> None:
    portal.inputs = {}
    inputs.fetch(NAME, tmp_path / "inputs", ignore)
    assert content_of(tmp_path / "inputs") == {} and (tmp_path / "inputs").is_dir()


def test_what_the_portal_refuses_ends_the_start(inputs: JobInputs, portal: FakePortal, tmp_path: Path) -> None:
    portal.inputs = None
    with pytest.raises(PortalRefusedError):
        inputs.fetch(NAME, tmp_path / "inputs", ignore)


@pytest.mark.parametrize(
    "file",
    [
        {"path": "../../escape", "size": 1, "sha256": "0" * 64},
        {"path": "/etc/passwd", "size": 1, "sha256": "0" * 64},
        {"path": "a\x00b", "size": 1, "sha256": "0" * 64},
        {"path": "a", "size": -1, "sha256": "0" * 64},
        {"path": "a", "size": 1, "sha256": "../x"},
        {"path": "a", "size": 1},
        "a",
    ],
)
def test_a_list_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path, file: Any) -> None:
    class Portal:
        def inputs(self, container: str) -> dict[str, Any]:
            return {"files": [file]}

        def fetch_input(self, container: str, sha256: str, into: BinaryIO, max_bytes: int) -> None:
            raise AssertionError("nothing may be fetched")

    with pytest.raises(PortalUnavailableError):
        JobInputs(Portal()).fetch(NAME, tmp_path / "inputs", ignore)


def test_a_damaged_file_is_fetched_again_later(inputs: JobInputs, portal: FakePortal, tmp_path: Path) -> None:
    class Portal(PortalClient):
        def inputs(self, container: str) -> dict[str, Any]:
            listed = super().inputs(container)
            return {"files": [each | {"size": each["size"] - 1} for each in listed["files"] if each["size"]]}

    with pytest.raises(PortalRefusedError):  # longer than announced
        JobInputs(Portal(portal.url, "sln_fake")).fetch(NAME, tmp_path / "inputs", ignore)


def test_only_hosts_of_such_jobs_have_the_folder(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    spec = spec_of("0" * 64, inputs=True)
    assert RunSpec.from_json(spec.to_json()) == spec and spec.to_json()["inputs"] is True
    (mount,) = (each for each in host_config.mounts(files.folders(spec)) if each["Target"] == INPUTS)
    assert mount["ReadOnly"] and f"SCHEDULEARN_INPUTS={INPUTS}" in host_config.environment(spec)
    for other in (replace(spec, inputs=False), replace(spec, role="driver", hostname="driver")):
        assert files.folders(other).inputs is None
        assert "SCHEDULEARN_INPUTS" not in " ".join(host_config.environment(other))
    assert "inputs" not in replace(spec, inputs=False).to_json(), "old agents refuse keys that they do not know"


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "agent", portal)
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def test_a_real_process_reads_its_inputs(agent: AgentProcess, portal: FakePortal) -> None:
    portal.inputs = {"model.txt": b"weights", "data/part.txt": b"rows"}
    sha256 = give_code(portal, {"read.py": READ})
    portal.want(entry(spec_of(sha256, command=("python", "read.py"), inputs=True)))
    agent.start()
    portal.until(lambda: not portal.desired)
    assert portal.container(NAME)["exit_code"] == 0, portal.log(NAME)
    assert json.loads(portal.outputs[NAME, "found.json"]) == {"model.txt": "weights", "data/part.txt": "rows"}
    assert set(portal.outputs) == {(NAME, "found.json")}, "inputs are no outputs"
    portal.until(lambda: not list((agent.home / "attempts").iterdir()))  # they are deleted with the attempt
    assert agent.end() == 0
