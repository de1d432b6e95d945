"""The fast path for agents: the same responses as through Django's handler, in threads that keep their connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import OperationalError, connections
from django.test import AsyncClient, Client

from portal import callers
from portal.accounts.models import ApiToken
from portal.agents import asgi, queries
from portal.agents.known_tokens import known_tokens
from portal.asgi import ConcurrencyLimit, application, client_of, nodes_application
from portal.cluster import services as cluster
from portal.cluster.models import Node
from portal.jobs.models import Container
from portal.serving.__main__ import may_send_large_body
from portal.wake import node_channel, notify
from tests.portal.agents_world import Agent, Lookups, job_on
from tests.portal.jobs_world import make_user

pytestmark = pytest.mark.django_db(transaction=True)

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(autouse=True)
async def threads() -> AsyncIterator[None]:
    """Close the connections of the threads that handle requests."""
    yield
    await asyncio.to_thread(asgi.report_threads.close)
    await asyncio.to_thread(asgi.log_threads.close)
    await sync_to_async(connections.close_all)()


def scope_of(method: str, address: str, headers: dict[str, str]) -> dict[str, Any]:
    path, _, query = address.partition("?")
    sent = [(name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": sent,
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 9),
        "scheme": "http",
    }


async def ask(method: str, address: str, token: str = "", body: bytes = b"", **headers: str) -> Answer:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    line = ApplicationCommunicator(application, scope_of(method, address, headers))
    await line.send_input({"type": "http.request", "body": body})
    answer = await answer_of(line)
    await line.wait(20)  # what is broken off keeps its connection until its thread is collected
    return answer


async def answer_of(line: ApplicationCommunicator) -> Answer:
    start = await line.receive_output(20)
    content = b""
    while True:
        piece = await line.receive_output(20)
        content += piece.get("body", b"")
        if not piece.get("more_body"):
            break
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, content


@sync_to_async
def an_agent() -> Agent:
    agent = Agent()
    agent.sync()
    job_on(agent, launcher="command")
    return agent


async def test_both_paths_answer_the_same() -> None:
    agent = await an_agent()
    part = await Container.objects.aget(role="host")
    logs = f"/agent/v1/containers/{part.name}/logs/0"
    report = json.dumps(agent.report).encode()
    asked: list[tuple[str, str, str, bytes]] = [
        ("POST", "/agent/v1/sync", agent.token, report),
        ("POST", "/agent/v1/sync", "sln_wrong", report),
        ("POST", "/agent/v1/sync", "", b""),
        ("GET", "/agent/v1/sync", agent.token, b""),
        ("POST", "/agent/v1/sync", agent.token, b"["),
        ("POST", "/agent/v1/sync", agent.token, b"x" * (3 << 20)),
        ("POST", "/agent/v1/token", agent.token, b""),
        ("POST", f"{logs}?offset=0", agent.token, b"hello\n"),
        ("POST", f"{logs}?offset=9", agent.token, b"hello\n"),
        ("POST", f"{logs}?offset=x", agent.token, b""),
        ("POST", "/agent/v1/containers/unknown/logs/0?offset=0", agent.token, b""),
        ("GET", "/agent/v1/wait?seen=x", agent.token, b""),
        ("GET", "/agent/v1/wait?seen=x", "sln_wrong", b""),
        ("GET", "/agent/v1/wait?seen=%00", agent.token, b""),
        ("POST", "/agent/v1/wait", agent.token, b""),
        ("GET", "/agent/v1/nothing", agent.token, b""),
    ]
    for method, address, token, body in asked:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        theirs = await AsyncClient().generic(method, address, body, "application/json", headers=headers)
        status, _, content = await ask(method, address, token, body)
        assert (status, without_time(content)) == (theirs.status_code, without_time(theirs.content)), address


def without_time(content: bytes) -> Any:
    answer = json.loads(content)
    answer.pop("now", None)
    return answer


async def test_its_responses_have_security_headers_and_a_length() -> None:
    agent = await an_agent()
    for token in (agent.token, "sln_wrong"):
        _, headers, content = await ask("POST", "/agent/v1/sync", token, json.dumps(agent.report).encode())
        assert headers["Content-Length"] == str(len(content)) and headers["Content-Type"] == "application/json"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert "default-src 'none'" in headers["Content-Security-Policy"]


async def test_it_refuses_hosts_that_are_not_ours_and_bodies_without_end() -> None:
    agent = await an_agent()
    assert (await ask("POST", "/agent/v1/sync", agent.token, b"{}", Host="evil.example.org"))[0] == 400
    headers = {"Authorization": f"Bearer {agent.token}"}
    line = ApplicationCommunicator(application, scope_of("POST", "/agent/v1/sync", headers))
    for _ in range(40):
        await line.send_input({"type": "http.request", "body": b"x" * (1 << 16), "more_body": True})
    assert (await answer_of(line))[0] == 413


async def test_a_revoked_token_opens_nothing_any_more() -> None:
    agent = await an_agent()
    report = json.dumps(agent.report).encode()
    assert (await ask("POST", "/agent/v1/sync", agent.token, report))[0] == 200
    admin = await sync_to_async(make_user)("admin", is_staff=True)
    await sync_to_async(cluster.revoke_token)(admin, await Node.objects.aget())
    assert (await ask("POST", "/agent/v1/sync", agent.token, report))[0] == 401
    assert (await ask("GET", "/agent/v1/wait?seen=x", agent.token))[0] == 401


async def test_a_waiting_agent_gets_what_is_new_and_that_it_was_shut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(monkeypatch)
    agent = await an_agent()
    admin = await sync_to_async(make_user)("admin", is_staff=True)
    seen = (await sync_to_async(agent.sync)())["seen"]
    waiting = asyncio.ensure_future(ask("GET", f"/agent/v1/wait?seen={seen}", agent.token))
    await lookups.reach(1)
    await asyncio.to_thread(notify, node_channel(agent.node.pk))  # nothing is new: it waits on
    await lookups.reach(2)
    assert not waiting.done()
    await sync_to_async(cluster.revoke_token)(admin, agent.node)
    assert (await asyncio.wait_for(waiting, 10))[0] == 401, "neither of the two lookups has answered it"


async def test_a_disconnected_client_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(monkeypatch)
    agent = await an_agent()
    seen = (await sync_to_async(agent.sync)())["seen"]
    headers = {"Authorization": f"Bearer {agent.token}"}
    line = ApplicationCommunicator(application, scope_of("GET", f"/agent/v1/wait?seen={seen}", headers))
    await line.send_input({"type": "http.request", "body": b""})
    await lookups.reach(1)
    assert await line.receive_nothing(0.05)
    await line.send_input({"type": "http.disconnect"})
    await line.wait(60)
    assert await line.receive_nothing()


async def test_a_database_error_is_answered_with_503_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await an_agent()
    report = json.dumps(agent.report).encode()

    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection unexpectedly")

    with monkeypatch.context() as broken:
        broken.setattr(queries, "mark_seen", away)
        status, headers, _ = await ask("POST", "/agent/v1/sync", agent.token, report)
        assert (status, headers["Retry-After"]) == (503, "5")
    assert (await ask("POST", "/agent/v1/sync", agent.token, report))[0] == 200


async def test_so_many_requests_at_once_and_no_more() -> None:
    within = most = done = 0

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal within, most, done
        within += 1
        most = max(most, within)
        await asyncio.sleep(0)  # without a limit all hundred come here before one goes on
        within -= 1
        done += 1

    crowded = ConcurrencyLimit(inner, 7)
    await asyncio.gather(*(crowded({}, None, None) for _ in range(100)))
    assert (most, done) == (7, 100)


async def test_a_node_may_send_much_once_it_has_reported() -> None:
    agent = await sync_to_async(Agent)()
    known_tokens.clear()
    assert not may_send_large_body(b"/agent/v1/containers/a/outputs/b", f"Bearer {agent.token}")
    assert may_send_large_body(b"/projects/1/code", "")
    status, _, _ = await ask("GET", "/agent/v1/wait?seen=x", agent.token)
    assert status == 200
    assert may_send_large_body(b"/agent/v1/containers/a/outputs/b", f"Bearer {agent.token}")
    for other in ("", "Bearer", "Bearer made-up", f"Basic {agent.token}", "Bearer \xff"):
        assert not may_send_large_body(b"/agent/v1/containers/a/outputs/b", other)


async def test_one_client_leaves_slots_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = callers.Callers()
    monkeypatch.setattr(callers, "known_callers", known)
    for secret, user in (("one", 1), ("one too", 1), ("two", 2), ("session-of-one", 1), ("session-of-three", 3)):
        known.remember(secret, user)
    over = asyncio.Event()
    within: list[str] = []

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        within.append(client_of(scope))
        if scope["path"] == "/costly":
            await over.wait()

    def asks(path: str, token: str = "", session: str = "", address: str = "192.0.2.1") -> asyncio.Task[None]:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        headers += [(b"cookie", f"csrftoken=x; sessionid={session}".encode())] if session else []
        return asyncio.create_task(limited({"path": path, "headers": headers, "client": [address, 7]}, None, None))

    limited = ConcurrencyLimit(inner, 16, 3)
    costly = [asks("/costly", "one") for _ in range(10)]
    costly += [asks("/costly", "one too") for _ in range(10)]
    costly += [asks("/costly", f"made up {number}", "session-of-one") for number in range(10)]
    costly += [asks("/costly", f"made up {number}", f"made up {number}") for number in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [
        asks("/page", "two"),
        asks("/page", session="session-of-three"),
        asks("/page", "made up", address="192.0.2.2"),
        asks("/page", address="192.0.2.3"),
        asks("/agent/v1/code/0", "a node's"),
    ]
    await asyncio.wait_for(asyncio.gather(*others), 30)
    assert within.count("user 1") == 3 and within.count("192.0.2.1") == 3
    assert {"user 2", "user 3", "node a node's", "192.0.2.2", "192.0.2.3"} < set(within)
    over.set()
    await asyncio.wait_for(asyncio.gather(*costly), 30)
    assert within.count("user 1") == 30


def test_few_callers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_KNOWN", 5)
    known = callers.Callers()
    for number in range(20):
        known.remember(f"secret {number}", number)
        known.remember(f"secret {number}", number)
    assert [known.user_of(f"secret {number}") for number in (0, 14, 15, 19)] == [None, None, 15, 19]


async def test_whose_tokens_and_sessions_are_is_learned_from_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    known = callers.Callers()
    monkeypatch.setattr(callers, "known_callers", known)

    @sync_to_async
    def sign_in() -> tuple[int, str, str]:
        user = make_user("mia")
        client = Client()
        client.force_login(user)
        return user.pk, ApiToken.issue(user, "script")[1], client.cookies["sessionid"].value

    pk, token, session = await sign_in()
    assert (await ask("GET", "/api/v1/me/", token))[0] == 200
    assert (await ask("GET", "/projects/", Cookie=f"sessionid={session}"))[0] == 200
    assert (await ask("GET", "/api/v1/me/", "made up"))[0] == 401
    assert [known.user_of(each) for each in (token, session, "made up")] == [pk, pk, None]


async def test_what_one_client_reads_slowly_keeps_none_of_its_pages_waiting() -> None:
    reading = asyncio.Event()

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/download":
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            await reading.wait()
        await send({"type": "http.response.body", "body": b""})

    async def send(message: dict[str, Any]) -> None:
        pass

    limited = ConcurrencyLimit(inner, 8, 2)
    downloads = [asyncio.create_task(limited({"path": "/download"}, None, send)) for _ in range(4)]
    await asyncio.wait_for(limited({"path": "/page"}, None, send), 30)
    reading.set()
    await asyncio.gather(*downloads)


async def test_readers_who_take_their_time_keep_no_page_waiting() -> None:
    reading = asyncio.Event()
    sent: list[dict[str, Any]] = []

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/download":
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            await reading.wait()
        await send({"type": "http.response.body", "body": b"2"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    limited = ConcurrencyLimit(inner, 2)
    downloads = [asyncio.create_task(limited({"path": "/download"}, None, send)) for _ in range(4)]
    await asyncio.wait_for(limited({"path": "/page"}, None, send), 30)
    await asyncio.wait_for(limited({"path": "/download"}, None, send), 30)  # one too many
    assert [message["status"] for message in sent if "status" in message] == [200] * 5 + [503]
    reading.set()
    await asyncio.gather(*downloads)
    await asyncio.gather(*(limited({"path": "/download"}, None, send) for _ in range(4)))
    assert [message["status"] for message in sent if "status" in message][6:] == [200] * 4
    for _ in range(2):  # every slot is free again
        await asyncio.wait_for(limited.slots.acquire(), 30)


async def test_the_process_for_nodes_answers_nothing_else() -> None:
    for path, expected in (("/agent/v1/sync", 401), ("/accounts/sign-in/", 421), ("/api/v1/jobs/", 421), ("/", 421)):
        communicator = ApplicationCommunicator(
            nodes_application,
            {
                "type": "http",
                "method": "POST",
                "path": path,
                "query_string": b"",
                "headers": [(b"host", b"localhost")],
            },
        )
        await communicator.send_input({"type": "http.request", "body": b""})
        assert (await communicator.receive_output(30))["status"] == expected


@pytest.mark.postgres
async def test_five_hundred_at_once_are_all_answered_on_few_connections() -> None:
    """A hundred connections are all that PostgreSQL has by default, for everybody."""
    agent = await an_agent()
    report = json.dumps(agent.report).encode()
    pages = [ask("GET", "/accounts/sign-in/", Cookie=f"sessionid={number:032}") for number in range(250)]
    codes = [ask("GET", f"/agent/v1/code/{number:064}", agent.token) for number in range(125)]
    reports = [ask("POST", "/agent/v1/sync", agent.token, report) for _ in range(125)]
    statuses = [status for status, _, _ in await asyncio.gather(*pages, *codes, *reports)]
    assert set(statuses[:250]) == {200} and set(statuses[250:375]) == {404} and set(statuses[375:]) == {200}
