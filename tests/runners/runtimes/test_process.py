"""Processes as containers: found again after the agent's death, killed with everything they started."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners.host import processes
from runners.runtime import CreateError, Folders, ObservedContainer
from runners.runtimes import process
from runners.runtimes.process import ProcessRuntime
from runners.spec import JobIdentity
from tests.runners.conftest import make_spec


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the supervisor: a program that runs the workspace's main.py."""
    launch = tmp_path / "here" / "runners" / "launch"
    launch.mkdir(parents=True)
    for folder in (launch.parent, launch):
        (folder / "__init__.py").touch()
    (launch / "supervisor.py").write_text(
        "import os, runpy\nos.chdir(os.environ['SCHEDULEARN_WORKSPACE'])\nrunpy.run_path('main.py', run_name='__main__')"
    )
    monkeypatch.setattr(process, "CODE_ROOT", tmp_path / "here")


def make_runtime(tmp_path: Path) -> ProcessRuntime:
    return ProcessRuntime("installation", "node", tmp_path / "state", lambda key: sys.executable)


@pytest.fixture
def runtime(tmp_path: Path, package: None) -> Iterator[ProcessRuntime]:
    runtime = make_runtime(tmp_path)
    yield runtime
    for seen in runtime.list():
        runtime.remove(seen.name)


def run(runtime: ProcessRuntime, folders: Folders, script: str) -> str:
    spec = make_spec()
    (folders.workspace / "main.py").write_text(script)
    runtime.create(spec, folders)
    runtime.start(spec.name)
    return spec.name


def wait(until: Callable[[], object], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.02)


def only(runtime: ProcessRuntime) -> ObservedContainer:
    (seen,) = runtime.list()
    return seen


def test_every_verb_may_be_repeated(runtime: ProcessRuntime, folders: Folders) -> None:
    spec = make_spec()
    (folders.workspace / "main.py").write_text("print('hello'); raise SystemExit(3)")
    for _ in range(2):
        runtime.create(spec, folders)
        assert only(runtime).state == "created"
    runtime.start(spec.name)
    runtime.start(spec.name)
    wait(lambda: only(runtime).state == "exited")
    runtime.start(spec.name)
    assert only(runtime) == ObservedContainer(spec.name, spec.job, spec.attempt, spec.number, "exited", 3)
    assert runtime.logs(spec.name, 100) == b"hello\n"
    for _ in range(2):
        runtime.stop(spec.name, 1)
        runtime.signal(spec.name, signal.SIGTERM)
        runtime.remove(spec.name)
        assert runtime.list() == []
    assert list((folders.workspace.parent / "state").iterdir()) == []
    with pytest.raises(CreateError):
        runtime.start(spec.name)


