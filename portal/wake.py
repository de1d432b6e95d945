"""Notifications between processes: hints that something changed, never the change itself.

A lost notification only costs time, because every waiting process also wakes by a timer. The lab size sends
notifications through Redis; the small size touches files, which its processes poll every 50 ms. Both reach every
process of the portal: the one that answers nodes, the one that serves pages, and the scheduler.
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
LAB = "lab"
"""Notified when jobs start, end or change their GPUs, for pages that show the lab."""
POLL_SECONDS = 0.05
FOLDER = "bells"
"""The small size's files, one for each channel. The name is from an earlier release."""


def wake_scheduler() -> None:
    transaction.on_commit(lambda: notify(SCHEDULER))


def wake_node(node_id: int) -> None:
    transaction.on_commit(lambda: notify(node_channel(node_id)))


def wake_job_viewers(job_id: int) -> None:
    """Make open job pages refresh; without this they do so within seconds."""
    transaction.on_commit(lambda: notify(job_channel(job_id)), robust=True)


def wake_log_viewers(job_id: int) -> None:
    """Make open logs of a job show what was stored; without this they do so within seconds."""
    transaction.on_commit(lambda: notify(log_channel(job_id)), robust=True)


def wake_lab_viewers(user_id: int) -> None:
    """Make open pages that show the lab or this user's jobs refresh; without this they do so within half a minute."""
    transaction.on_commit(lambda: notify(LAB), robust=True)
    transaction.on_commit(lambda: notify(user_channel(user_id)), robust=True)


def job_channel(job_id: int) -> str:
    return f"job-{job_id}"


def log_channel(job_id: int) -> str:
    return f"log-{job_id}"


def user_channel(user_id: int) -> str:
    return f"user-{user_id}"


def notices_channel(user_id: int) -> str:
    return f"notices-{user_id}"


def node_channel(node_id: int) -> str:
    return f"node-{node_id}"


def notify(channel: str) -> None:
    """Wake every process that waits on this channel. Does nothing while Redis is away: timers replace it."""
    if settings.REDIS_URL:
        try:
            _publisher(settings.REDIS_URL).publish(_topic(channel), b"")
        except redis.RedisError:
            return
    else:
        _file(channel).touch()


def notified_within(channel: str, seconds: float) -> bool:
    """Return whether the channel was notified in the last ``seconds``. Small size only: Redis does not remember."""
    return 0 <= time.time() - _notified_at(channel) / 1e9 < seconds


def delete_unused(older_than_seconds: float) -> int:
    """Delete files of channels that were not notified for so long, such as those of ended jobs; return their number.

    A listener whose file is deleted wakes once more than necessary.
    """
    limit = time.time() - older_than_seconds
    old = [file for file in (settings.HOME / FOLDER).glob("*") if _notified_at(file.name) / 1e9 < limit]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)


class Subscription:
    """A channel that a thread waits on. Notifications count from its creation on, also those before ``wait``."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._seen_at = 0
        self._pubsub = None
        if settings.REDIS_URL:
            try:
                self._pubsub = _redis().pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(_topic(channel))
            except redis.RedisError:
                self._pubsub = None
        else:
            self._seen_at = _notified_at(channel)

    def wait(self, seconds: float) -> bool:
        """Return True on a notification, False when the time is up."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._pubsub is not None:
                try:
                    if self._pubsub.get_message(timeout=left):
                        return True
                except redis.RedisError:
                    time.sleep(min(left, 1.0))
            else:
                at = _notified_at(self.channel)
                if at != self._seen_at:
                    self._seen_at = at
                    return True
                time.sleep(min(left, POLL_SECONDS))
        return False

    def close(self) -> None:
        if self._pubsub is not None:
            self._pubsub.close()


class NotificationHub:
    """Receives all channels for one event loop: hundreds of agents wait in one process, on one connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._seen_at: dict[str, int] = {}
        self.connected = asyncio.Event()
        """Set while every notification is received."""
        receive = self._receive_from_redis if settings.REDIS_URL else self._poll_files
        self._receiver = asyncio.create_task(receive())

    @classmethod
    def current(cls) -> "NotificationHub":
        """Return the hub of the running event loop, created on first use."""
        for closed in [loop for loop in _hubs if loop.is_closed()]:
            del _hubs[closed]
        loop = asyncio.get_running_loop()
        hub = _hubs.get(loop)
        if hub is None or hub._receiver.done():  # noqa: SLF001
            hub = _hubs[loop] = cls()
        return hub

    @contextmanager
    def subscribe(self, *channels: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set by each notification of one of the channels from now on."""
        event = asyncio.Event()
        for channel in channels:
            if channel not in self._waiting:
                self._waiting[channel] = set()
                self._seen_at[channel] = 0 if settings.REDIS_URL else _notified_at(channel)
            self._waiting[channel].add(event)
        try:
            yield event
        finally:
            for channel in channels:
                self._waiting[channel].discard(event)
                if not self._waiting[channel]:
                    del self._waiting[channel], self._seen_at[channel]

    def _set_events(self, channels: Iterable[str]) -> None:
        for channel in channels:
            for event in self._waiting.get(channel, ()):
                event.set()

    async def _receive_from_redis(self) -> None:
        prefix_length = len(_topic(""))
        receiver = self._receiver
        while not receiver.cancelling():  # redis-py loses a cancellation that comes together with its own timeout
            try:
                async with (
                    aioredis.from_url(settings.REDIS_URL, socket_timeout=30, socket_connect_timeout=2) as client,
                    client.pubsub(ignore_subscribe_messages=True) as pubsub,
                ):
                    await pubsub.psubscribe(_topic("*"))
                    self._set_events(self._waiting)  # notifications before this moment may be lost
                    self.connected.set()
                    while not receiver.cancelling():
                        if message := await pubsub.get_message(timeout=10):
                            self._set_events([message["channel"].decode()[prefix_length:]])
            except (redis.RedisError, OSError):
                self.connected.clear()
                await asyncio.sleep(1)

    async def _poll_files(self) -> None:
        while True:
            now = {channel: _notified_at(channel) for channel in self._waiting}
            notified = [channel for channel, at in now.items() if at != self._seen_at[channel]]
            self._seen_at |= now
            self._set_events(notified)
            self.connected.set()
            await asyncio.sleep(POLL_SECONDS)


_hubs: dict[asyncio.AbstractEventLoop, NotificationHub] = {}


@cache
def _publisher(url: str) -> redis.Redis:
    """Return the one connection for all notifications of this process: a new one for each takes five times as long."""
    return redis.Redis.from_url(url, socket_timeout=30, socket_connect_timeout=2)


def _redis() -> redis.Redis:
    """Open a new connection, for a subscription."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=30, socket_connect_timeout=2)


def _topic(channel: str) -> str:
    return f"schedulearn:{channel}"


def _file(channel: str) -> Path:
    folder = settings.HOME / FOLDER
    folder.mkdir(exist_ok=True)
    return folder / channel


def _notified_at(channel: str) -> int:
    """Return the time of the last notification in nanoseconds since 1970, 0 for none."""
    try:
        return _file(channel).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
