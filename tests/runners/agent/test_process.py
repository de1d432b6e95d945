"""The agent as a program, with real supervisors and real kills."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from runners.host import processes
from tests.fake_portal import FakePortal
from tests.runners.agent_bench import NAME, AgentProcess, entry, give_code, spec_of

COUNT = b"""
import itertools, os, time
for number in itertools.count():
    print(f"line {number:06d}", flush=True)
    if number % 50 == 0:
        time.sleep(0.02)
        if os.path.exists("enough"):
            break
open(os.path.join(os.environ["SCHEDULEARN_OUTPUTS"], "result.txt"), "w").write(str(number + 1))
"""
"""Prints some two thousand lines a second until there is a file "enough" beside it."""


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "agent", portal)
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def lines(count: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(count))


def counting(portal: FakePortal, **more: Any) -> dict[str, Any]:
    sha256 = give_code(portal, {"count.py": COUNT})
    return entry(spec_of(sha256, command=("python", "count.py"), **more))


def runs(portal: FakePortal) -> None:
    portal.until(lambda: len(portal.log(NAME)) > 1000)


def local_log(agent: AgentProcess) -> Path:
    return agent.home / "containers" / NAME / "scribe/log/0.log"


def grows(agent: AgentProcess, portal: FakePortal, bytes_more: int = 5000) -> None:
    """The job has written so much more, whoever has read it."""
    log = local_log(agent)
    before = log.stat().st_size
    portal.until(lambda: log.stat().st_size >= before + bytes_more)


def enough(agent: AgentProcess, portal: FakePortal) -> None:
    """Has the job end; every line of it has arrived."""
    (agent.home / "containers" / NAME / "workspace" / "enough").touch()
    portal.until(lambda: not portal.desired)
    count = portal.outputs[NAME, "result.txt"]
    assert portal.log(NAME) == lines(int(count))
    assert portal.container(NAME)["exit_reason"] == "exited" and portal.container(NAME)["exit_code"] == 0


def test_a_command_runs_and_its_log_and_outputs_arrive(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    enough(agent, portal)
    assert set(portal.outputs) == {(NAME, "result.txt"), (NAME, "beside-code/enough")}
    assert portal.container(NAME)["exit_reason"] == "exited" and portal.container(NAME)["exit_code"] == 0
    assert agent.end() == 0
    assert (agent.home / "node.json").stat().st_mode & 0o777 == 0o600
    assert "sln_joined" not in agent.log.read_text() and "slj_good" not in agent.log.read_text()


def test_killed_and_started_again_it_adopts_and_loses_no_line(agent: AgentProcess, portal: FakePortal) -> None:
    def arrives(before: int) -> bool:
        return len(portal.log(NAME)) > before

    portal.want(counting(portal))
    agent.start()
    runs(portal)
    for _ in range(3):
        agent.kill()
        grows(agent, portal)
        before = len(portal.log(NAME))
        agent.start()
        portal.until(partial(arrives, before))
    enough(agent, portal)


FETCH = b"""
import sys, time, urllib.error, urllib.request, pathlib
def fetch(address):
    try:
        return urllib.request.urlopen(address, timeout=20).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except OSError as error:
        return "away"
allowed, other = sys.argv[1:]
print("first", fetch(allowed), fetch(other), flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.05)
while (found := fetch(allowed)) == "away":
    time.sleep(0.1)
print("second", found, flush=True)
"""


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def greeter() -> Iterator[str]:
    """A server of the lab: HOST:PORT, at an address that jobs do not reach without the proxy."""
    with ThreadingHTTPServer(("127.0.0.2", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.2:{server.server_address[1]}"
        server.shutdown()


def test_a_job_reaches_an_allowed_host_also_when_its_agent_was_restarted(
    agent: AgentProcess, portal: FakePortal, greeter: str
) -> None:
    sha256 = give_code(portal, {"fetch.py": FETCH})
    command = ("python", "fetch.py", f"http://{greeter}/", "http://127.0.0.3:81/")
    portal.want(entry(spec_of(sha256, command=command, allowed_hosts=(f"{greeter} internal",))))
    agent.start()
    portal.until(lambda: b"first hello 403 Forbidden" in portal.log(NAME), what=repr(portal.log(NAME)))
    portal.until(lambda: len(portal.networks.get(NAME, ())) == 2)
    agent.kill()
    agent.start()
    (agent.home / "containers" / NAME / "workspace" / "enough").touch()
    portal.until(lambda: not portal.desired)
    assert b"second hello" in portal.log(NAME)
    reached, refused = portal.networks[NAME]
    assert (reached["host"], reached["connections"], reached["reason"]) == ("127.0.0.2", 2, "")
    assert reached["received_bytes"] > 2 * len(b"hello") and reached["first_at"] < reached["last_at"]
    assert (refused["host"], refused["port"], refused["refused"], refused["reason"]) == (
        "127.0.0.3",
        81,
        1,
        "not_allowed",
    )


def test_a_portal_that_is_away_costs_no_line(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    portal.down = True
    portal.until_anything_asked()
    before = len(portal.log(NAME))
    grows(agent, portal)
    assert len(portal.log(NAME)) == before
    portal.down = False
    enough(agent, portal)


def test_sigterm_lets_containers_run_on(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    assert agent.end() == 0
    sent = portal.log(NAME)
    grows(agent, portal)
    assert portal.log(NAME) == sent
    agent.start()
    enough(agent, portal)


def test_stop_jobs_on_exit_leaves_no_process(agent: AgentProcess, portal: FakePortal) -> None:
    portal.want(counting(portal))
    agent.start("--stop-jobs-on-exit")
    runs(portal)
    mark = f"{agent.home / 'processes'}/{NAME}"
    assert processes.pids_with_mark(mark)
    assert agent.end() == 0
    assert not processes.pids_with_mark(mark)


def test_a_stop_ends_the_ranks(agent: AgentProcess, portal: FakePortal) -> None:
    wanted = counting(portal)
    portal.want(wanted)
    agent.start()
    runs(portal)
    portal.want({**wanted, "wanted": "stop", "stop": {"reason": "cancelled", "grace_seconds": 2}})
    portal.until(lambda: not portal.desired, 20)
    assert portal.container(NAME)["exit_reason"] == "stopped"
    assert lines(1_000).startswith(portal.log(NAME)[:12_000])


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
@pytest.mark.thorough
def test_a_stopped_agent_is_fenced_and_its_return_starts_nothing(agent: AgentProcess, portal: FakePortal) -> None:
    """SIGSTOP is the worst partition: the agent wakes up believing no time has passed."""
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    assert agent.process is not None
    os.kill(agent.process.pid, signal.SIGSTOP)
    log = agent.home / "containers" / NAME / "scribe/exit.json"
    until = time.monotonic() + 50
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.2)
    os.kill(agent.process.pid, signal.SIGCONT)
    portal.until(lambda: not portal.desired, 30)
    assert portal.container(NAME)["exit_reason"] == "fenced"
