"""The files of agents: they send logs and outputs, fetch code, and wait for changes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.core.cache import cache
from django.db import connections
from django.http import StreamingHttpResponse
from django.test import AsyncClient

from portal.agents import views
from portal.jobs import log_watchers, outputs
from portal.jobs.models import Container, Output
from portal.projects import store
from portal.wake import node_channel, notify
from runners.messages.outputs import BadPath, TooLarge, TooManyFiles
from tests.portal.agents_world import Agent, Lookups, job_on

pytestmark = pytest.mark.django_db


@pytest.fixture
async def threads() -> AsyncIterator[None]:
    """Close the connection of the thread in which async views read rows."""
    yield
    await sync_to_async(connections.close_all)()


# --- logs, outputs, code -----------------------------------------------------------------------------------------


@pytest.fixture
def placed() -> tuple[Agent, Container]:
    cache.clear()  # no viewer yet
    agent = Agent()
    agent.sync()
    job_on(agent)
    return agent, Container.objects.select_related("attempt").get(role="host")


def send_log(agent: Agent, part: Container, query: str, body: bytes, **headers: str) -> Any:
    path = f"/agent/v1/containers/{part.name}/logs/{query}"
    return agent.http.post(path, body, content_type="application/octet-stream", headers={**agent.headers, **headers})


def test_log_pieces_continue_or_the_answer_has_the_offset(placed: tuple[Agent, Container]) -> None:
    agent, part = placed
    assert send_log(agent, part, "0?offset=0", b"abc").json() == {"size": 3, "watched": False}
    gap = send_log(agent, part, "0?offset=9", b"x")
    assert (gap.status_code, gap.json()) == (409, {"size": 3})
    final = send_log(agent, part, "0?offset=3&final=1", b"", Marks="junk,1:2:3,-1:5," + "9" * 40 + ":1")
    assert (final.status_code, final.json()) == (200, {"size": 3, "watched": False})
    assert part.streams.get().closed


def test_logs_and_outputs_wait_on_their_node_while_the_disk_of_the_portal_is_full(
    placed: tuple[Agent, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, part = placed
    path = f"/agent/v1/containers/{part.name}/outputs/model.pt"

    def send_output() -> Any:
        return agent.http.put(path, b"weights", content_type="application/octet-stream", headers=agent.headers)

    with monkeypatch.context() as full:
        full.setattr("portal.disks.RESERVE_BYTES", 1 << 60)
        for refused in (send_log(agent, part, "0?offset=0", b"abc"), send_output()):
            assert (refused.status_code, refused.json()["error"]["code"]) == (507, "full")
    assert not part.streams.exists() and not Output.objects.exists()
    assert send_log(agent, part, "0?offset=0", b"abc").json()["size"] == 3
    assert send_output().status_code == 201


def test_a_node_learns_whether_its_log_is_watched(placed: tuple[Agent, Container]) -> None:
    agent, part = placed
    log_watchers.watch(part.attempt.job_id + 1)
    assert send_log(agent, part, "0?offset=0", b"abc").json()["watched"] is False

    def learned(offset: int) -> bool:
        log_watchers.watch(part.attempt.job_id)
        return bool(send_log(agent, part, f"0?offset={offset}", b"d").json()["watched"])

    assert any(learned(offset) for offset in (3, 4, 5))  # a clock that is set forward makes Redis forget it once


@pytest.mark.parametrize(
    "query",
    [
        "0",
        "0?offset=",
        "0?offset=-1",
        "0?offset=1e3",
        "0?offset=" + "9" * 18,
        "UP?offset=0",
        "..?offset=0",
        "0?offset=²",
    ],
)
def test_a_log_piece_that_makes_no_sense_is_refused(placed: tuple[Agent, Container], query: str) -> None:
    agent, part = placed
    assert send_log(agent, part, query, b"x").status_code in (400, 404)


def test_too_large_a_piece_is_refused(placed: tuple[Agent, Container]) -> None:
    agent, part = placed
    assert send_log(agent, part, "0?offset=0", b"x" * (1024 * 1024 + 1)).status_code == 413


def put(agent: Agent, part: Container, path: str, body: bytes) -> Any:
    return agent.http.put(
        f"/agent/v1/containers/{part.name}/outputs/{path}",
        body,
        content_type="application/octet-stream",
        headers=agent.headers,
    )


def test_outputs_are_kept_and_replaced(placed: tuple[Agent, Container]) -> None:
    agent, part = placed
    assert put(agent, part, "run/model.pt", b"one").status_code == 201
    assert put(agent, part, "run/model.pt", b"two!").status_code == 201
    assert put(agent, part, "gr%C3%B6%C3%9Fe%20x.txt", b"").status_code == 201
    one, two = Output.objects.order_by("size")
    assert (one.path, two.path, two.size) == ("größe x.txt", "run/model.pt", 4)
    with outputs.open_output(two) as file:
        assert file.read() == b"two!"


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "a//b", "/etc/passwd", "./a", "a/.", "a%00b", "a%0Ab", "a%5Cb", "x" * 501]
)
def test_an_output_cannot_be_anywhere_else(placed: tuple[Agent, Container], path: str) -> None:
    agent, part = placed
    assert put(agent, part, path, b"x").status_code in (400, 404)
    assert not Output.objects.exists()


def test_other_refusals_of_outputs_have_their_reasons_too(
    placed: tuple[Agent, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, part = placed
    assert put(agent, part, "./a", b"x").json()["error"]["reason"] == BadPath(outputs.MAX_PATH).data()
    monkeypatch.setattr(outputs, "MAX_FILES", 1)
    assert put(agent, part, "a", b"x").status_code == 201
    assert put(agent, part, "b", b"x").json()["error"]["reason"] == TooManyFiles(1).data()


def test_outputs_over_the_limit_are_refused_with_a_sentence(
    placed: tuple[Agent, Container], settings: LazySettings
) -> None:
    agent, part = placed
    settings.MAX_OUTPUTS_MIB = 1
    assert put(agent, part, "a", b"x" * 700_000).status_code == 201
    refused = put(agent, part, "b", b"x" * 700_000)
    assert refused.status_code == 413
    # agents of the previous release report the sentence
    assert refused.json()["error"] == {"code": "too_large", "message": TooLarge(1).text, "reason": TooLarge(1).data()}
    assert put(agent, part, "a", b"y" * 900_000).status_code == 201  # what it replaces does not count
    assert len(list(outputs.folder_of(part.attempt.job).iterdir())) >= 1


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("b?size=348576", 200, ""),
        ("b?size=348577", 413, "1 MiB"),
        ("a?size=1048576", 200, ""),  # what it replaces does not count
        ("a/../b?size=1", 400, "path"),
        ("b", 400, "size must be a whole number of bytes"),
        ("b?size=-1", 400, "size must be"),
        ("b?size=1e3", 400, "size must be"),
    ],
)
def test_whether_an_output_would_be_kept_can_be_asked_before_it_is_sent(
    placed: tuple[Agent, Container], settings: LazySettings, address: str, status: int, words: str
) -> None:
    agent, part = placed
    settings.MAX_OUTPUTS_MIB = 1
    put(agent, part, "a", b"x" * 700_000)
    answer = agent.http.post(f"/agent/v1/containers/{part.name}/outputs/{address}", headers=agent.headers)
    assert answer.status_code == status
    assert words in (answer.json()["error"]["message"] if words else words)
    assert [output.path for output in Output.objects.all()] == ["a"]


@pytest.mark.usefixtures("threads")
@pytest.mark.django_db(transaction=True)
async def test_code_goes_only_to_a_node_that_runs_it() -> None:
    def prepare() -> tuple[Agent, Agent]:
        agent, other = Agent("runs"), Agent("idles")
        agent.sync()
        other.sync()
        job_on(agent)
        store.path_of("c" * 64).write_bytes(b"tar" * 200_000)
        return agent, other

    agent, other = await sync_to_async(prepare)()
    http = AsyncClient()
    answer = await http.get("/agent/v1/code/" + "c" * 64, headers=agent.headers)
    pieces = cast(AsyncIterator[bytes], cast(StreamingHttpResponse, answer).streaming_content)
    assert b"".join([piece async for piece in pieces]) == b"tar" * 200_000
    for who, sha256 in ((other, "c" * 64), (agent, "d" * 64), (agent, "x")):
        assert (await http.get(f"/agent/v1/code/{sha256}", headers=who.headers)).status_code == 404
    await sync_to_async(store.path_of("c" * 64).unlink)()
    lost = await http.get("/agent/v1/code/" + "c" * 64, headers=agent.headers)
    assert lost.status_code == 404 and "Upload it again" in lost.json()["error"]["message"]


@pytest.mark.usefixtures("threads")
@pytest.mark.django_db(transaction=True)
async def test_waiting_ends_when_something_is_desired(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(monkeypatch)
    agent = await sync_to_async(Agent)()
    seen = (await sync_to_async(agent.sync)())["seen"]
    http = AsyncClient()
    at_once = await http.get("/agent/v1/wait?seen=old", headers=agent.headers)
    assert at_once.json() == {"seen": seen}
    waiting = asyncio.create_task(http.get(f"/agent/v1/wait?seen={seen}", headers=agent.headers))
    await lookups.reach(2)  # the first one answered at once
    assert not waiting.done()
    await sync_to_async(job_on)(agent)
    notify(node_channel(agent.node.pk))
    assert (await asyncio.wait_for(waiting, views.WAIT_SECONDS / 2)).json()["seen"] != seen
    monkeypatch.setattr(views, "WAIT_SECONDS", 0.2)
    now = (await sync_to_async(agent.sync)())["seen"]
    assert (await http.get(f"/agent/v1/wait?seen={now}", headers=agent.headers)).json() == {"seen": now}
