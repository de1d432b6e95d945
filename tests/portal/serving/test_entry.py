"""One address for people and nodes: which process gets a connection, and what silent clients cost."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.serving import entry
from portal.serving.entry import PEEK_BYTES, Entry, is_for_nodes
from portal.serving.handover import handover_pair, receive_connections, send_connection

METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/agent/v1/sync", True),
        (b"/agent/", True),
        (b"/agents/", False),
        (b"/", False),
        (b"/agent", False),
        (b"/static/agent/", False),
    ],
)
def test_the_path_of_the_first_request_decides(method: bytes, path: bytes, expected: bool) -> None:
    assert is_for_nodes((method + b" " + path + b" HTTP/1.1\r\n")[:PEEK_BYTES]) is expected


@pytest.mark.parametrize("head", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", b"NONSENSICAL", b"GET\t/agent/"])
def test_what_is_no_request_goes_to_the_pages_which_refuse_it(head: bytes) -> None:
    assert is_for_nodes(head) is False


@given(
    st.sampled_from(METHODS), st.sampled_from([b"/agent/v1/wait", b"/agent-x", b"/jobs/", b"/a"]), st.integers(0, 30)
)
def test_a_decision_is_never_taken_back_when_more_comes(method: bytes, path: bytes, length: int) -> None:
    whole = method + b" " + path + b" HTTP/1.1\r\n"
    early = is_for_nodes(whole[:length])
    assert early is None or early == is_for_nodes(whole)
    assert is_for_nodes(whole[:PEEK_BYTES]) is not None


@dataclass
class Front:
    port: int
    given: dict[str, list[socket.socket]]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def until(self, name: str, count: int = 1) -> list[socket.socket]:
        async with asyncio.timeout(30):
            while len(self.given[name]) < count:
                await asyncio.sleep(0.005)
        return self.given[name]


@asynccontextmanager
async def front() -> AsyncIterator[Front]:
    """An entry with two receivers that keep what they are given."""
    loop = asyncio.get_running_loop()
    given: dict[str, list[socket.socket]] = {"pages": [], "nodes": []}
    senders, receivers = [], []
    for name in given:
        sender, receiver = handover_pair()
        receive_connections(loop, receiver, lambda connection, name=name: given[name].append(connection.dup()))  # type: ignore[misc]
        senders.append(sender)
        receivers.append(receiver)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(Entry(*senders).serve(listening))
    try:
        yield Front(listening.getsockname()[1], given)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        for receiver in receivers:
            loop.remove_reader(receiver)
        for each in (*senders, *receivers, listening, *given["pages"], *given["nodes"]):
            each.close()


async def test_each_process_gets_its_connections_with_every_byte_and_the_clients_address() -> None:
    async with front() as lab:
        for name, text in (
            ("pages", b"GET /jobs/ HTTP/1.1\r\n\r\n"),
            ("nodes", b"POST /agent/v1/sync HTTP/1.1\r\n\r\n"),
        ):
            _, writer = await lab.connect()
            writer.write(text)
            (connection,) = await lab.until(name)
            assert connection.recv(100) == text
            assert connection.getpeername() == writer.get_extra_info("sockname")
            writer.close()


async def test_a_request_that_comes_byte_by_byte_is_waited_for() -> None:
    async with front() as lab:
        _, writer = await lab.connect()
        text = b"POST /agent/v1/sync HTTP/1.1\r\n"
        for number in range(len(text)):
            writer.write(text[number : number + 1])
            await writer.drain()
            await asyncio.sleep(0)
        (connection,) = await lab.until("nodes")
        received = b""
        while len(received) < len(text):
            with suppress(BlockingIOError):
                received += connection.recv(100)
            await asyncio.sleep(0.005)
        assert received == text
        assert not lab.given["pages"]
        writer.close()


async def test_silent_clients_keep_no_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "MAX_UNDECIDED", 3)
    async with front() as lab:
        silent = [await lab.connect() for _ in range(4)]
        assert await asyncio.wait_for(silent[0][0].read(), 30) == b""  # the oldest is closed
        _, writer = await lab.connect()
        writer.write(b"POST /agent/v1/sync HTTP/1.1\r\n\r\n")
        await lab.until("nodes")
        for each in (writer, *(writer for _, writer in silent)):
            each.close()


async def test_a_client_that_sends_nothing_or_disconnects_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "FIRST_BYTES_SECONDS", 0.05)
    async with front() as lab:
        reader, silent = await lab.connect()
        _, leaving = await lab.connect()
        leaving.close()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        silent.close()
        assert not lab.given["pages"]
        assert not lab.given["nodes"]


async def test_connections_wait_while_the_receiver_starts_again() -> None:
    sender, receiver = handover_pair()
    ours, theirs = socket.socketpair()
    await send_connection(sender, theirs, 1)
    theirs.close()
    came: list[socket.socket] = []
    receive_connections(asyncio.get_running_loop(), receiver, lambda connection: came.append(connection.dup()))
    ours.sendall(b"still there")
    async with asyncio.timeout(30):
        while not came:
            await asyncio.sleep(0.005)
    assert came[0].recv(100) == b"still there"
    asyncio.get_running_loop().remove_reader(receiver)
    for each in (sender, receiver, ours, *came):
        each.close()


async def test_a_process_that_takes_no_connections_is_given_up() -> None:
    sender, receiver = handover_pair()
    with socket.socket() as connection, pytest.raises(TimeoutError):
        for _ in range(10_000):
            await send_connection(sender, connection, 0.05)
    sender.close()
    receiver.close()


async def test_an_unfinished_beginning_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Enough(Exception):  # noqa: N818
        pass

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise Enough

    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        far.sendall(b"G")
        monkeypatch.setattr(entry.asyncio, "sleep", noted)
        with pytest.raises(Enough):
            await entry.first_path_is_for_nodes(near)
    assert pauses == sorted(pauses) and pauses[0] == entry.RETRY_SECONDS
    assert pauses[-1] == pauses[-2] == entry.MAX_RETRY_SECONDS
