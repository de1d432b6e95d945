"""The server waits for its readers: what is unread stays unmade, and who reads nothing for long is disconnected."""

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import daphne.server  # noqa: F401  installs the reactor that runs on asyncio
import httpx
import pytest
import websockets.sync.client
from autobahn.websocket.types import ConnectionDeny
from twisted.internet import reactor
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from portal.serving.paced import FLOOD_SECONDS, MAX_FLOODERS, Flooders, LimitedSocket, PacedServer
from tests.portal.paced_app import MAX_BODY_BYTES, MAX_UNKNOWN_SENDER_BYTES, PIECE_BYTES, PIECES

FEW = PIECES // 8
"""Pieces that the kernel's buffers of a loopback connection and the server's may hold."""
SMALL_BUFFER = 64 * 1024


class Paced:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def made(self) -> tuple[int, int]:
        """How many pieces the application has made, and how many responses are under way."""
        pieces, under_way = self.client.get("/made").text.split()
        return int(pieces), int(under_way)

    def made_before(self) -> int:
        """The pieces made, once those of clients that have left are no longer made and dropped."""
        for _ in range(300):
            pieces, under_way = self.made()
            if not under_way:
                return pieces
            time.sleep(0.1)
        raise AssertionError("a response to a client that has left is still under way")

    def settled(self, beyond: int) -> int:
        """The pieces made, once there are more than ``beyond`` and no more for half a second."""
        seen: list[int] = []
        for _ in range(300):
            time.sleep(0.1)
            seen = [*seen[-4:], self.made()[0]]
            if len(seen) == 5 and beyond < min(seen) == max(seen):
                return seen[-1]
        raise AssertionError("it never stopped making pieces")

    def stuck(self, request: str) -> socket.socket:
        """A client that asks and never reads."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(request.replace("\n", "\r\n").encode())
        return connection


@contextmanager
def paced(stall_seconds: float = 600) -> Iterator[Paced]:
    command = [sys.executable, "-m", "tests.portal.paced_app", str(stall_seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    try:
        yield Paced(int(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Paced]:
    with paced() as server:
        yield server


KEY = base64.b64encode(b"0123456789abcdef").decode()
HTTP = "GET /large HTTP/1.1\nHost: x\n\n"
WEBSOCKET = (
    f"GET /large HTTP/1.1\nHost: x\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Key: {KEY}\n"
    "Sec-WebSocket-Version: 13\n\n"
)


@pytest.mark.parametrize("request_text", [HTTP, WEBSOCKET], ids=["http", "websocket"])
def test_what_no_one_reads_is_not_made(server: Paced, request_text: str) -> None:
    before = server.made_before()
    with server.stuck(request_text):
        assert server.settled(before) - before < FEW
        assert server.made()[1] == 1


def test_a_reader_gets_every_byte_and_connections_are_kept(server: Paced) -> None:
    with server.client.stream("GET", "/large") as response:
        received = sum(len(piece) for piece in response.iter_raw())
    assert received == PIECES * PIECE_BYTES
    assert server.client.post("/echo", content=b"abc").text == "3"
    assert server.client.head("/echo").status_code == 200


@pytest.mark.parametrize("request_text", [HTTP, WEBSOCKET], ids=["http", "websocket"])
def test_who_reads_nothing_for_long_is_disconnected(request_text: str) -> None:
    with paced(stall_seconds=0.3) as server, server.stuck(request_text) as stuck:
        until = time.monotonic() + 30
        while server.made()[1] or server.made()[0] == 0:
            assert time.monotonic() < until, "the response is still under way"
            time.sleep(0.05)
        stuck.settimeout(30)
        with pytest.raises(ConnectionResetError):
            while stuck.recv(1 << 20):
                pass


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused_and_one_within_is_taken(server: Paced, chunked: bool) -> None:
    def send(size: int) -> httpx.Response:
        pieces = [b"x" * 65536] * (size // 65536) + [b"x" * (size % 65536)]
        content = iter(pieces) if chunked else b"".join(pieces)
        return server.client.post("/echo", content=content)

    assert send(MAX_BODY_BYTES).text == str(MAX_BODY_BYTES)
    refused = send(MAX_BODY_BYTES + 1)
    assert refused.status_code == 413
    assert "At most 1 MiB" in refused.text
    assert send(10).text == "10"
    assert server.client.post("/nothing", content=b"x").status_code == 413


def test_strangers_cannot_have_large_bodies_kept_as_nodes_can(server: Paced) -> None:
    def send(path: str, size: int, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return server.client.post(path, content=b"x" * size, headers=headers).status_code

    assert send("/agent/echo", MAX_UNKNOWN_SENDER_BYTES, "") == 200
    assert send("/agent/echo", MAX_UNKNOWN_SENDER_BYTES + 1, "") == 503  # which a node takes for "later"
    assert send("/agent/echo", MAX_BODY_BYTES, "made up") == 503
    assert send("/agent/echo", MAX_BODY_BYTES, "known") == 200
    assert send("/agent/echo", MAX_BODY_BYTES + 1, "known") == 413
    assert send("/echo", MAX_BODY_BYTES, "") == 200


def test_a_socket_that_floods_is_cut_off_and_its_client_refused_for_a_while(server: Paced) -> None:
    def connect(cookie: str) -> ClientConnection:
        url = f"{server.url.replace('http', 'ws')}/deaf"
        return websockets.sync.client.connect(url, additional_headers={"Cookie": cookie}, proxy=None, open_timeout=30)

    with connect("flooder") as flooder, connect("other") as other:
        for _ in range(50):
            other.send("ack")  # it is read slowly, but there are few
        with pytest.raises(ConnectionClosed):
            for _ in range(1_000_000):
                flooder.send("ack")
        with pytest.raises(InvalidStatus) as refused, connect("flooder"):
            pass
        assert refused.value.response.status_code == 429
        other.send("ack")
        with connect("another") as another:
            another.send("ack")


PING, PONG, FRAGMENT = b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\x00\x80\0\0\0\0"
"""Masked and empty, as a client sends them."""
UNFINISHED = b"\x01\x80\0\0\0\0"


@pytest.mark.parametrize(
    ("first", "frame"), [(b"", PING), (b"", PONG), (UNFINISHED, FRAGMENT)], ids=["pings", "pongs", "fragments"]
)
def test_a_socket_that_floods_with_what_is_no_message_is_cut_off_too(
    server: Paced, request: pytest.FixtureRequest, first: bytes, frame: bytes
) -> None:
    name = request.node.callspec.id
    opening = WEBSOCKET.replace("/large", "/deaf").replace("\n\n", f"\nCookie: {name}\n\n")
    with server.stuck(opening) as flooder:
        flooder.settimeout(30)
        assert b"101" in flooder.recv(1000)
        flooder.sendall(first)
        with pytest.raises(OSError, match="(?i)reset|broken pipe"):
            for _ in range(10_000):
                flooder.sendall(frame * 100)
    with server.stuck(opening) as again:
        again.settimeout(30)
        assert b"429" in again.recv(1000)


def test_a_few_pings_and_fragments_are_answered(server: Paced) -> None:
    opening = WEBSOCKET.replace("/large", "/deaf")
    with server.stuck(opening) as client:
        client.settimeout(30)
        assert b"101" in client.recv(1000)
        client.sendall(UNFINISHED + FRAGMENT * 40 + PING * 10)
        answer = b""
        while answer.count(b"\x8a\x00") < 10:
            answer += client.recv(1000)


def test_a_client_that_flooded_is_let_in_again_and_few_are_remembered() -> None:
    now = [100.0]
    flooders = Flooders(lambda: now[0])
    flooders.add("a")
    assert flooders.refuses("a") and not flooders.refuses("b")
    now[0] += FLOOD_SECONDS + 1
    assert not flooders.refuses("a")
    for number in range(3 * MAX_FLOODERS):
        flooders.add(str(number))
    assert len(flooders._until) == MAX_FLOODERS
    assert flooders.refuses(str(3 * MAX_FLOODERS - 1))


def a_server() -> PacedServer:
    server = PacedServer(None, ["unused"], max_body_bytes=lambda path: 0)
    server.connections = {}
    return server


def test_connections_are_checked_again_whatever_one_of_them_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    server, checked, later = a_server(), [], []
    monkeypatch.setattr(reactor, "callLater", lambda seconds, call: later.append(call))

    class Checked:
        def check_timeouts(self) -> None:
            checked.append(self)
            raise AttributeError("socket_opened")

    server.connections = {Checked(): {}, Checked(): {}}
    server.timeout_checker()
    assert len(checked) == 2 and later == [server.timeout_checker]


def test_a_socket_that_was_refused_can_be_checked_until_it_is_gone() -> None:
    server = a_server()
    server.flooders.add("192.0.2.7")
    refused = LimitedSocket()
    refused.factory = SimpleNamespace(server_class=server)
    refused.transport = SimpleNamespace(getPeer=lambda: SimpleNamespace(host="192.0.2.7"))
    refused.state = refused.STATE_CONNECTING
    with pytest.raises(ConnectionDeny):
        refused.onConnect(SimpleNamespace(headers={}))
    assert list(server.connections) == [refused]
    refused.check_timeouts()
