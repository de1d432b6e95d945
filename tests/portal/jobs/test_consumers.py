"""The live log's socket: who may open it, what comes through, and what a bad viewer costs."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.core.cache import cache
from django.test import Client

from portal import sockets
from portal.accounts.models import User
from portal.asgi import application
from portal.jobs import consumers, log_source, log_watchers, logs
from portal.jobs.feed import Feed
from portal.jobs.log_rate_limit import BURST, REFILL_PER_SECOND, Allowance
from portal.jobs.models import Job, LogStream
from portal.projects.models import Membership
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]
ORIGIN = b"http://localhost"
SESSION = settings.SESSION_COOKIE_NAME


class Lab:
    """Alice owns the job, Bob views the project, Charlie has no access."""

    def __init__(self) -> None:
        self.alice, self.bob, self.charlie = (world.make_user(name) for name in ("alice", "bob", "charlie"))
        self.project = world.make_project(self.alice)
        Membership.objects.create(project=self.project, user=self.bob, role=Membership.Role.VIEWER)
        self.job = world.make_job(self.project)
        node = world.make_node(gpus=2)
        self.attempt = world.place(self.job, list(node.gpus.all()))
        self.container = self.attempt.containers.get()

    def write(
        self, data: bytes, name: str = "0", marks: list[tuple[int, int]] | None = None, final: bool = False
    ) -> LogStream:
        stream = logs.open_stream(self.container, name, f"rank {name}")
        stream.refresh_from_db()
        logs.append(stream, stream.size, data, marks or [], final=final)
        stream.refresh_from_db()
        return stream

    def cookie(self, user: User) -> bytes:
        client = Client()
        client.force_login(user)
        return f"{SESSION}={client.cookies[SESSION].value}".encode()


class Viewer:
    """A viewer that uses the protocol as log.js does."""

    def __init__(
        self, job: Job, cookie: bytes = b"", origin: bytes | None = ORIGIN, host: bytes = b"localhost"
    ) -> None:
        headers = [(b"host", host), (b"cookie", cookie)] + ([(b"origin", origin)] if origin is not None else [])
        self.socket = WebsocketCommunicator(application, f"/ws/jobs/{job.pk}/log/", headers=headers)
        self.cursors: dict[int, int] = {}
        self.bytes: dict[int, bytes] = {}
        self.marks: dict[int, list[list[int]]] = {}
        self.messages: list[dict[str, Any]] = []
        self.received = 0
        self.acknowledges = True
        self.code: int | None = None

    async def open(self, cursors: dict[int, int] | None = None) -> bool:
        self.cursors = cursors or {}
        accepted, _ = await self.socket.connect(timeout=60)
        return bool(accepted)

    async def step(self, timeout: float = 10) -> dict[str, Any]:
        message: dict[str, Any] = await self.socket.receive_output(timeout)
        if message["type"] == "websocket.close":
            self.code = message["code"]
        elif text := message.get("text"):
            parsed = json.loads(text)
            self.messages.append(parsed)
            if parsed["type"] == "streams":
                await self.socket.send_json_to({"type": "read", "cursors": self.cursors})
        else:
            self._take(message["bytes"])
            if self.acknowledges:
                await self.socket.send_json_to({"type": "ack", "bytes": self.received})
        return message

    def _take(self, frame: bytes) -> None:
        (length,) = struct.unpack_from(">I", frame)
        header = json.loads(frame[4 : 4 + length])
        data = frame[4 + length :]
        stream = header["s"]
        have = self.cursors.get(stream, 0) + len(self.bytes.get(stream, b""))
        assert header["o"] == have, "a gap or a repetition"
        self.bytes[stream] = self.bytes.get(stream, b"") + data
        self.marks.setdefault(stream, []).extend(header["m"])
        self.received += len(data)

    async def until(self, kind: str) -> None:
        while not any(each["type"] == kind for each in self.messages):
            assert self.code is None, f"closed with {self.code}"
            await self.step()
        self.messages = []

    async def until_bytes(self, stream: int, count: int) -> None:
        while self.cursors.get(stream, 0) + len(self.bytes.get(stream, b"")) < count:
            await self.step()
            assert self.code is None, f"closed with {self.code}"

    async def until_closed(self, within: float = 60) -> int:
        async with asyncio.timeout(within):
            while self.code is None:
                await self.step(within)
        return self.code


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    yield await sync_to_async(Lab)()
    # What a socket that was ended asks the database goes on in the one thread for such calls: nothing is emptied before.
    await sync_to_async(bool)()


async def cookie_of(lab: Lab, user: User) -> bytes:
    return await sync_to_async(lab.cookie)(user)


async def test_anonymous_visitors_and_strangers_are_refused_in_the_handshake(lab: Lab) -> None:
    assert not await Viewer(lab.job).open()
    assert not await Viewer(lab.job, f"{SESSION}=nonsense".encode()).open()
    cache.clear()
    assert not await Viewer(lab.job, await cookie_of(lab, lab.charlie)).open()
    assert not log_watchers.is_watched(lab.job.pk)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        b"null",
        b"http://evil.example",
        b"http://sub.localhost",
        b"http://localhost:8001",
        b"https://localhost",
        b"",
    ],
)
async def test_pages_of_other_origins_are_refused(lab: Lab, origin: bytes | None) -> None:
    assert not await Viewer(lab.job, await cookie_of(lab, lab.alice), origin).open()


async def test_a_host_that_is_not_ours_is_refused(lab: Lab) -> None:
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice), b"http://evil.example", host=b"evil.example")
    assert not await viewer.open()


async def test_other_addresses_are_refused() -> None:
    socket = WebsocketCommunicator(
        application, "/ws/elsewhere/", headers=[(b"host", b"localhost"), (b"origin", ORIGIN)]
    )
    accepted, _ = await socket.connect(timeout=60)
    assert not accepted


async def test_the_history_comes_first_and_then_each_line_as_it_is_stored(lab: Lab) -> None:
    stream = await sync_to_async(lab.write)(b"one\ntwo\n", marks=[(0, 1000), (4, 2000)])
    cache.clear()
    viewer = Viewer(lab.job, await cookie_of(lab, lab.bob))
    assert await viewer.open()
    await viewer.until("idle")
    async with asyncio.timeout(
        60
    ):  # each look of the viewer renews it: Redis forgets it at once if the clock is set forward
        while not log_watchers.is_watched(lab.job.pk):
            await asyncio.sleep(0.1)
    assert not log_watchers.is_watched(lab.job.pk + 1)
    assert viewer.bytes == {stream.pk: b"one\ntwo\n"}
    assert viewer.marks == {stream.pk: [[0, 1000], [4, 2000]]}
    await sync_to_async(lab.write)(b"three\n", marks=[(8, 3000)])
    await viewer.until_bytes(stream.pk, 14)
    other = await sync_to_async(lab.write)(b"hello\n", name="1")
    await viewer.until_bytes(other.pk, 6)
    assert viewer.bytes == {stream.pk: b"one\ntwo\nthree\n", other.pk: b"hello\n"}
    await viewer.socket.disconnect(timeout=60)


async def test_a_bell_that_is_lost_only_costs_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "POLL_SECONDS", 0.2)
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    await viewer.until("idle")
    monkeypatch.setattr(logs, "wake_log_viewers", lambda *_, **__: None)
    stream = await sync_to_async(lab.write)(b"quiet\n")
    await viewer.until_bytes(stream.pk, 6)
    await viewer.socket.disconnect(timeout=60)


async def test_after_a_break_it_goes_on_exactly_where_the_viewer_was(lab: Lab) -> None:
    data = bytes(range(256)) * 2000
    stream = await sync_to_async(lab.write)(data)
    for cursor in (0, 1, 65_535, 65_536, 300_001, len(data) - 1, len(data), len(data) + 50):
        viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
        await viewer.open({stream.pk: min(cursor, len(data))} if cursor <= len(data) else {stream.pk: cursor})
        if cursor <= len(data):
            await viewer.until_bytes(stream.pk, len(data))
            await viewer.until("idle")
            assert viewer.bytes.get(stream.pk, b"") == data[cursor:]
        else:
            await viewer.until("idle")
            assert viewer.bytes == {}
        await viewer.socket.disconnect(timeout=60)


async def test_cursors_may_come_in_several_messages(lab: Lab) -> None:
    streams = [await sync_to_async(lab.write)(b"0123456789", name=str(name)) for name in range(3)]
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.socket.connect(timeout=60)
    await viewer.socket.receive_json_from(timeout=60)
    for number, stream in enumerate(streams):
        message = {"type": "read", "cursors": {stream.pk: 4 + number}, "more": number < 2}
        await viewer.socket.send_json_to(message)
        viewer.cursors[stream.pk] = 4 + number
    await viewer.until("idle")
    assert viewer.bytes == {stream.pk: b"0123456789"[4 + number :] for number, stream in enumerate(streams)}
    await viewer.socket.disconnect(timeout=60)


async def test_times_are_right_from_any_cursor(lab: Lab) -> None:
    lines = 3000
    stream = await sync_to_async(lab.write)(b"0123456789" * lines, marks=[(10 * n, 5000 + n) for n in range(lines)])
    for cursor in (0, 9, 10, 12_345, 29_999):
        viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
        await viewer.open({stream.pk: cursor})
        await viewer.until("idle")
        for n in range(cursor // 10 + 1, lines, 97):
            assert [10 * n, 5000 + n] in viewer.marks[stream.pk]
        assert viewer.marks[stream.pk][0] == [cursor, 5000 + cursor // 10]
        await viewer.socket.disconnect(timeout=60)


async def test_the_ranks_of_a_long_history_come_in_the_order_of_their_times(lab: Lab) -> None:
    piece = 64 * 1024
    for name in ("0", "1"):
        shift = 0 if name == "0" else 1
        marks = [(n * piece, 1000 * (2 * n + shift)) for n in range(3)]
        await sync_to_async(lab.write)(b"x" * 3 * piece, name=name, marks=marks)
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    order: list[int] = []
    while len(order) < 6:
        message = await viewer.step()
        if frame := message.get("bytes"):
            order.append(json.loads(frame[4 : 4 + struct.unpack_from(">I", frame)[0]])["m"][0][1])
    assert order == [0, 1000, 2000, 3000, 4000, 5000]
    await viewer.socket.disconnect(timeout=60)


async def test_a_viewer_that_does_not_read_gets_one_window_and_is_shut_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ACK_SECONDS", 0.5)
    await sync_to_async(lab.write)(b"x" * 2_000_000)
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    viewer.acknowledges = False
    await viewer.open()
    assert await viewer.until_closed() == consumers.TOO_SLOW
    assert 0 < viewer.received <= consumers.WINDOW_BYTES


async def test_acknowledging_more_than_was_sent_widens_no_window(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ACK_SECONDS", 0.5)
    await sync_to_async(lab.write)(b"x" * 2_000_000)
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    viewer.acknowledges = False
    await viewer.open()
    await viewer.socket.send_json_to({"type": "ack", "bytes": 10**12})
    assert await viewer.until_closed() == consumers.TOO_SLOW
    assert viewer.received <= 2 * consumers.WINDOW_BYTES


async def test_whoever_loses_access_is_shut_out_soon_and_gets_no_later_byte(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ACCESS_CHECK_SECONDS", 0)
    stream = await sync_to_async(lab.write)(b"before\n")
    viewer = Viewer(lab.job, await cookie_of(lab, lab.bob))
    await viewer.open()
    await viewer.until("idle")
    await sync_to_async(Membership.objects.filter(user=lab.bob).delete)()
    await sync_to_async(lab.write)(b"after\n")
    assert await viewer.until_closed() == consumers.FORBIDDEN
    assert viewer.bytes == {stream.pk: b"before\n"}


@pytest.mark.parametrize("how", ["signed out", "password changed", "switched off"])
async def test_signing_out_ends_open_sockets(lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(consumers, "ACCESS_CHECK_SECONDS", 0)
    monkeypatch.setattr(log_source, "POLL_SECONDS", 0.1)
    client = Client()
    await sync_to_async(client.force_login)(lab.alice)
    viewer = Viewer(lab.job, f"{SESSION}={client.cookies[SESSION].value}".encode())
    await viewer.open()
    await viewer.until("idle")
    if how == "signed out":
        await sync_to_async(client.logout)()
    elif how == "password changed":
        lab.alice.set_password("another long one")
        await lab.alice.asave(update_fields=["password"])
    else:
        await User.objects.filter(pk=lab.alice.pk).aupdate(is_active=False)
    assert await viewer.until_closed() == consumers.SIGNED_OUT


async def test_a_user_has_a_limited_number_of_sockets(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_SOCKETS", 2)
    cookie = await cookie_of(lab, lab.alice)
    viewers = [Viewer(lab.job, cookie) for _ in range(3)]
    for viewer in viewers:
        await viewer.open()
    assert await viewers[2].until_closed() == sockets.TOO_MANY
    bob = Viewer(lab.job, await cookie_of(lab, lab.bob))
    assert await bob.open()
    await bob.until("idle")
    await viewers[0].socket.disconnect(timeout=60)
    again = Viewer(lab.job, cookie)
    await again.open()
    await again.until("idle")
    for viewer in (viewers[1], viewers[2], bob, again):
        await viewer.socket.disconnect(timeout=60)
    assert consumers.LogConsumer.open_sockets[lab.alice.pk] == consumers.LogConsumer.open_sockets[lab.bob.pk] == 0


async def test_a_socket_that_an_error_ended_counts_no_longer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same person must still get in afterwards."""
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    monkeypatch.setattr(consumers.LogConsumer, "receive", mock.AsyncMock(side_effect=ConnectionError("broken")))
    await viewer.open()
    await viewer.socket.send_input({"type": "websocket.receive", "text": "{}"})
    with pytest.raises(ConnectionError):
        await viewer.socket.wait(60)
    assert consumers.LogConsumer.open_sockets[lab.alice.pk] == 0
    pumps = [task for task in asyncio.all_tasks() if "LogConsumer" in str(task.get_coro())]
    await asyncio.wait_for(asyncio.gather(*pumps, return_exceptions=True), 30)  # cancelled already


