"""A node is upgraded while its jobs run: the agent and the files of the previous release, then the present ones.

``previous_release.tar.xz`` has the package ``runners`` of the previous release. It is made again after each release, by the command in
docs/development/releases.md.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.host import processes
from tests.fake_portal import FakePortal
from tests.runners.agent.test_process import counting, enough, grows, runs
from tests.runners.agent_bench import NAME, ROOT, AgentProcess

ARCHIVE = Path(__file__).with_name("previous_release.tar.xz")


@pytest.fixture
def agent(tmp_path: Path, portal: FakePortal) -> Iterator[AgentProcess]:
    release = tmp_path / "release"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(release, filter="data")
    agent = AgentProcess(tmp_path / "agent", portal)
    agent.root = release
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for pid in processes.pids_with_mark(f"{tmp_path / 'agent' / 'processes'}/{NAME}"):
        processes.kill(pid)


def state_file(agent: AgentProcess, name: str) -> Path:
    return agent.home / "containers" / NAME / name


def test_a_job_of_the_previous_agent_is_adopted_and_ends_with_a_whole_log(
    agent: AgentProcess, portal: FakePortal
) -> None:
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    assert state_file(agent, "note.json").exists() and not state_file(agent, "state.json").exists()
    agent.kill()
    grows(agent, portal)
    before = len(portal.log(NAME))
    agent.root = ROOT
    agent.start()
    portal.until(lambda: len(portal.log(NAME)) > before)
    assert json.loads(state_file(agent, "state.json").read_text()) and not state_file(agent, "note.json").exists()
    enough(agent, portal)
    assert portal.states(NAME).count("PREPARING") <= 1, "it was not started again"


def test_a_job_that_the_previous_agent_was_asked_to_stop_is_stopped_by_the_next(
    agent: AgentProcess, portal: FakePortal
) -> None:
    """Although the supervisor that stops it is the one of the previous release."""
    portal.want(counting(portal))
    agent.start()
    runs(portal)
    agent.kill()
    portal.want(counting(portal) | {"wanted": "stop", "stop": {"reason": "cancelled", "grace_seconds": 2}})
    agent.root = ROOT
    agent.start()
    portal.until(lambda: not portal.desired)
    assert portal.container(NAME)["exit_reason"] == "stopped"
