"""Limits of plain processes: the greedy job is killed and explained, and the others live."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.agent.exits import determine_exit
from runners.agent.reconcile import DesiredContainer, JournalEntry
from runners.messages.confinement import LimitsEnforced, LimitsNotEnforced
from runners.messages.containers import OverMemoryLimit
from runners.runtime import Folders, ObservedContainer
from runners.runtimes import control_groups, process
from runners.runtimes.control_groups import ControlGroups, find_control_groups
from runners.runtimes.process import ProcessRuntime
from runners.spec import Resources
from tests.runners.conftest import make_folders, make_spec

FOLDER = f"schedulearn-test-{os.getpid()}"
GROUPS, WHY = find_control_groups(FOLDER)
if GROUPS is not None:
    for each in set(GROUPS.parents.values()):
        each.rmdir()
unavailable = pytest.mark.skipif(GROUPS is None, reason=f"control groups cannot be used here: {WHY.text}")


def limited(test: Any) -> Any:
    """Mark a test as one that needs control groups."""
    return pytest.mark.bubblewrap(unavailable(test))


SMALL = Resources(cpus=0.5, memory_mib=128, pids=40, disk_mib=64)


@pytest.fixture(params=["confined", "plain"])
def runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ProcessRuntime]:
    """Run a program of the workspace in place of the supervisor."""
    launch = tmp_path / "here" / "runners" / "launch"
    launch.mkdir(parents=True)
    for folder in (launch.parent, launch):
        (folder / "__init__.py").touch()
    (launch / "supervisor.py").write_text(
        "import os, runpy\nos.chdir(os.environ['SCHEDULEARN_WORKSPACE'])\nrunpy.run_path('main.py', run_name='__main__')"
    )
    monkeypatch.setattr(process, "CODE_ROOT", tmp_path / "here")
    runtime = ProcessRuntime(
        "installation",
        "node",
        tmp_path / "state",
        lambda key: sys.executable,
        limit=lambda _: find_control_groups(FOLDER),
    )
    yield runtime
    for seen in runtime.list():
        runtime.remove(seen.name)
    for parent in set(runtime.groups.parents.values()) if runtime.groups else ():
        assert not [each for each in parent.iterdir() if each.is_dir()], "no group is left behind"
        parent.rmdir()


def run(runtime: ProcessRuntime, folders: Folders, name: str, script: str, resources: Resources = SMALL) -> str:
    (folders.workspace / "main.py").write_text(script)
    runtime.create(make_spec(name, resources=resources), folders)
    runtime.start(name)
    return name


def only(runtime: ProcessRuntime, name: str) -> ObservedContainer:
    return next(each for each in runtime.list() if each.name == name)


def wait(until: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.05)


@limited
def test_the_greedy_job_is_killed_and_explained_and_the_other_lives(runtime: ProcessRuntime, tmp_path: Path) -> None:
    assert runtime.facts()["limits_message"] == LimitsEnforced().data()
    modest = run(
        runtime,
        make_folders(tmp_path / "1"),
        "sl-1-a1-0",
        "import time\nkept = bytearray(30 << 20)\nwhile True:\n    time.sleep(0.1)",
    )
    greedy = run(
        runtime,
        make_folders(tmp_path / "2"),
        "sl-2-a1-0",
        "kept = []\nwhile True:\n    kept.append(bytearray(8 << 20))",
    )
    wait(lambda: only(runtime, greedy).state == "exited")
    seen = only(runtime, greedy)
    assert (seen.exit_code, seen.oom_killed) == (137, True)
    entry = JournalEntry(42, 7, 1, started=True)
    ended = determine_exit(DesiredContainer(make_spec(greedy), "run"), seen, entry, {})
    assert (ended.reason, ended.message) == ("oom", OverMemoryLimit())
    assert only(runtime, modest).state == "running" and not only(runtime, modest).oom_killed


@limited
def test_a_child_of_a_job_is_limited_too(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """A DataLoader worker, for example: its parent reports the failure, and the kernel the reason."""
    name = run(
        runtime,
        make_folders(tmp_path / "1"),
        "sl-1-a1-0",
        "import subprocess, sys\n"
        "sys.exit(subprocess.run([sys.executable, '-c', 'x = bytearray(400 << 20)']).returncode and 1)",
    )
    wait(lambda: only(runtime, name).state == "exited")
    assert (only(runtime, name).exit_code, only(runtime, name).oom_killed) == (1, True)


@limited
def test_a_job_gets_no_more_processors_and_processes_than_it_has(runtime: ProcessRuntime, tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "begin = time.monotonic()\n"
        "while time.monotonic() - begin < 2: pass\n"
        "used = time.process_time()\n"
        "for count in range(100):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(2); os._exit(0)\n"
        "    except OSError: break\n"
        "open('result', 'w').write(f'{used} {count}')\n"
    )
    folders = make_folders(tmp_path / "1")
    name = run(runtime, folders, "sl-1-a1-0", script)
    wait(lambda: only(runtime, name).state == "exited")
    used, count = (folders.workspace / "result").read_text().split()
    assert float(used) < 1.6, "half a processor for two seconds"
    assert 10 < int(count) < 40


@limited
def test_the_next_agent_still_knows_why_it_ended(runtime: ProcessRuntime, tmp_path: Path) -> None:
    name = run(runtime, make_folders(tmp_path / "1"), "sl-1-a1-0", "x = bytearray(400 << 20)")
    wait(lambda: only(runtime, name).state == "exited")
    again = ProcessRuntime(
        "installation", "node", runtime.state, lambda key: sys.executable, limit=lambda _: (runtime.groups, WHY)
    )
    assert only(again, name).oom_killed


def test_an_agent_that_is_not_root_enforces_nothing_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found, message = find_control_groups(FOLDER)
    assert found is None and message == LimitsNotEnforced("the agent is not root")
    assert message.text.startswith("not enforced (the agent is not root)")


def test_version_2_has_one_group_per_container_below_a_delegated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a folder in place of the kernel's: the files that it writes are those that the kernel reads."""
    base = tmp_path / "system.slice/agent.service"
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text("cpu memory pids")
    own, mounts = tmp_path / "cgroup", tmp_path / "mountinfo"
    own.write_text("0::/system.slice/agent.service\n")
    mounts.write_text(f"30 23 0:26 / {tmp_path} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
    monkeypatch.setattr(control_groups, "CGROUPS", own)
    monkeypatch.setattr(control_groups, "MOUNTS", mounts)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found, message = find_control_groups("jobs")
    assert isinstance(found, ControlGroups) and message == LimitsEnforced()
    assert (base / "schedulearn-agent/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    for name in ("memory.max", "cpu.max", "pids.max"):
        (base / "jobs/x").mkdir(parents=True, exist_ok=True)
        (base / "jobs/x" / name).touch()
    found.create("x", SMALL)
    assert (base / "jobs/x/memory.max").read_text() == str(128 * 2**20)
    assert (base / "jobs/x/cpu.max").read_text() == "50000 100000"
    assert not (base / "jobs/x/memory.swap.max").exists(), "this kernel does not account for swap"
    (base / "jobs/x/memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert found.was_out_of_memory("x") and not found.was_out_of_memory("y")
