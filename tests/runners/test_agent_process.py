"""The agent as a program, with real supervisors and real kills."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runners import processes
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import NAME, AgentProcess, entry, give_code, settle, spec_of

COUNT = b"""
import os, sys, time
for number in range(int(sys.argv[1])):
    print(f"line {number:06d}", flush=True)
    if number % 50 == 0:
        time.sleep(0.02)
open(os.path.join(os.environ["SCHEDULEARN_OUTPUTS"], "result.txt"), "w").write("done")
"""


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "agent", portal)
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def lines(count: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(count))


def counting(portal: FakePortal, count: int, **more: Any) -> dict[str, Any]:
    sha256 = give_code(portal, {"count.py": COUNT})
    return entry(spec_of(sha256, command=("python", "count.py", str(count)), **more))


def test_a_command_runs_and_its_log_and_outputs_arrive(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal, 500))
    agent.start()
    portal.until(lambda: not portal.desired, 30)
    assert portal.log(NAME) == lines(500)
    assert portal.outputs == {(NAME, "result.txt"): b"done"}
    assert portal.container(NAME)["exit_reason"] == "exited" and portal.container(NAME)["exit_code"] == 0
    assert agent.end() == 0
    assert (agent.home / "node.json").stat().st_mode & 0o777 == 0o600
    assert "sln_joined" not in agent.log.read_text() and "slj_good" not in agent.log.read_text()


def test_killed_and_started_again_it_adopts_and_loses_no_line(agent: AgentProcess, portal: FakePortal) -> None:
    def goes_on(before: int) -> bool:
        return len(portal.log(NAME)) > before or not portal.desired

    portal.want(counting(portal, 20_000))
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    for _ in range(3):
        agent.kill()
        settle(0.3)
        before = len(portal.log(NAME))
        agent.start()
        portal.until(partial(goes_on, before), 20)
    portal.until(lambda: not portal.desired, 60)
    assert portal.log(NAME) == lines(20_000)
    assert portal.container(NAME)["exit_reason"] == "exited" and portal.container(NAME)["exit_code"] == 0


def test_a_portal_that_is_away_for_five_seconds_costs_no_line(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal, 20_000))
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    portal.down = True
    settle(5)
    assert not portal.log(NAME).endswith(b"line 019999\n")
    portal.down = False
    portal.until(lambda: not portal.desired, 60)
    assert portal.log(NAME) == lines(20_000)


def test_sigterm_lets_containers_run_on(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal, 20_000))
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    assert agent.end() == 0
    sent = portal.log(NAME)
    log = agent.home / "containers" / NAME / "scribe/log/0.log"
    size = log.stat().st_size
    until = time.monotonic() + 60
    while log.stat().st_size == size and time.monotonic() < until:
        time.sleep(0.05)
    assert log.stat().st_size > size and portal.log(NAME) == sent
    agent.start()
    portal.until(lambda: not portal.desired, 60)
    assert portal.log(NAME) == lines(20_000)


def test_stop_jobs_on_exit_leaves_no_process(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal, 1_000_000))
    agent.start("--stop-jobs-on-exit")
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    mark = f"{agent.home / 'processes'}/{NAME}"
    assert processes.with_mark(mark)
    assert agent.end() == 0
    assert not processes.with_mark(mark)


def test_a_stop_ends_the_ranks(agent: AgentProcess, portal: FakePortal) -> None:
    wanted = counting(portal, 1_000_000)
    portal.want(wanted)
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    portal.want({**wanted, "wanted": "stop", "stop": {"reason": "cancelled", "grace_seconds": 2}})
    portal.until(lambda: not portal.desired, 20)
    assert portal.container(NAME)["exit_reason"] == "stopped"
    assert lines(1_000_000).startswith(portal.log(NAME)[:12_000])


def test_a_second_agent_in_the_same_home_is_refused(agent: AgentProcess, portal: FakePortal) -> None:
    agent.start()
    portal.until(lambda: portal.reports, 20)
    second = AgentProcess(agent.home, portal)
    second.start()
    assert second.process is not None and second.process.wait(20) == 2
    assert "Another agent already works" in agent.log.read_text()


def test_a_bad_join_token_is_a_sentence_and_an_end(agent: AgentProcess) -> None:
    agent.env["SCHEDULEARN_JOIN_TOKEN"] = "slj_bad"
    agent.start()
    assert agent.process is not None and agent.process.wait(20) == 2
    assert "This join token is unknown, used or expired." in agent.log.read_text()
    assert not (agent.home / "node.json").exists()


@pytest.mark.system
def test_a_stopped_agent_is_fenced_and_its_return_starts_nothing(agent: AgentProcess, portal: FakePortal) -> None:
    """SIGSTOP is the worst partition: the agent wakes up believing no time has passed."""
    portal.want(counting(portal, 1_000_000))
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > 1000, 30)
    assert agent.process is not None
    os.kill(agent.process.pid, signal.SIGSTOP)
    log = agent.home / "containers" / NAME / "scribe/exit.json"
    until = time.monotonic() + 50
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.2)
    os.kill(agent.process.pid, signal.SIGCONT)
    portal.until(lambda: not portal.desired, 30)
    assert portal.container(NAME)["exit_reason"] == "fenced"
