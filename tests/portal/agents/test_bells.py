"""Bells: a ring between looking and waiting is heard, silence costs the time asked for, many wait at once."""

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
from portal.jobs import audience
from portal.wake import Bell, Switchboard, ring, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
"""Not for rows: what asks the database is run in both sizes, and bells ring through Redis in one of them."""


def test_a_ring_before_the_wait_is_heard() -> None:
    bell = Bell("test-early")
    ring("test-early")
    assert bell.wait(60)
    bell.close()


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_silence_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bell = Clock(), Bell("test-silent")
    monkeypatch.setattr(wake, "time", clock)
    if bell._pubsub is not None:
        monkeypatch.setattr(bell._pubsub, "get_message", lambda timeout: clock.sleep(timeout))
    assert not bell.wait(30)
    assert clock.now == pytest.approx(130)
    bell.close()


async def listens(board: Switchboard, events: Sequence[asyncio.Event]) -> None:
    """Wait until the board hears its bells: with Redis, a connection just made wakes everyone once."""
    await asyncio.wait_for(board.hears.wait(), 30)
    for event in events:
        event.clear()


async def test_hundreds_wait_at_once_on_one_connection_and_each_hears_its_own_bell() -> None:
    with ExitStack() as stack:
        board = Switchboard.here()
        events = [stack.enter_context(board.listening(f"test-many-{number}")) for number in range(300)]
        await listens(board, events)
        for number in range(0, 300, 2):
            await asyncio.to_thread(ring, f"test-many-{number}")
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events[::2])), 10)
        assert not any(event.is_set() for event in events[1::2])
        assert Switchboard.here() is board


async def test_a_ring_before_the_first_look_is_heard() -> None:
    with Switchboard.here().listening("test-soon") as bell:
        await asyncio.to_thread(ring, "test-soon")
        await asyncio.wait_for(bell.wait(), 60)


async def test_a_listener_does_not_hear_what_rang_before_it_came() -> None:
    board = Switchboard.here()
    with board.listening("test-later") as later:

        async def ring_later() -> None:
            """What rang earlier has been heard when this is over: bells arrive in their order."""
            later.clear()
            await asyncio.to_thread(ring, "test-later")
            await asyncio.wait_for(later.wait(), 30)

        with board.listening("test-left"):
            await listens(board, [later])
        await asyncio.to_thread(ring, "test-left")
        await ring_later()
        with board.listening("test-left") as bell:
            await ring_later()
            assert not bell.is_set()


def in_another_process(statement: str) -> str:
    """Run it in a process of the portal beside this one; what it prints."""
    program = f"import django; django.setup(); from portal.jobs import audience; from portal import wake; {statement}"
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "SCHEDULEARN_HOME": str(settings.HOME),
        "REDIS_URL": settings.REDIS_URL,
    }
    return subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True).stdout


async def test_a_ring_in_another_process_is_heard() -> None:
    board = Switchboard.here()
    with board.listening(wake.job_bell(7)) as event:
        await listens(board, [event])
        await asyncio.to_thread(in_another_process, "wake.ring(wake.job_bell(7))")
        await asyncio.wait_for(event.wait(), 10)


def test_a_viewer_of_another_process_makes_a_job_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may take longer to end than a look lasts, on a busy machine."""
    monkeypatch.setattr(audience, "WATCHED_SECONDS", 600.0)
    assert not audience.watched(90_001)
    in_another_process("audience.WATCHED_SECONDS = 600.0; audience.watch(90_001)")
    assert audience.watched(90_001)


def test_bells_of_long_ago_are_swept() -> None:
    if settings.REDIS_URL:
        return  # nothing is kept there
    ring("test-old")
    ring("test-new")
    hour_ago = time.time() - 3600
    os.utime(settings.HOME / "bells" / "test-old", (hour_ago, hour_ago))
    sweep(1800)
    assert not (settings.HOME / "bells" / "test-old").exists()
    assert (settings.HOME / "bells" / "test-new").exists()
