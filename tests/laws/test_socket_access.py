"""Every role connects to every websocket route, from our own page and from others."""

import json
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.db import connections
from django.test import Client

from portal.asgi import application
from portal.routing import websocket_urlpatterns
from tests.laws.people import CANARY, ROLES, World, make_world
from tests.laws.route_matrix import SOCKET_ADDRESSES, SOCKETS

pytestmark = pytest.mark.django_db(transaction=True)

OURS = b"http://localhost:8000"


@pytest.fixture(autouse=True)
async def no_connection_is_left() -> AsyncIterator[None]:
    """The thread that async code asks the database from keeps its own."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def world() -> World:
    return make_world()


def cookies(world: World, role: str) -> bytes:
    if role == "anonymous":
        return b""
    client = Client()
    client.force_login(world.users[role])
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()


async def knock(world: World, role: str, address: str, origin: bytes | None = OURS) -> tuple[bool, bytes]:
    """Whether the handshake succeeded, and the messages that followed."""
    headers = [(b"host", b"localhost:8000"), (b"cookie", await sync_to_async(cookies)(world, role))]
    if origin is not None:
        headers.append((b"origin", origin))
    socket = WebsocketCommunicator(application, address, headers=headers)
    opened, _ = await socket.connect(timeout=60)
    got = b""
    if opened and "/log/" in address:
        first = json.loads(await socket.receive_from(5))
        await socket.send_to(json.dumps({"type": "read", "cursors": {}}))
        got = json.dumps(first).encode()
        while CANARY.encode() not in got:
            message = await socket.receive_from(5)
            got += message.encode() if isinstance(message, str) else message
    await socket.disconnect(timeout=60)
    return opened, got


def test_every_socket_route_has_its_row() -> None:
    assert {str(route.pattern) for route in websocket_urlpatterns} == set(SOCKETS) == set(SOCKET_ADDRESSES)


@pytest.mark.parametrize("route", sorted(SOCKETS))
async def test_everybody_gets_what_is_theirs(route: str, world: World) -> None:
    for role, expected in zip(ROLES, SOCKETS[route].split(), strict=True):
        opened, got = await knock(world, role, SOCKET_ADDRESSES[route](world))
        assert ("yes" if opened else "no") == expected, f"{role} at {route}"
        assert (opened and "/log/" in route) == (CANARY.encode() in got), f"{role} at {route}"


@pytest.mark.parametrize(
    "origin",
    [
        None,
        b"null",
        b"",
        b"https://evil.example",
        b"http://localhost:8001",
        b"https://localhost:8000",
        b"http://x.localhost:8000",
        b"file://",
    ],
)
async def test_a_page_of_another_origin_gets_nothing_with_our_cookie(world: World, origin: bytes | None) -> None:
    opened, _ = await knock(world, "alice", f"/ws/jobs/{world.running.pk}/log/", origin)
    assert not opened
