"""Doorbells between processes: hints that something changed, never the change itself.

A bell that is lost only costs time, because everyone who waits on one also wakes by a timer. The lab size
rings through Redis; the small size touches files, which its processes look at every 50 ms. Both reach every process
of the portal: the one that answers nodes, the one that serves pages, and the scheduler.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import redis
import redis.asyncio as aioredis
from django.conf import settings
from django.db import transaction

SCHEDULER = "scheduler"
LOOK_SECONDS = 0.05


def wake_scheduler() -> None:
    transaction.on_commit(lambda: ring(SCHEDULER))


def wake_node(node_id: int) -> None:
    transaction.on_commit(lambda: ring(node_bell(node_id)))


def wake_job_viewers(job_id: int) -> None:
    """Make open job pages look again; they would within seconds anyway."""
    transaction.on_commit(lambda: ring(job_bell(job_id)), robust=True)


def job_bell(job_id: int) -> str:
    return f"job-{job_id}"


def node_bell(node_id: int) -> str:
    return f"node-{node_id}"


def ring(name: str) -> None:
    if settings.REDIS_URL:
        try:
            _ringer(settings.REDIS_URL).publish(_topic(name), b"")
        except redis.RedisError:
            return  # the timers do the work while Redis is away
    else:
        _bell_file(name).touch()


def rung_within(name: str, seconds: float) -> bool:
    """Whether the bell rang in the last ``seconds``. In the small size only: Redis does not remember."""
    return 0 <= time.time() - _rung_at(name) / 1e9 < seconds


def sweep(older_than_seconds: float) -> int:
    """Remove the files of bells that have not rung for so long, such as those of ended jobs; how many there were.

    Removing a file that someone listens to only makes them look once more.
    """
    limit = time.time() - older_than_seconds
    old = [file for file in (settings.HOME / "bells").glob("*") if _rung_at(file.name) / 1e9 < limit]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)


class Bell:
    """Listens from the moment it is made, so that a ring between looking and waiting is not missed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._heard = 0
        self._pubsub = None
        if settings.REDIS_URL:
            try:
                self._pubsub = _redis().pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(_topic(name))
            except redis.RedisError:
                self._pubsub = None
        else:
            self._heard = _rung_at(name)

    def wait(self, seconds: float) -> bool:
        """True when it rang, False when the time was up."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._pubsub is not None:
                try:
                    if self._pubsub.get_message(timeout=left):
                        return True
                except redis.RedisError:
                    time.sleep(min(left, 1.0))
            else:
                at = _rung_at(self.name)
                if at != self._heard:
                    self._heard = at
                    return True
                time.sleep(min(left, LOOK_SECONDS))
        return False

    def close(self) -> None:
        if self._pubsub is not None:
            self._pubsub.close()


class Switchboard:
    """Hears all bells for one event loop: hundreds of agents wait at once in one process, on one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._heard_at: dict[str, int] = {}
        self.hears = asyncio.Event()
        """Set while every bell is heard."""
        hear = self._listen_to_redis if settings.REDIS_URL else self._look_at_files
        self._listener = asyncio.create_task(hear())

    @classmethod
    def here(cls) -> "Switchboard":
        """The one of the loop that runs."""
        for ended in [loop for loop in _switchboards if loop.is_closed()]:
            del _switchboards[ended]
        loop = asyncio.get_running_loop()
        board = _switchboards.get(loop)
        if board is None or board._listener.done():  # noqa: SLF001
            board = _switchboards[loop] = cls()
        return board

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set when the bell rings, from now on."""
        event = asyncio.Event()
        if name not in self._waiting:
            self._waiting[name] = set()
            self._heard_at[name] = 0 if settings.REDIS_URL else _rung_at(name)
        self._waiting[name].add(event)
        try:
            yield event
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name], self._heard_at[name]

    def _ring(self, names: Iterable[str]) -> None:
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()

    async def _listen_to_redis(self) -> None:
        before = len(_topic(""))
        while True:
            try:
                async with (
                    aioredis.from_url(settings.REDIS_URL, socket_timeout=30, socket_connect_timeout=2) as client,
                    client.pubsub(ignore_subscribe_messages=True) as line,
                ):
                    await line.psubscribe(_topic("*"))
                    self._ring(self._waiting)  # nobody knows what rang before
                    self.hears.set()
                    while True:
                        if message := await line.get_message(timeout=10):
                            self._ring([message["channel"].decode()[before:]])
            except (redis.RedisError, OSError):
                self.hears.clear()
                await asyncio.sleep(1)

    async def _look_at_files(self) -> None:
        while True:
            now = {name: _rung_at(name) for name in self._waiting}
            rung = [name for name, at in now.items() if at != self._heard_at[name]]
            self._heard_at |= now
            self._ring(rung)
            self.hears.set()
            await asyncio.sleep(LOOK_SECONDS)


_switchboards: dict[asyncio.AbstractEventLoop, Switchboard] = {}


@cache
def _ringer(url: str) -> redis.Redis:
    """One connection for all that this process rings: a new one for each bell takes five times as long."""
    return redis.Redis.from_url(url, socket_timeout=30, socket_connect_timeout=2)


def _redis() -> redis.Redis:
    """For listening, on a connection of its own."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=30, socket_connect_timeout=2)


def _topic(name: str) -> str:
    return f"schedulearn:{name}"


def _bell_file(name: str) -> Path:
    folder = settings.HOME / "bells"
    folder.mkdir(exist_ok=True)
    return folder / name


def _rung_at(name: str) -> int:
    try:
        return _bell_file(name).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
