"""One job's log for many viewers: each gets every byte once, whenever it joins and however fast it is."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from asgiref.sync import sync_to_async

from portal.jobs import feed, log_source, logs
from portal.jobs.feed import Feed, Piece, RecentPieces
from portal.jobs.log_source import LogSource
from portal.jobs.models import Container, Job, LogStream
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]
LETTERS = ["a", "ß", "語", "🚀", " ", "\n"]
"""Of one to four bytes, so that most cuts are within one."""


class Writer:
    """Writes the streams of a job in chunks cut anywhere, and keeps what it has written."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.written: dict[int, bytes] = {}
        self.ms = 1_000

    def make_job(self) -> Container:
        self.job: Job = world.make_job(world.make_project(world.make_user("alice")))
        attempt = world.place(self.job, list(world.make_node(gpus=1).gpus.all()))
        self.container: Container = attempt.containers.get()
        return self.container

    def write(self, name: str, size: int = 0, *, marks: int = 1, final: bool = False) -> LogStream:
        """Append that many bytes, with marks at even distances."""
        text = "".join(self.random.choices(LETTERS, k=size)).encode()[:size]
        stream = logs.open_stream(self.container, name, f"rank {name}")
        stream.refresh_from_db()
        places = sorted({stream.size + size * number // marks for number in range(marks)}) if size else []
        times = range(self.ms, self.ms + len(places))
        self.ms += len(places)
        logs.append(stream, stream.size, text, list(zip(places, times, strict=True)), final=final)
        stream.refresh_from_db()
        self.written[stream.pk] = self.written.get(stream.pk, b"") + text
        return stream


class Reader:
    """A viewer without a socket: it takes pieces at its own speed."""

    def __init__(self, source: LogSource, pause: float, cursors: dict[int, int]) -> None:
        self.source, self.pause, self.cursors = source, pause, cursors
        self.feed = Feed()
        self.read: dict[int, bytes] = {}
        self.times: dict[int, int] = {}

    async def run(self) -> None:
        seen = -1
        while True:
            log = await self.source.newer_than(seen)
            seen = log.number
            self.feed.update(log.streams)
            self.feed.start(self.cursors)
            while piece := await self.source.next_piece(self.feed):
                self.take(piece)
                await asyncio.sleep(self.pause)
            if self.feed.is_caught_up and self.feed.is_closed and log.streams:
                return

    def take(self, piece: Piece) -> None:
        have = self.read.get(piece.stream, b"")
        assert piece.offset == self.cursors.get(piece.stream, 0) + len(have), "a gap or a repetition"
        assert piece.data and piece.marks[0][0] == piece.offset
        assert all(piece.offset < place < piece.offset + len(piece.data) for place, _ in piece.marks[1:])
        times = [ms for _, ms in piece.marks]
        assert times == sorted(times)
        self.read[piece.stream] = have + piece.data


@pytest.fixture
async def writer(request: pytest.FixtureRequest) -> AsyncIterator[Writer]:
    writer = Writer(getattr(request, "param", 1))
    await sync_to_async(writer.make_job)()
    yield writer
    await sync_to_async(bool)()  # what an ended viewer asks the database is over


@pytest.mark.parametrize("writer", range(4), indirect=True)
async def test_viewers_of_any_speed_get_every_byte_once(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Viewers join before, during and after the writing, and some leave in the middle of a read."""
    chance = writer.random
    monkeypatch.setattr(feed, "PIECE_BYTES", 61)
    monkeypatch.setattr(feed, "PIECE_MARKS", 3)
    monkeypatch.setattr(feed, "KEPT_BYTES", 200)
    monkeypatch.setattr(log_source, "COALESCE_SECONDS", 0)
    await sync_to_async(writer.write)("0", 700, marks=50)
    readers: list[tuple[Reader, asyncio.Task[None]]] = []
    with LogSource.of(writer.job.pk) as source:

        def join() -> None:
            cursors = {pk: chance.randint(0, len(text)) for pk, text in writer.written.items() if chance.random() < 0.5}
            reader = Reader(source, chance.choice([0, 0, 0.001, 0.02]), cursors)
            readers.append((reader, asyncio.create_task(reader.run())))

        for number in range(24):
            join()
            await sync_to_async(writer.write)(chance.choice("012"), chance.randint(1, 300), marks=chance.randint(1, 9))
            if number % 6 == 5:
                readers.pop(chance.randrange(len(readers)))[1].cancel()
        for name in "012":
            await sync_to_async(writer.write)(name, 5, final=True)
        join()
        async with asyncio.timeout(60):
            await asyncio.gather(*(task for _, task in readers))
    for reader, _ in readers:
        whole = {pk: text[reader.cursors.get(pk, 0) :] for pk, text in writer.written.items()}
        assert {pk: reader.read.get(pk, b"") for pk in whole} == whole


async def test_only_the_event_loop_touches_what_viewers_share(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that added a piece could drop another one that the loop had just found."""
    threads: set[int] = set()

    class Watched(RecentPieces):
        def get(self, stream: int, offset: int) -> Piece | None:
            threads.add(threading.get_ident())
            return super().get(stream, offset)

        def add(self, piece: Piece) -> None:
            threads.add(threading.get_ident())
            super().add(piece)

    monkeypatch.setattr(log_source, "RecentPieces", Watched)
    await sync_to_async(writer.write)("0", 200_000, final=True)
    with LogSource.of(writer.job.pk) as source:
        readers = [Reader(source, 0, {}) for _ in range(3)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(reader.run() for reader in readers))
    assert [reader.read for reader in readers] == 3 * [writer.written]
    assert threads == {threading.get_ident()}


async def test_a_viewer_that_leaves_during_a_read_stops_no_other(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await sync_to_async(writer.write)("0", 1_000, final=True)
    reading, go_on = threading.Event(), threading.Event()
    read = logs.read

    def slow_read(row: LogStream, start: int, limit: int) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return read(row, start, limit)

    monkeypatch.setattr(logs, "read", slow_read)
    with LogSource.of(writer.job.pk) as source:
        leaving, staying = Reader(source, 0, {}), Reader(source, 0, {})
        task = asyncio.create_task(leaving.run())
        await asyncio.to_thread(reading.wait, 60)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        others = asyncio.create_task(staying.run())
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.wait_for(others, 60)
    assert staying.read == {stream.pk: writer.written[stream.pk]}


async def test_marks_stay_right_after_pieces_that_others_read(writer: Writer) -> None:
    """A viewer read marks far ahead, then found pieces, then has to read the file again."""
    lines = 10 * feed.PIECE_MARKS
    stream = await sync_to_async(writer.write)("0", 10 * lines, marks=lines)
    recent, nothing = RecentPieces(), RecentPieces()
    first, second = Feed(), Feed()
    pieces: list[Piece | None] = []
    for viewer in (first, second):
        viewer.update([stream])
        viewer.start({})
    for number in range(10):
        piece = first.next(first.find(nothing))
        assert piece is not None
        recent.add(piece)
        pieces.append(second.next(second.find(nothing if number in (0, 3, 7) else recent)))
        assert pieces[-1] == piece
    read = b"".join(piece.data for piece in pieces if piece)
    assert read and writer.written[stream.pk].startswith(read)


async def test_a_piece_that_was_found_may_be_dropped_before_it_is_taken(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await sync_to_async(writer.write)("0", 100)
    recent, viewers = RecentPieces(), [Feed(), Feed()]
    for viewer in viewers:
        viewer.update([stream])
        viewer.start({})
    piece = viewers[0].next(viewers[0].find(recent))
    assert piece is not None
    recent.add(piece)
    found = viewers[1].find(recent)
    monkeypatch.setattr(feed, "KEPT_BYTES", 0)
    recent.add(Piece(stream.pk, 100, b"later", [(100, 1)]))
    assert recent.get(stream.pk, 0) is None
    assert viewers[1].next(found) == piece