async def test_cursors_of_streams_that_are_not_there_take_no_memory(lab: Lab) -> None:
    stream = await sync_to_async(lab.write)(b"0123456789")
    consumer = consumers.LogConsumer()
    consumer.feed, consumer.cursors, consumer.allowance = Feed(), {}, Allowance()
    consumer.feed.update([stream])
    for number in range(100):
        cursors = {str(stream.pk): 4, str(10**6 + number): 1}
        await consumer.receive(json.dumps({"type": "read", "cursors": cursors, "more": True}))
    assert consumer.cursors == {stream.pk: 4}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "3",
        '{"type": "else"}',
        '{"type": "ack"}',
        '{"type": "ack", "bytes": []}',
        '{"type": "ack", "bytes": 1e999}',
        '{"type": "read", "cursors": 3}',
        "[" * 4000,
    ],
)
async def test_nonsense_closes_the_socket(lab: Lab, text: str) -> None:
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    await viewer.socket.send_input({"type": "websocket.receive", "text": text})
    assert await viewer.until_closed() == consumers.INVALID_MESSAGE


async def test_a_giant_message_closes_the_socket(lab: Lab) -> None:
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    await viewer.socket.send_to(text_data=" " * 5000)
    assert await viewer.until_closed() == consumers.TOO_BIG