def test_it_gives_nothing_of_the_agents_environment(
    runtime: ProcessRuntime, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    name = run(runtime, folders, "import json, os; print(json.dumps(dict(os.environ)))")
    wait(lambda: only(runtime).state == "exited")
    env = json.loads(runtime.logs(name, 10_000))
    assert "DATABASE_URL" not in env and env["SCHEDULEARN_OUTPUTS"] == str(folders.outputs)
    assert env["HOME"] == env["TMPDIR"] != os.environ.get("HOME")
    assert env["CUDA_VISIBLE_DEVICES"] == ""


SHARES = """
from multiprocessing.connection import Listener
print(len(Listener().address) < 108, flush=True)
"""


def test_processes_of_a_job_may_open_sockets_wherever_the_agent_keeps_its_state(
    tmp_path: Path, package: None, folders: Folders
) -> None:
    """As the workers of a data loader do: the path of a socket is limited, that of the state is not."""
    deep = ProcessRuntime("installation", "node", tmp_path / ("d" * 90) / "state", lambda key: sys.executable)
    name = run(deep, folders, SHARES + "import os; print(os.environ['TMPDIR'])\n")
    wait(lambda: only(deep).state == "exited")
    first, place = deep.logs(name, 1000).decode().splitlines()
    assert first == "True"
    assert Path(place).stat().st_mode & 0o777 == 0o700
    deep.remove(name)
    assert not Path(place).exists() and list(deep.state.iterdir()) == []


def test_a_temporary_folder_that_the_system_cleared_is_made_again(
    tmp_path: Path, package: None, folders: Folders
) -> None:
    deep = ProcessRuntime("installation", "node", tmp_path / ("d" * 90) / "state", lambda key: sys.executable)
    (deep.state / f"{make_spec().name}.tmp").symlink_to(tmp_path / "gone")
    name = run(deep, folders, SHARES)
    wait(lambda: only(deep).state == "exited")
    assert deep.logs(name, 1000) == b"True\n"
    deep.remove(name)


def test_the_next_agent_finds_what_runs(runtime: ProcessRuntime, folders: Folders, tmp_path: Path) -> None:
    name = run(runtime, folders, "import time; print('up', flush=True); time.sleep(60)")
    wait(lambda: runtime.logs(name, 10) == b"up\n")
    later = make_runtime(tmp_path)
    assert only(later).state == "running"
    later.start(name)
    later.stop(name, 5)
    assert only(later).state == "exited" and only(later).exit_code is None  # not its child: exit.json decides
    assert only(runtime).exit_code == 128 + signal.SIGTERM


def test_a_start_that_was_not_written_down_is_not_repeated(
    runtime: ProcessRuntime, folders: Folders, tmp_path: Path
) -> None:
    """The agent was killed between the start and its writing down."""
    name = run(runtime, folders, "import time; print('up', flush=True); time.sleep(60)")
    wait(lambda: runtime.logs(name, 10) == b"up\n")
    record = json.loads((tmp_path / "state" / f"{name}.json").read_text())
    (tmp_path / "state" / f"{name}.json").write_text(json.dumps({**record, "process": None}))
    later = make_runtime(tmp_path)
    assert only(later).state == "created"
    later.start(name)
    assert only(later).state == "running" and later.logs(name, 10) == b"up\n"
    assert json.loads((tmp_path / "state" / f"{name}.json").read_text())["process"] == record["process"]


def test_two_threads_may_see_one_end(
    runtime: ProcessRuntime, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lists while the other stops."""
    run(runtime, folders, "raise SystemExit(3)")
    whole, seen = os.fsync, list[ObservedContainer]()

    def interrupted(handle: int) -> None:
        whole(handle)
        if not seen:
            seen.append(ObservedContainer("in hand", 0, 0, 0, "running"))
            other = threading.Thread(target=lambda: seen.extend(runtime.list()))
            other.start()
            other.join()

    monkeypatch.setattr(os, "fsync", interrupted)
    wait(lambda: only(runtime).state == "exited")
    assert [one.exit_code for one in seen[1:]] == [only(runtime).exit_code] == [3]


def test_an_end_just_after_a_look_is_seen_with_its_code_in_the_next(
    runtime: ProcessRuntime, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = run(runtime, folders, "raise SystemExit(3)")
    child = runtime.children[name]
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with monkeypatch.context() as look:
        look.setattr(child, "poll", lambda: None)
        assert only(runtime).state == "running"
    assert (only(runtime).state, only(runtime).exit_code) == ("exited", 3)


def test_an_end_that_was_seen_before_its_start_was_written_down_is_an_end(
    runtime: ProcessRuntime, folders: Folders, tmp_path: Path
) -> None:
    name = run(runtime, folders, "raise SystemExit(3)")
    wait(lambda: only(runtime).state == "exited")
    path = tmp_path / "state" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "process": None}))
    assert (only(runtime).state, only(runtime).exit_code) == ("exited", 3)


def test_a_reused_process_id_is_not_ours(runtime: ProcessRuntime, folders: Folders) -> None:
    name = run(runtime, folders, "pass")
    wait(lambda: only(runtime).state == "exited")
    mine = processes.identity_of(os.getpid())
    for stranger in ({**mine, "started": "1"}, {**mine, "boot": "another"}):
        assert not processes.is_alive(stranger)
        processes.send_signal(stranger, signal.SIGKILL)  # would end this test
        assert processes.pids_in_session(stranger) == set()
    assert processes.is_alive(mine)
    runtime.remove(name)


class Clock:
    """Stands still until ``begins`` is true; from then on each sleep takes a second of it."""

    def __init__(self, begins: Callable[[], bool]) -> None:
        self.now, self.begins = 0.0, begins

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.now += self.begins()


def test_stop_asks_first_and_kills_after_the_grace(
    runtime: ProcessRuntime, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import signal, time\nsignal.signal(15, lambda *a: print('asked', flush=True))\n"
        "print('up', flush=True)\nwhile True: time.sleep(0.1)"  # pause() may miss what came just before
    )
    name = run(runtime, folders, script)
    wait(lambda: b"up\n" in runtime.logs(name, 100))
    clock = Clock(lambda: b"asked" in runtime.logs(name, 100))
    with monkeypatch.context() as patch:
        patch.setattr(process, "time", clock)
        runtime.stop(name, 3)
    assert clock.now >= 3, "the process was killed within its grace"
    assert only(runtime).exit_code == 128 + signal.SIGKILL
    assert runtime.logs(name, 100) == b"up\nasked\n"


def test_no_process_escapes_by_leaving_the_session(runtime: ProcessRuntime, folders: Folders) -> None:
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\nos._exit(0)"
    )
    name = run(runtime, folders, script)
    wait(lambda: only(runtime).state == "exited")
    escaped = int(runtime.logs(name, 100))
    assert processes.start_time(escaped) is not None
    runtime.remove(name)
    assert processes.start_time(escaped) is None


def test_another_installations_processes_are_not_listed(
    runtime: ProcessRuntime, folders: Folders, tmp_path: Path
) -> None:
    run(runtime, folders, "import time; time.sleep(60)")
    assert ProcessRuntime("another", "node", tmp_path / "state", lambda key: None).list() == []


def test_a_missing_environment_is_refused_with_a_reason(tmp_path: Path, folders: Folders) -> None:
    runtime = ProcessRuntime("installation", "node", tmp_path / "state", lambda key: None)
    with pytest.raises(CreateError, match="not prepared"):
        runtime.create(make_spec(), folders)


def test_it_warns_that_nothing_is_kept_apart(runtime: ProcessRuntime) -> None:
    (problem,) = runtime.check()
    assert "everything you can" in problem.text and "Docker" in problem.fix


def test_what_is_kept_of_a_process_names_its_job(runtime: ProcessRuntime, folders: Folders) -> None:
    for name, identity in (("sl-1-a1-0", None), ("sl-1-a1-1", JobIdentity("1" * 32, "a" * 32))):
        runtime.create(make_spec(name, identity=identity), folders)
    kept = [json.loads(path.read_bytes())["identity"] for path in sorted(runtime.state.glob("*.json"))]
    assert kept == [None, {"installation": "1" * 32, "job": "a" * 32}]


def test_a_job_gets_the_layer_of_its_environment(runtime: ProcessRuntime, folders: Folders, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    runtime.layer_of = {"a" * 64: layer}.get
    spec = make_spec(layer="a" * 64)
    (folders.workspace / "main.py").write_text("import os; print(os.environ['SCHEDULEARN_LAYER'])")
    runtime.create(spec, folders)
    runtime.start(spec.name)
    wait(lambda: only(runtime).state == "exited")
    assert runtime.logs(spec.name, 1000).decode().strip() == str(layer)


def test_a_layer_that_is_not_here_is_a_missing_environment(runtime: ProcessRuntime, folders: Folders) -> None:
    with pytest.raises(CreateError, match="python"):
        runtime.create(make_spec(layer="b" * 64), folders)
