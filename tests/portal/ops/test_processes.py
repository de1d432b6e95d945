"""The manager of ``up`` restarts programs that died, pauses while they keep dying, and leaves nothing behind."""

import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import override_settings

from portal import settings as settings_file
from portal.cluster.models import JoinToken
from portal.ops.management.commands import up
from portal.ops.management.commands.demo import Command as DemoCommand
from portal.ops.management.commands.up import Command
from portal.ops.prerequisites import port_findings
from portal.ops.up import preflight
from portal.ops.up.preflight import AlreadyRunningError, lock_home
from portal.ops.up.processes import Program, ProgramManager
from runners.agent.settings import NodeIdentity
from tests.portal import jobs_world as world
from tests.portal.control_world import queue, ready_node
from tests.servers import free_port


def sleeper(name: str = "sleeper", code: str = "import time; time.sleep(60)", grace_seconds: float = 30) -> Program:
    return Program(name, (sys.executable, "-c", code), os.environ, grace_seconds=grace_seconds)


def wait_until_gone(pid: int, seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_it_starts_a_killed_program_again(tmp_path: Path) -> None:
    now = [0.0]
    manager = ProgramManager(tmp_path, clock=lambda: now[0])
    manager.start(sleeper())
    first = manager.programs[0].process
    assert first is not None
    first.kill()
    first.wait()
    now[0] = 100.0  # it had run steadily
    manager.check()
    second = manager.programs[0].process
    assert second is not None and second.pid != first.pid
    manager.stop()


def test_it_rests_longer_while_a_program_keeps_dying(tmp_path: Path) -> None:
    now = [0.0]
    manager = ProgramManager(tmp_path, clock=lambda: now[0])
    manager.start(sleeper(code="raise SystemExit(3)"))
    rests = []
    for _ in range(4):
        process = manager.programs[0].process
        assert process is not None
        process.wait()
        manager.check()
        rests.append(manager.programs[0].rest_seconds)
        now[0] = manager.programs[0].due
        manager.check()
    manager.stop()
    assert rests == sorted(rests) and rests[-1] > rests[0] > 0


def test_it_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    manager = ProgramManager(tmp_path)
    manager.start(sleeper(name="stubborn", code=stubborn, grace_seconds=0.05))
    while b"ready" not in (tmp_path / "stubborn.log").read_bytes():
        time.sleep(0.01)
    process = manager.programs[0].process
    assert process is not None
    manager.stop()
    assert process.returncode == -signal.SIGKILL


def test_programs_die_with_a_keeper_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from portal.ops.up.processes import ProgramManager, Program\n"
        f"k = ProgramManager(Path({str(tmp_path)!r}))\n"
        "k.start(Program('child', (sys.executable, '-c', 'import time; time.sleep(60)'), os.environ))\n"
        "print(k.programs[0].process.pid, flush=True); time.sleep(60)\n"
    )
    import subprocess

    manager = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert manager.stdout is not None
    child = int(manager.stdout.readline())
    manager.kill()
    manager.wait()
    manager.stdout.close()
    assert wait_until_gone(child)


def test_a_taken_port_is_reported_with_the_command_that_fixes_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (finding,) = port_findings("127.0.0.1", str(taken.getsockname()[1]))
    assert finding.fatal and "make run PORT=" in finding.fix
    assert list(port_findings("127.0.0.1", str(free_port()))) == []


def test_a_web_process_that_is_still_loading_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry process has accepted the connection by then."""
    monkeypatch.setattr(preflight, "CONNECT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as entry, ThreadPoolExecutor() as pool:
        answered = pool.submit(preflight.portal_responds, "127.0.0.1", entry.getsockname()[1])
        connection, _ = entry.accept()
        with connection:
            connection.recv(1000)
            time.sleep(0.1)  # ten times what connecting may take
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            assert answered.result()


def test_a_second_start_with_the_same_home_is_refused(tmp_path: Path) -> None:
    with lock_home(tmp_path), pytest.raises(AlreadyRunningError):
        lock_home(tmp_path)


@pytest.mark.django_db
def test_no_secret_of_the_portal_reaches_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = re.findall(r'env_secret\("(\w+)"\)', Path(settings_file.__file__).read_text())
    assert len(secrets) >= 4
    for name in secrets:
        monkeypatch.setenv(name, "treasure")
        monkeypatch.setenv(f"{name}_FILE", "/run/treasure")
    env = {program.name: program.env for program in Command()._programs()}
    assert not [name for name, value in env["agent"].items() if "treasure" in value]
    assert env["web"]["SECRET_KEY"] == "treasure"


@pytest.mark.django_db
def test_nothing_is_written_beside_the_code(settings: LazySettings) -> None:
    settings.LAB = True
    (worker,) = (program for program in Command()._programs() if program.name == "worker")
    assert str(settings.HOME / "beat") in worker.argv


def test_the_command_that_starts_a_lab_again_has_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "HOST", "127.0.0.1")
    usual = settings_file.DEFAULT_HOME
    with override_settings(PORT=8000):
        assert up.start_command("make run", usual) == "make run"
    with override_settings(PORT=8001):
        again = up.start_command("make demo", tmp_path / "a lab")
    assert again == f"make demo SCHEDULEARN_HOME='{tmp_path / 'a lab'}' PORT=8001"


@pytest.mark.django_db
def test_a_stop_counts_the_jobs_that_stop_with_this_machine(tmp_path: Path) -> None:
    node = ready_node("here", 4)
    assert up.count_local_jobs(tmp_path) == 0
    (tmp_path / "agent").mkdir()
    NodeIdentity(node.pk, "t", "http://127.0.0.1", node.name, "process", "i").write(tmp_path / "agent" / "node.json")
    attempt = world.place(queue(2), list(node.gpus.all())[:2])
    world.place(queue(1), list(ready_node("elsewhere", 1).gpus.all()))
    assert up.count_local_jobs(tmp_path) == 1
    for part in attempt.containers.all():
        world.run(part)
        world.exit(part, 0)
    assert up.count_local_jobs(tmp_path) == 0
    assert [up.describe_stopped_jobs(jobs) for jobs in (0, 1, 2)] == [
        "",
        "1 running job stops too, and will run again after the next start.",
        "2 running jobs stop too, and will run again after the next start.",
    ]


@pytest.mark.django_db
def test_a_demo_lab_starts_no_agent_and_invites_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DemoCommand, "_fill", lambda self: None)
    demo = {program.name for program in DemoCommand()._programs()}
    assert not JoinToken.objects.exists()
    assert {program.name for program in Command()._programs()} - demo == {"agent"}
    assert JoinToken.objects.count() == 1
