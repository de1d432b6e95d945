"""Bells: a ring between looking and waiting is heard, silence costs the time asked for, many wait at once."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from portal.wake import Bell, Switchboard, ring

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
"""Not for rows: what asks the database is run in both sizes, and bells ring through Redis in one of them."""


def test_a_ring_before_the_wait_is_heard() -> None:
    bell = Bell("test-early")
    ring("test-early")
    assert bell.wait(60)
    bell.close()


def test_silence_takes_its_time() -> None:
    bell = Bell("test-silent")
    begun = time.monotonic()
    assert not bell.wait(0.2)
    assert time.monotonic() - begun >= 0.2
    bell.close()


async def test_hundreds_wait_at_once_on_one_connection_and_each_hears_its_own_bell() -> None:
    with ExitStack() as stack:
        board = Switchboard.here()
        events = [stack.enter_context(board.listening(f"test-many-{number}")) for number in range(300)]
        await asyncio.sleep(0.5)
        for event in events:
            event.clear()
        for number in range(0, 300, 2):
            await asyncio.to_thread(ring, f"test-many-{number}")
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events[::2])), 10)
        assert not any(event.is_set() for event in events[1::2])
        assert Switchboard.here() is board


async def test_a_ring_before_the_first_look_is_heard() -> None:
    with Switchboard.here().listening("test-soon") as bell:
        await asyncio.to_thread(ring, "test-soon")
        await asyncio.wait_for(bell.wait(), 60)


async def test_who_left_is_not_waited_for() -> None:
    board = Switchboard.here()
    with board.listening("test-left"):
        pass
    await asyncio.to_thread(ring, "test-left")
    with board.listening("test-left") as bell, pytest.raises(TimeoutError):
        await asyncio.sleep(0.2)  # a connection just made wakes everybody once
        bell.clear()
        await asyncio.wait_for(bell.wait(), 0.3)
