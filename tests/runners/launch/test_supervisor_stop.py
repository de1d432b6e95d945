import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from portal.jobs.models import StopReason
from runners.launch.files import ContainerPaths, Control, Stop
from runners.launch.log_writer import LogWriter
from runners.launch.supervisor import STOP_MESSAGES, Supervisor
from tests.runners.conftest import make_spec
from tests.runners.launching import Container, attempt, until

POLITE = """
import json, os, signal, sys, time
def leave(number, frame):
    notice = json.load(open(os.environ["SCHEDULEARN_NOTICE"]))
    print("leaving because", notice["reason"], notice["until"] > time.time())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up")
time.sleep(60)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("no"))
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child up'); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("up")
while True:
    time.sleep(60)
"""


def test_a_stop_gives_notice_and_time(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        container.tell(stop={"reason": "preempted", "grace_seconds": 60})
        exit = container.wait(30)
    assert (exit["code"], exit["reason"]) == (0, "stopped")
    assert container.log() == "up\nleaving because preempted True\n"
    assert "The scheduler takes the GPUs back: the ranks have 60 seconds to end" in container.log("setup")


def test_after_the_grace_everything_is_killed(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", STUBBORN)).start()
        until(lambda: "child up" in container.log() and "\nup" in f"\n{container.log()}")
        container.tell(stop={"reason": "cancelled", "grace_seconds": 0.5})
        exit = container.wait(30)
    assert (exit["code"], exit["reason"]) == (137, "stopped")
    assert container.log().count("no\n") == 1
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path).encode() not in environ.read_bytes()
        except OSError:
            continue


class Ranks:
    """In place of Processes."""

    def __init__(self, readers: bool = False) -> None:
        self.received: list[str] = []
        self.readers = readers

    def signal_writers(self, number: signal.Signals) -> bool:
        self.received.append(f"{number.name} of writers" if self.readers else number.name)
        return self.readers

    def signal(self, number: signal.Signals) -> None:
        self.received.append(number.name)

    def kill_everything(self) -> None:
        self.received.append("SIGKILL")


@pytest.mark.parametrize(
    ("readers", "received"),
    [(False, ["SIGTERM"]), (True, ["SIGTERM of writers", "SIGTERM"])],
    ids=["no pipes", "programs that read from a pipe"],
)
def test_ranks_have_all_of_the_grace_between_sigterm_and_sigkill(
    tmp_path: Path, readers: bool, received: list[str]
) -> None:
    logs = LogWriter(tmp_path)
    paths = ContainerPaths.from_env({"SCHEDULEARN_SCRIBE": str(tmp_path), "SCHEDULEARN_CONTROL": str(tmp_path)})
    supervisor = Supervisor(make_spec(), paths, Control(tmp_path), logs)
    ranks: Any = Ranks(readers)
    supervisor.processes = ranks
    supervisor._begin_stop("stopped", Stop("cancelled", 60), now=100.0)
    assert supervisor.stopping is not None
    for now in (100.0, 101.0, 129.9):
        supervisor._escalate_stop(supervisor.stopping, now)
        assert ranks.received == received[:1]
    for now in (130.0, 159.9):
        supervisor._escalate_stop(supervisor.stopping, now)
        assert ranks.received == received
    supervisor._escalate_stop(supervisor.stopping, 160.0)
    assert ranks.received == [*received, "SIGKILL"]
    logs.close()


def test_every_reason_to_stop_has_a_message_and_no_message_is_idle() -> None:
    assert set(STOP_MESSAGES) == {*StopReason.values, "disk", "stopped", "fenced"}


def test_a_reason_that_is_newer_than_the_image_is_named(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        container.tell(stop={"reason": "moved", "grace_seconds": 60})
        ended = container.wait(30)
        assert ended["detail"] == "The container was asked to stop (moved)"
        assert ended["message"] == {"code": "launch.asked_to_stop", "reason": "moved"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_stop(tmp_path: Path, number: signal.Signals) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("sleep", "60")).start()
        until((container.scribe / "status.json").exists)
        assert container.process is not None
        until(lambda: '"ranks": 1' in (container.scribe / "status.json").read_text())
        container.process.send_signal(number)
        assert container.wait(30)["reason"] == "stopped"


def read(container: Container, content: str) -> None:
    """Has the supervisor read this as control.json, once: from a pipe, where it waits for the content."""
    path = container.control / "control.json"
    os.mkfifo(container.control / "pipe")
    (container.control / "pipe").replace(path)
    with path.open("w") as pipe:  # open when the supervisor has opened it
        container.tell()
        pipe.write(content)


def test_junk_in_the_control_file_is_survived_and_a_later_stop_obeyed(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", POLITE)).start()
        until(lambda: "up" in container.log())
        for junk in ("", "{", "[]", '{"stop": 7, "hosts": "many"}', "\0" * 5000):
            read(container, junk)
        container.tell(stop={"reason": "timed_out", "grace_seconds": 60})
        assert container.wait(30)["reason"] == "stopped"


def test_a_program_that_ended_by_itself_was_not_stopped(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        container = made.container(("false",)).start()
        assert container.wait() == {"code": 1, "reason": "exited", "detail": ""}
        status = json.loads((container.scribe / "status.json").read_text())
    assert status["phase"] == "running" and status["message"] == {"code": "launch.running"}
