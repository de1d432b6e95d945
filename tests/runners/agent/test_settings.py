"""How an agent is set up, and how it becomes a node."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.agent.settings import NodeIdentity, Settings, load_or_join, lock_home
from runners.agent.signals import StopSignal
from runners.host.node_files import NodeFiles
from runners.runtime import SetupError
from tests.fake_portal import FakePortal


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        yield portal


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    files = NodeFiles(tmp_path / "agent")
    files.make()
    return files


def settings(portal: FakePortal, files: NodeFiles, **more: str) -> Settings:
    env = {"SCHEDULEARN_URL": portal.url, "AGENT_HOME": str(files.home), "RUNTIME": "fake", "NODE_NAME": "n1", **more}
    return Settings.read([], env)


def test_flags_go_before_the_environment(tmp_path: Path) -> None:
    env = {"SCHEDULEARN_URL": "https://a", "SCHEDULEARN_HOME": str(tmp_path), "RUNTIME": "docker", "NODE_NAME": "one"}
    read = Settings.read(["--url", "https://b", "--name", "two", "--stop-jobs-on-exit"], env)
    assert (read.url, read.name, read.runtime, read.stop_jobs_on_exit) == ("https://b", "two", "docker", True)
    assert read.home == tmp_path / "agent"
    assert Settings.read([], {}).name and Settings.read([], {}).runtime == "auto"


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"RUNTIME": "podman"}, "RUNTIME must be one of"),
        ({"SCHEDULEARN_CA": "/none.pem"}, "which is not a file"),
        ({"SCHEDULEARN_DATASETS": "/none"}, "which is not a folder"),
        ({"SCHEDULEARN_ALLOW_HTTP": "maybe"}, "must be true or false"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        Settings.read([], env)


def test_it_joins_once_and_remembers(portal: FakePortal, files: NodeFiles) -> None:
    first = load_or_join(settings(portal, files, SCHEDULEARN_JOIN_TOKEN="slj_good"), files, StopSignal())
    assert (first.node, first.token, first.runtime) == (3, "sln_joined", "fake")
    assert files.identity.stat().st_mode & 0o777 == 0o600
    assert load_or_join(settings(portal, files), files, StopSignal()) == first
    again = load_or_join(settings(portal, files, SCHEDULEARN_JOIN_TOKEN="slj_good"), files, StopSignal())
    assert again == first, "a used join token left in the environment does no harm"
    assert portal.requests["POST /agent/v1/join"] == 1


def test_a_revoked_node_joins_again_with_a_new_join_token(portal: FakePortal, files: NodeFiles) -> None:
    old = NodeIdentity(1, "sln_revoked", portal.url, "n1", "fake", "i")
    old.write(files.identity)
    assert load_or_join(settings(portal, files), files, StopSignal()) == old
    new = load_or_join(settings(portal, files, SCHEDULEARN_JOIN_TOKEN="slj_good"), files, StopSignal())
    assert new.token == "sln_joined" and NodeIdentity.read(files.identity) == new


def test_it_waits_for_a_portal_that_is_still_starting(portal: FakePortal, files: NodeFiles) -> None:
    portal.down = True
    threading.Timer(0.7, lambda: setattr(portal, "down", False)).start()
    joined = load_or_join(settings(portal, files, SCHEDULEARN_JOIN_TOKEN="slj_good"), files, StopSignal())
    assert joined.node == 3


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "not a node yet"),
        ({"SCHEDULEARN_JOIN_TOKEN": "slj_bad"}, "refused this node: This join token is unknown"),
        ({"SCHEDULEARN_JOIN_TOKEN": "slj_good", "SCHEDULEARN_URL": "http://portal.example.org"}, "unencrypted"),
        ({"SCHEDULEARN_JOIN_TOKEN": "slj_good", "SCHEDULEARN_URL": "portal"}, "not the address"),
    ],
)
def test_what_cannot_join_gets_the_reason(
    portal: FakePortal, files: NodeFiles, more: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SetupError, match=sentence):
        load_or_join(settings(portal, files, **more), files, StopSignal())
    assert not files.identity.exists()


def test_a_node_does_not_change_its_runtime_silently(portal: FakePortal, files: NodeFiles) -> None:
    NodeIdentity(1, "sln_fake", portal.url, "n1", "docker", "i").write(files.identity)
    with pytest.raises(SetupError, match="joined with the runtime docker"):
        load_or_join(settings(portal, files), files, StopSignal())
    assert load_or_join(settings(portal, files, RUNTIME="auto"), files, StopSignal()).runtime == "docker"


def test_one_agent_per_home(files: NodeFiles) -> None:
    lock = lock_home(files)
    with pytest.raises(SetupError, match="Another agent"):
        lock_home(files)
    lock.close()
    lock_home(files).close()
