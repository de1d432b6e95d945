"""Notifications: one sent between looking and waiting is received, a wait times out, many wait at once."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from django.conf import settings

from portal import wake
from portal.jobs import log_watchers
from portal.wake import NotificationHub, Subscription, delete_unused, notify

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
"""The database is not used: these tests run in both sizes because one of them notifies through Redis."""


def test_a_notification_before_the_wait_is_received() -> None:
    subscription = Subscription("test-early")
    notify("test-early")
    assert subscription.wait(60)
    subscription.close()


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_wait_without_notification_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, subscription = Clock(), Subscription("test-silent")
    monkeypatch.setattr(wake, "time", clock)
    if subscription._pubsub is not None:
        monkeypatch.setattr(subscription._pubsub, "get_message", lambda timeout: clock.sleep(timeout))
    assert not subscription.wait(30)
    assert clock.now == pytest.approx(130)
    subscription.close()


async def connect(hub: NotificationHub, events: Sequence[asyncio.Event]) -> None:
    """Wait until the hub is connected: with Redis, a new connection wakes every subscriber once."""
    await asyncio.wait_for(hub.connected.wait(), 30)
    for event in events:
        event.clear()


async def test_hundreds_wait_on_one_connection_and_each_gets_its_own_notification() -> None:
    with ExitStack() as stack:
        hub = NotificationHub.current()
        events = [stack.enter_context(hub.subscribe(f"test-many-{number}")) for number in range(300)]
        await connect(hub, events)
        for number in range(0, 300, 2):
            await asyncio.to_thread(notify, f"test-many-{number}")
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events[::2])), 10)
        assert not any(event.is_set() for event in events[1::2])
        assert NotificationHub.current() is hub


async def test_a_notification_before_the_first_poll_is_received() -> None:
    with NotificationHub.current().subscribe("test-soon") as event:
        await asyncio.to_thread(notify, "test-soon")
        await asyncio.wait_for(event.wait(), 60)


async def test_a_subscriber_does_not_get_notifications_from_before_it_subscribed() -> None:
    hub = NotificationHub.current()
    with hub.subscribe("test-later") as later:

        async def pass_time() -> None:
            """Return when every earlier notification has arrived: they arrive in their order."""
            later.clear()
            await asyncio.to_thread(notify, "test-later")
            await asyncio.wait_for(later.wait(), 30)

        with hub.subscribe("test-left"):
            await connect(hub, [later])
        await asyncio.to_thread(notify, "test-left")
        await pass_time()
        with hub.subscribe("test-left") as event:
            await pass_time()
            assert not event.is_set()


def in_another_process(statement: str) -> str:
    """Run a statement in another process of the portal and return what it prints."""
    program = (
        f"import django; django.setup(); from portal.jobs import log_watchers; from portal import wake; {statement}"
    )
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "SCHEDULEARN_HOME": str(settings.HOME),
        "REDIS_URL": settings.REDIS_URL,
    }
    return subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True).stdout


async def test_a_notification_of_another_process_is_received() -> None:
    hub = NotificationHub.current()
    with hub.subscribe(wake.job_channel(7)) as event:
        await connect(hub, [event])
        await asyncio.to_thread(in_another_process, "wake.notify(wake.job_channel(7))")
        await asyncio.wait_for(event.wait(), 10)


def test_a_viewer_of_another_process_makes_a_job_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may take longer to end than a look lasts, on a busy machine.

    Redis forgets by the wall clock: a virtual machine whose clock is set forward meanwhile loses the hint once.
    """
    monkeypatch.setattr(log_watchers, "WATCHED_SECONDS", 600.0)
    assert not log_watchers.is_watched(90_001)

    def watched_by_another_process() -> bool:
        in_another_process("log_watchers.WATCHED_SECONDS = 600.0; log_watchers.watch(90_001)")
        return log_watchers.is_watched(90_001)

    assert any(watched_by_another_process() for _ in range(3))


def test_files_of_unused_channels_are_deleted() -> None:
    if settings.REDIS_URL:
        return  # nothing is kept there
    notify("test-old")
    notify("test-new")
    hour_ago = time.time() - 3600
    os.utime(settings.HOME / wake.FOLDER / "test-old", (hour_ago, hour_ago))
    delete_unused(1800)
    assert not (settings.HOME / wake.FOLDER / "test-old").exists()
    assert (settings.HOME / wake.FOLDER / "test-new").exists()
