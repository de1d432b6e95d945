"""A machine inspects itself, joins, and takes a new token when a reply asks for it."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runners.agent import settings as agent_settings
from runners.agent.enrol import finding_lines, rotate_token
from runners.agent.machine import Machine, inspect_machine
from runners.agent.portal_client import PortalUnavailableError, tls_context
from runners.agent.settings import MachineFindings, NodeIdentity, Settings, load_or_join
from runners.agent.signals import StopSignal
from runners.host import processes
from runners.host.gpus import Gpu
from runners.host.node_files import NodeFiles
from runners.messages.gpus import Process, Processes
from runners.messages.problems import OldRunc, SmallDisk
from runners.runtimes.fake import FakeRuntime
from runners.runtimes.process import ProcessRuntime

OLD = NodeIdentity(3, "sln_old", "https://lab", "gpu-1", "fake", "i" * 32)


class Portal:
    """Gives out tokens, and records what it was sent."""

    def __init__(self, token: str = "sln_new", away: bool = False) -> None:
        self.token, self.away, self.used = token, away, ""
        self.joined: list[tuple[Any, ...]] = []

    def new_token(self) -> str:
        if self.away:
            raise PortalUnavailableError("The portal does not answer.")
        return self.token

    def use_token(self, token: str) -> None:
        self.used = token

    def join(self, *arguments: Any) -> tuple[int, str]:
        self.joined.append(arguments)
        return 3, self.token

    def close(self) -> None:
        pass


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path)
    files.make()
    OLD.write(files.identity)
    return files


def test_a_new_token_is_kept_and_then_used(files: NodeFiles) -> None:
    portal = Portal()
    rotate_token(files, portal)  # type: ignore[arg-type]
    kept = NodeIdentity.read(files.identity)
    assert kept is not None and kept.token == portal.used == "sln_new"
    assert (kept.node, kept.installation) == (OLD.node, OLD.installation)


def test_a_token_that_does_not_come_leaves_the_old_one(files: NodeFiles) -> None:
    portal = Portal(away=True)
    rotate_token(files, portal)  # type: ignore[arg-type]
    assert NodeIdentity.read(files.identity) == OLD and portal.used == ""


def test_a_node_that_joins_again_keeps_what_it_runs(files: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    portal = Portal()
    monkeypatch.setattr(Settings, "client", lambda *_: portal)
    monkeypatch.setattr(agent_settings, "_is_token_revoked", lambda *_: True)
    settings = Settings("https://lab", files.home, join_token="sln_join", runtime="fake", name="gpu-1")
    found = MachineFindings({"runc": "1.2.8"}, (OldRunc("1.1.5"),))
    identity = load_or_join(settings, files, StopSignal(), found)
    assert (identity.token, identity.installation) == ("sln_new", OLD.installation)
    ((_, _, _, facts, problems),) = portal.joined
    assert facts["runc"] == "1.2.8" and problems == [OldRunc("1.1.5").to_json()]


def test_findings_are_described_in_lines() -> None:
    facts = {"engine": "Docker 28.2", "gpus": ["A100 (80 GiB)"]}
    runc, disk = OldRunc("1.1.5"), SmallDisk(1.5, "/var")
    lines = finding_lines(MachineFindings(facts, (runc, disk)))
    assert lines == [
        "Engine: Docker 28.2",
        "GPUs: A100 (80 GiB)",
        f"Must be fixed first: {runc.text}",
        f"    {runc.fix}",
        f"Note: {disk.text}",
        f"    {disk.fix}",
    ]


def test_a_machine_is_inspected_before_it_is_a_node(tmp_path: Path) -> None:
    found = inspect_machine(tmp_path, "fake", "https://192.0.2.1", "")
    assert found.facts["cpus"] >= 1 and found.facts["disk_free_mib"] > 0 and "packages" in found.facts


@pytest.mark.parametrize(("ahead", "is_problem"), [(0.0, False), (30.0, True), (-30.0, True)])
def test_the_clock_is_compared_with_the_portal_s(ahead: float, is_problem: bool, tmp_path: Path) -> None:
    machine = Machine(tmp_path, FakeRuntime())
    machine.update_clock({"now": 1000.0}, time.monotonic(), now=1000.0 + ahead)
    assert machine.facts()["clock_offset_seconds"] == pytest.approx(ahead, abs=0.2)
    assert any("clock" in problem["text"] for problem in machine.problems()) is is_problem
    machine.update_clock({"now": "nonsense"}, time.monotonic())
    assert machine.facts()["clock_offset_seconds"] == pytest.approx(ahead, abs=0.2)


def test_nothing_starts_on_a_gpu_in_use_outside_the_portal(tmp_path: Path) -> None:
    class Busy(Machine):
        def inventory(self) -> Sequence[Gpu]:  # type: ignore[override]
            return [
                Gpu("GPU-1", 0, "cuda", "A100"),
                Gpu("GPU-2", 1, "cuda", "A100", outside=Processes((Process("python", 7),), 0)),
            ]

    machine = Busy(tmp_path, FakeRuntime())
    assert machine.gpu_conflict(("GPU-1",)) is None
    busy = machine.gpu_conflict(("GPU-1", "GPU-2"))
    assert busy is not None
    assert busy.text == "GPU 1 of this node is in use outside the portal (python, process 7)."


def test_a_process_of_a_job_is_distinguished_from_others(tmp_path: Path) -> None:
    runtime = ProcessRuntime("i", "1", tmp_path, lambda key: None)
    env = {**os.environ, processes.MARK: f"{tmp_path.resolve()}/sl-1-a1-0"}
    waiting = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(waiting, env=env, stdin=subprocess.PIPE) as ours,
        subprocess.Popen(waiting, stdin=subprocess.PIPE) as other,
    ):
        assert runtime.is_ours(ours.pid) and not runtime.is_ours(other.pid)
        assert processes.name_of(ours.pid)
        ours.kill()
        other.kill()


def test_control_groups_name_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/system.slice/docker-{'a' * 64}.scope\n1:cpu:/docker/{'b' * 64}\n")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert processes.container_ids(7) == {"a" * 64, "b" * 64}
    assert processes.container_ids(8) == set() and processes.name_of(8) is None


def test_a_pin_needs_its_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs SCHEDULEARN_CA"):
        tls_context(None, "ab" * 32)
