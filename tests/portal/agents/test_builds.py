"""The API with which agents build and fetch the layers of environments."""

import hashlib
from pathlib import Path
from typing import Any, cast

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import StreamingHttpResponse
from django.test import AsyncClient
from django.utils import timezone

from portal.agents import sync as agent_sync
from portal.agents import transfers
from portal.environments import builds, services
from portal.environments.models import Build, Environment, Lock
from tests.portal import environments_world as made
from tests.portal.agents_world import Agent, job_on
from tests.portal.jobs_world import make_project, make_user

pytestmark = pytest.mark.django_db
MESSAGE = {"code": "build.starting"}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def environment() -> Environment:
    alice = make_user("alice")
    return made.make_environment(alice, make_project(alice))


@pytest.fixture
def agent() -> Agent:
    return Agent()


def claim(agent: Agent, environment: Environment, kind: Any = made.KIND) -> Any:
    return agent.post(f"environments/{environment.key}/claim", {"kind": kind})


def given(agent: Agent, environment: Environment) -> Build:
    answer = claim(agent, environment).json()
    assert answer["state"] == "build", answer
    return Build.objects.get(pk=answer["build"])


def put(agent: Agent, build: Build, offset: Any, content: bytes) -> Any:
    path = f"/agent/v1/builds/{build.pk}/archive?offset={offset}"
    return agent.http.put(path, content, content_type="application/octet-stream", headers=agent.headers)


def done(build: Build, content: bytes = made.CONTENT, **changes: Any) -> dict[str, Any]:
    return {
        "state": "done",
        "digest": hashlib.sha256(str(build.pk).encode()).hexdigest(),
        "sha256": hashlib.sha256(content).hexdigest(),
        "lock": made.LOCK,
        "unpacked_bytes": 5,
        "modules": ["rich", "../etc", 7, "a b"],
        **changes,
    }


def report(agent: Agent, build: Build, **changes: Any) -> Any:
    body = {"percent": 40, "message": MESSAGE, "offset": 0, "log": "Grüße\n", **changes}
    return agent.post(f"builds/{build.pk}/progress", body)


def test_a_node_builds_sends_and_others_fetch(agent: Agent, environment: Environment) -> None:
    build = given(agent, environment)
    assert report(agent, build).json() == {"size": len("Grüße\n".encode())}
    half = len(made.CONTENT) // 2
    assert put(agent, build, 0, made.CONTENT[:half]).json() == {"size": half}
    assert put(agent, build, half, made.CONTENT[half:]).json() == {"size": len(made.CONTENT)}
    assert agent.post(f"builds/{build.pk}/end", done(build)).status_code == 200
    lock = Lock.objects.get()
    assert (lock.text, lock.modules, lock.archive_bytes) == (made.LOCK, ["rich"], len(made.CONTENT))
    other = Agent("other")
    assert claim(other, environment).json()["digest"] == lock.digest


def test_a_wrong_offset_is_answered_with_what_the_portal_has(agent: Agent, environment: Environment) -> None:
    build = given(agent, environment)
    put(agent, build, 0, b"abc")
    answer = put(agent, build, 7, b"x")
    assert (answer.status_code, answer.json()) == (409, {"size": 3})
    for bad in ("", "-1", "x", "1" * 19):
        assert put(agent, build, bad, b"x").status_code == 400, bad


def test_a_piece_that_is_too_large_is_refused(
    agent: Agent, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MAX_PIECE_BYTES", 1 << 20)
    build = given(agent, environment)
    assert put(agent, build, 0, bytes((1 << 20) + 1)).status_code == 413
    assert put(agent, build, 0, bytes(1 << 20)).json() == {"size": 1 << 20}


def test_the_build_of_another_node_is_none_of_ones_own(agent: Agent, environment: Environment) -> None:
    build, other = given(agent, environment), Agent("other")
    assert claim(other, environment).json()["state"] == "wait"
    for answer in (report(other, build), put(other, build, 0, b"x"), other.post(f"builds/{build.pk}/end", done(build))):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ended")
    build.refresh_from_db()
    assert (build.state, build.progress_percent) == ("running", 0)


def test_a_cancelled_build_stops_its_node(agent: Agent, environment: Environment) -> None:
    build = given(agent, environment)
    assert environment.created_by is not None
    services.cancel_build(environment.created_by, build)
    for answer in (report(agent, build), put(agent, build, 0, b"x"), agent.post(f"builds/{build.pk}/end", done(build))):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ended")
    assert claim(agent, environment).json()["state"] == "failed"


def test_a_damaged_archive_is_refused(agent: Agent, environment: Environment) -> None:
    build = given(agent, environment)
    put(agent, build, 0, b"other bytes")
    answer = agent.post(f"builds/{build.pk}/end", done(build))
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        403,
        "The archive of this layer arrived damaged.",
    )
    assert not Lock.objects.exists()
    assert claim(agent, environment).json()["build"] == build.pk  # it begins again