async def test_a_flood_of_small_messages_closes_the_socket_and_is_not_heard_any_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []
    monkeypatch.setattr(consumers.LogConsumer, "_handle_message", lambda self, message: heard.append(message))
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    for _ in range(3 * BURST):
        await viewer.socket.send_input({"type": "websocket.receive", "text": '{"type": "ack", "bytes": 0}'})
    assert await viewer.until_closed() == consumers.TOO_FAST_CLOSE_CODE
    assert BURST <= len(heard) < 2 * BURST


def test_answers_to_what_was_sent_are_no_flood() -> None:
    now = 100.0
    allowance = Allowance(lambda: now)
    for _ in range(10 * BURST):
        allowance.record_sent()
        assert allowance.accept()
    assert all(allowance.accept() for _ in range(BURST)) and not allowance.accept()
    now += 1 + 1 / REFILL_PER_SECOND
    assert sum(allowance.accept() for _ in range(BURST)) == round(REFILL_PER_SECOND)


def test_each_code_can_be_sent_by_an_application() -> None:
    codes = [
        value for name, value in vars(sockets).items() if name.isupper() and isinstance(value, int) and value > 1000
    ]
    assert {sockets.TOO_BIG, sockets.INVALID_MESSAGE, sockets.BROKEN} <= {*codes}
    assert all(4000 <= code < 5000 for code in codes if code != sockets.MAX_MESSAGE_CHARACTERS)


async def test_it_reports_changes_of_the_job_and_the_end(lab: Lab) -> None:
    stream = await sync_to_async(lab.write)(b"done\n", final=True)
    viewer = Viewer(lab.job, await cookie_of(lab, lab.alice))
    await viewer.open()
    await viewer.until("idle")

    def finish() -> None:
        from portal.jobs import lifecycle

        lifecycle.advance(lab.container, "RUNNING")
        lifecycle.advance(lab.container, "EXITED", exit_code=0, exit_reason="exited")

    await sync_to_async(finish)()
    await viewer.until("end")
    assert viewer.bytes == {stream.pk: b"done\n"}
