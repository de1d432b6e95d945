"""Processes that were stopped and not woken."""

import os
import re
import signal
from pathlib import Path

import pytest

from portal.jobs.causes.classify import STOPPED_PROCESS
from runners.launch.hang_detector import CHECK_SECONDS, STOPPED_SECONDS, HangDetector
from runners.messages.launch import RankEnded
from tests.runners.launch.test_static_group import containers_of
from tests.runners.launching import WAIT_FOR_RELEASE, attempt, until


class World:
    """Processes with their letters, and a clock."""

    def __init__(self) -> None:
        self.now, self.states = 100.0, {7: "S", 8: "S"}
        self.detector = HangDetector(states=lambda: self.states, clock=lambda: self.now)

    def after(self, seconds: float) -> list[int]:
        self.now += seconds
        return self.detector.hung_processes()


def test_only_a_process_that_stays_stopped_counts_as_hung() -> None:
    world = World()
    world.states |= {8: "T", 9: "t", 10: "D"}
    assert world.after(0) == []
    assert world.after(STOPPED_SECONDS - 1) == []
    assert world.after(CHECK_SECONDS) == [8]
    world.states[8] = "S"
    assert world.after(CHECK_SECONDS) == []


def test_the_time_restarts_when_a_process_was_woken() -> None:
    world = World()
    world.states[8] = "T"
    assert world.after(0) == []
    world.states[8] = "R"
    assert world.after(CHECK_SECONDS) == []
    world.states[8] = "T"
    assert world.after(STOPPED_SECONDS) == []
    assert world.after(STOPPED_SECONDS) == [8]


def test_it_checks_only_every_few_seconds() -> None:
    world, checks = World(), []

    def states() -> dict[int, str]:
        checks.append(world.now)
        return {}

    world.detector = HangDetector(states=states, clock=lambda: world.now)
    for _ in range(40):
        world.after(0.5)
    assert len(checks) == 20 / CHECK_SECONDS


@pytest.mark.parametrize(("given", "seconds"), [("2", 2), ("", 30), ("many", 30), ("0", 30), ("3600", 30)])
def test_only_tests_may_shorten_the_time(given: str, seconds: float) -> None:
    assert HangDetector.from_env({"SCHEDULEARN_STOPPED_SECONDS": given}).seconds == seconds


STOPS_A_CHILD = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
print("child", child.pid, flush=True)
print("ended with", child.wait(), flush=True)
"""


def test_a_stopped_process_is_ended_and_its_parent_continues(tmp_path: Path) -> None:
    """No matter what started it, torchrun or the user's own code."""
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", STOPS_A_CHILD)).start(SCHEDULEARN_STOPPED_SECONDS="1")
        assert container.wait() == {"code": 0, "reason": "exited", "detail": ""}
    pid, code = re.findall(r"child (\d+)\nended with (-\d+)", container.log())[0]
    assert code == "-9"
    match = STOPPED_PROCESS.search(container.log("setup"))
    assert match and match.group(0) == f"Process {pid} was stopped by a signal 1 s ago and not woken: it is ended"


def test_a_process_that_is_woken_in_time_runs_on(tmp_path: Path) -> None:
    """When it is too late is in the tests with a clock."""
    with attempt(tmp_path) as made:
        container = made.container(("python", "-c", f"import os; print(os.getpid()){WAIT_FOR_RELEASE}")).start()
        pid = int(until(container.log))
        os.kill(pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        os.kill(pid, signal.SIGCONT)
        made.release()
        assert container.wait()["code"] == 0
    assert "stopped by a signal" not in container.log("setup")


STOPS = """
import os, signal, time
print("up", flush=True)
if os.environ["HOROVOD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""


def test_a_stopped_rank_ends_its_group(tmp_path: Path) -> None:
    with attempt(tmp_path) as made:
        driver, h1, h2 = containers_of(made, STOPS, 1, 1, start=False)
        for container in (driver, h1, h2):
            container.start(SCHEDULEARN_STOPPED_SECONDS="0.2")
        exit = driver.wait()
        assert (exit["code"], exit["message"]) == (137, RankEnded(1, "h2", 137).data())
        assert h1.wait()["code"] == 137
    assert "was stopped by a signal" in h2.log("setup")
