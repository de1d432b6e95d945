"""The log of a job for all its viewers in this process: its rows are read once for all, and so are its newest bytes.

Each viewer has cursors of its own. Those who have read everything are all at the same place, so that what comes next is
read from the file, and made a frame, by the first of them and kept for the others.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from channels.db import database_sync_to_async
from django.db.models import Count

from portal.jobs import log_watchers
from portal.jobs.feed import Feed, Piece, RecentPieces
from portal.jobs.models import Job, LogStream
from portal.wake import NotificationHub, job_channel, log_channel

POLL_SECONDS = 2
"""A notification may be lost: the rows are read so often in any case."""
COALESCE_SECONDS = 0.03
"""Notifications within this time are handled together."""
SECONDS_PER_VIEWER = 0.00025
"""With many viewers more are handled together: sending to one takes about this long, whatever the number of lines."""
SECONDS_AFTER_ERROR = 1


@dataclass(frozen=True, slots=True)
class LogState:
    """What is known of a job's log."""

    number: int
    """Counts the states; each later one has a higher number."""
    state: str
    finished_at: datetime | None
    edition: int
    """The number of lines in the history of the job."""
    streams: Sequence[LogStream]


class LogSource:
    """Reads the rows of one job as long as it has viewers."""

    open_sources: ClassVar[dict[tuple[asyncio.AbstractEventLoop, int], "LogSource"]] = {}

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.viewers = 0
        self.pieces = RecentPieces()
        self._newest: LogState | None = None
        self._published: asyncio.Future[LogState] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.Lock()
        self._reader = asyncio.create_task(self._read_until_unused())

    @classmethod
    @contextmanager
    def of(cls, job_id: int) -> Iterator["LogSource"]:
        """Yield the source of a job, which all its viewers share."""
        key = asyncio.get_running_loop(), job_id
        source = cls.open_sources.get(key)
        if source is None:
            source = cls.open_sources[key] = cls(job_id)
        source.viewers += 1
        try:
            yield source
        finally:
            source.viewers -= 1
            if not source.viewers:
                source._reader.cancel()
                del cls.open_sources[key]

    async def newer_than(self, number: int) -> LogState:
        """Return the newest state, once there is one after this number. Raises what went wrong when it was read."""
        if self._newest is None or self._newest.number <= number:
            return await asyncio.shield(self._published)
        return self._newest

    async def next_piece(self, feed: Feed) -> Piece | None:
        """Return the oldest piece that the viewer of a feed has not got; None if it has everything.

        Threads read files, but only the event loop touches the pieces that viewers share.
        """
        found = feed.find(self.pieces)
        if None not in found.values():
            return feed.next(found)
        async with self._reading:  # one viewer reads the newest bytes; the others then find them
            found = feed.find(self.pieces)
            if None not in found.values():
                return feed.next(found)
            piece = await asyncio.to_thread(feed.next, found)
            if piece is not None:
                self.pieces.add(piece)
            return piece

    async def _read_until_unused(self) -> None:
        channels = job_channel(self.job_id), log_channel(self.job_id)
        with NotificationHub.current().subscribe(*channels) as notified:
            while True:
                notified.clear()
                try:
                    self._publish(await self._read_rows())
                except Exception as problem:  # noqa: BLE001  # viewers report it and connect again
                    self._fail(problem)
                    await asyncio.sleep(SECONDS_AFTER_ERROR)
                    continue
                try:
                    await asyncio.wait_for(notified.wait(), POLL_SECONDS)
                    await asyncio.sleep(max(COALESCE_SECONDS, SECONDS_PER_VIEWER * self.viewers))
                except TimeoutError:
                    pass

    def _publish(self, state: LogState) -> None:
        self._newest = state
        published, self._published = self._published, asyncio.get_running_loop().create_future()
        published.set_result(state)

    def _fail(self, problem: Exception) -> None:
        published, self._published = self._published, asyncio.get_running_loop().create_future()
        published.set_exception(problem)
        published.exception()  # it may be that no viewer waits

    @database_sync_to_async
    def _read_rows(self) -> LogState:
        log_watchers.watch(self.job_id)
        state, finished_at, edition = (
            Job.objects.filter(pk=self.job_id).values_list("state", "finished_at", Count("events")).get()
        )
        streams = LogStream.printed.filter(container__attempt__job=self.job_id)
        number = self._newest.number + 1 if self._newest else 0
        rows = list(streams.select_related("container__attempt").defer("container__spec"))
        return LogState(number, state, finished_at, edition, rows)
