"""The API with which agents fetch commits from Git."""

from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import User
from portal.agents import sync as agent_sync
from portal.projects.git import fetches, keys
from portal.projects.git.models import GitFetch, GitSource
from portal.projects.models import Project
from portal.sentences import sentence_of
from tests.portal import git_world as made
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
ABLE = {"ssh": True, "lfs": False}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    agent_sync._fetches.forget()


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


@pytest.fixture
def agent() -> Agent:
    return Agent()


def put(agent: Agent, fetch: GitFetch, offset: int, content: bytes) -> Any:
    path = f"/agent/v1/git/{fetch.pk}/archive?offset={offset}"
    return agent.http.put(path, content, content_type="application/octet-stream", headers=agent.headers)


def end(agent: Agent, fetch: GitFetch, **result: Any) -> Any:
    return agent.post(f"git/{fetch.pk}/end", result)


def given(agent: Agent) -> GitFetch:
    return GitFetch.objects.get(pk=agent.post("git/claim", ABLE).json()["fetch"])


def test_a_node_fetches_a_commit(agent: Agent, alice: User, project: Project) -> None:
    assert agent.sync()["git_fetches"] == 0
    made.bind(alice, project, user="robot", token="t0ken")
    fetches.request(alice, project)
    agent_sync._fetches.forget()
    assert agent.sync()["git_fetches"] == 1
    order = agent.post("git/claim", ABLE).json()
    assert order["token"] == "t0ken" and order["hosts"] == ["github.com:443"]
    fetch = GitFetch.objects.get()
    report = {"percent": 40, "message": {"code": "git.receiving", "percent": 3}, "offset": 0, "log": "Grüße\n"}
    assert agent.post(f"git/{fetch.pk}/progress", report).json() == {"size": len("Grüße\n".encode())}
    content = made.archive({"train.py": "print(1)\n"})
    assert put(agent, fetch, 0, content[:50]).json() == {"size": 50}
    assert put(agent, fetch, 9, content).status_code == 409
    assert put(agent, fetch, 50, content[50:]).json() == {"size": len(content)}
    assert end(agent, fetch, state="done", commit=made.FIRST, author="Ada", subject="x").status_code == 200
    assert project.code_versions.get().origin.commit == made.FIRST
    assert agent.post("git/claim", ABLE).json() == {}
    again = end(agent, fetch, state="done", commit=made.FIRST)
    assert again.status_code == 409 and again.json()["error"]["code"] == "ended"


def test_nodes_that_are_not_approved_learn_nothing(alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    stranger = Agent("stranger", approve=False)
    assert stranger.sync()["git_fetches"] == 0
    assert stranger.post("git/claim", ABLE).status_code == 404
    assert Agent("other").post("git/claim", ABLE).status_code == 200
    other = Agent("third")
    assert other.post(f"git/{GitFetch.objects.get().pk}/end", {"state": "failed"}).status_code == 409


def test_a_failure_with_the_key_of_the_host(agent: Agent, alice: User, project: Project) -> None:
    made.bind(alice, project, made.SSH)
    fetches.request(alice, project)
    fetch = given(agent)
    message = {"code": "git.host_key_unknown", "host": "github.com", "fingerprint": keys.fingerprint(made.KEY)}
    assert end(agent, fetch, state="failed", message=message, host_key=made.KEY).status_code == 200
    fetch.refresh_from_db()
    assert keys.fingerprint(made.KEY) in sentence_of(fetch.message)
    assert GitSource.objects.get().offered_host_key == made.KEY


def test_a_cancelled_fetch_stops(agent: Agent, alice: User, project: Project) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = given(agent)
    fetches.cancel(alice, fetch)
    report = {"percent": 1, "message": None, "offset": 0, "log": ""}
    assert agent.post(f"git/{fetch.pk}/progress", report).status_code == 409
    assert put(agent, fetch, 0, b"x").status_code == 409


@pytest.mark.parametrize(
    "result", [{}, {"state": "done"}, {"state": "done", "commit": "x"}, {"state": "unchanged", "commit": 3}]
)
def test_results_that_are_not_understood(agent: Agent, alice: User, project: Project, result: dict[str, Any]) -> None:
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = given(agent)
    assert end(agent, fetch, **result).status_code == 400
    assert GitFetch.objects.get().state == GitFetch.State.RUNNING


def test_an_archive_larger_than_an_upload(agent: Agent, alice: User, project: Project, settings: Any) -> None:
    settings.MAX_UPLOAD_MIB = 1
    made.bind(alice, project)
    fetches.request(alice, project)
    fetch = given(agent)
    answer = put(agent, fetch, 0, b"x" * (2**20 + 1))
    assert answer.status_code == 403 and "1 MiB" in answer.json()["error"]["message"]