def test_a_failure_is_kept_with_its_reason(agent: Agent, environment: Environment) -> None:
    build = given(agent, environment)
    assert agent.post(f"builds/{build.pk}/end", {"state": "failed", "message": made.failure()}).status_code == 200
    build.refresh_from_db()
    assert (build.state, build.message["code"]) == ("failed", "build.lost")
    again = claim(agent, environment).json()
    assert (again["state"], again["message"]["code"]) == ("failed", "build.lost")


@pytest.mark.parametrize(
    "changes",
    [
        {"percent": "40"}, {"offset": None}, {"log": 5}, {"percent": True}, {"log": "x\0"}, {"log": "\ud800"},
    ],
)  # fmt: skip
def test_reports_of_progress_that_are_none_are_refused(agent: Agent, environment: Environment, changes: Any) -> None:
    assert report(agent, given(agent, environment), **changes).status_code in (200, 400)
    assert report(agent, Build.objects.get(), percent=999, message={"code": "nonsense"}, log="").status_code == 200
    assert Build.objects.get().progress_percent == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "../x"}, {"digest": 5}, {"sha256": "a"}, {"lock": None}, {"unpacked_bytes": -1}, {"modules": "rich"},
        {"unpacked_bytes": True},
    ],
)  # fmt: skip
def test_ends_that_are_none_are_refused(agent: Agent, environment: Environment, changes: Any) -> None:
    build = given(agent, environment)
    put(agent, build, 0, made.CONTENT)
    assert agent.post(f"builds/{build.pk}/end", done(build, **changes)).status_code == 400
    assert not Lock.objects.exists()


def test_only_environments_with_a_recipe_and_kinds_that_are_names_are_claimed(
    agent: Agent, environment: Environment
) -> None:
    assert claim(agent, made.make_base()).status_code == 404
    for kind in ("", "../x", "x" * 200, 5, None):
        assert claim(agent, environment, kind).status_code == 400, kind
    waiting = Agent("waiting", approve=False)
    assert claim(waiting, environment).status_code == 404


@pytest.fixture
async def threads() -> Any:
    yield
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
async def test_a_layer_is_sent_from_an_offset_on(threads: None) -> None:
    def prepare() -> tuple[Agent, Lock]:
        agent, alice = Agent(), make_user("alice")
        return agent, made.build(agent.node, made.make_environment(alice, make_project(alice)))

    agent, lock = await sync_to_async(prepare)()
    http = AsyncClient()

    async def fetch(path: str, **options: Any) -> tuple[int, bytes]:
        answer = await http.get(f"/agent/v1/layers/{path}", headers=agent.headers, **options)
        if not answer.streaming:
            return answer.status_code, b""
        pieces = [bytes(piece) async for piece in cast("Any", cast("StreamingHttpResponse", answer).streaming_content)]
        assert answer["Layer-SHA256"] == lock.archive_sha256
        return answer.status_code, b"".join(pieces)

    assert await fetch(f"{lock.digest}?offset=0") == (200, made.CONTENT)
    assert await fetch(f"{lock.digest}?offset=7") == (200, made.CONTENT[7:])
    assert (await fetch(f"{'0' * 64}?offset=0"))[0] == 404
    assert (await fetch(f"{lock.digest}?offset=x"))[0] == 400
    path = await sync_to_async(builds.archives.path_of)(lock.digest)
    path.unlink()
    assert (await fetch(f"{lock.digest}?offset=0"))[0] == 404
    await lock.arefresh_from_db()
    assert lock.archive_sha256 == ""  # the next node that asks builds it


def test_agents_of_earlier_releases_get_only_curated_environments(agent: Agent, environment: Environment) -> None:
    agent.sync()
    job = job_on(agent, environment=environment)
    agent_sync._environments.forget()
    answer = agent.sync()
    assert environment.key not in answer["environments"]
    wanted = {each["key"]: each for each in answer["all_environments"]}
    keys = list(wanted)
    assert keys.index("pytorch") < keys.index(environment.key)
    assert wanted[environment.key] == {
        "key": environment.key, "base": "pytorch", "recipe": environment.recipe, "generation": 1,
        "project": environment.project_id,
    }  # fmt: skip
    assert wanted["pytorch"] == {"key": "pytorch"}
    Environment.objects.filter(pk=environment.pk).update(project=None)
    agent_sync._environments.forget()
    wanted = {each["key"]: each for each in agent.sync()["all_environments"]}
    assert "project" not in wanted[environment.key]
    job.refresh_from_db()
    Environment.objects.filter(pk=environment.pk).update(requested_at=None)
    type(job).objects.filter(pk=job.pk).update(state="FAILED", finished_at=timezone.now())
    agent_sync._environments.forget()
    assert environment.key not in {each["key"] for each in agent.sync()["all_environments"]}
