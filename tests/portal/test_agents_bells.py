"""Bells: a ring between looking and waiting is heard, silence costs the time asked for, many wait at once."""

import asyncio
import time

from portal.wake import Bell, ring


def test_a_ring_before_the_wait_is_heard() -> None:
    bell = Bell("test-early")
    ring("test-early")
    assert bell.wait(5)
    bell.close()


def test_silence_takes_its_time() -> None:
    bell = Bell("test-silent")
    begun = time.monotonic()
    assert not bell.wait(0.2)
    assert time.monotonic() - begun >= 0.2
    bell.close()


async def test_fifty_agents_wait_at_once_without_a_thread_each() -> None:
    bells = [await asyncio.to_thread(Bell, f"test-many-{number}") for number in range(50)]
    waits = [asyncio.create_task(bell.wait_async(20)) for bell in bells]
    await asyncio.sleep(0.1)
    for number in range(50):
        ring(f"test-many-{number}")
    begun = time.monotonic()
    assert all(await asyncio.gather(*waits))
    assert time.monotonic() - begun < 10
    for bell in bells:
        bell.close()


async def test_an_unheard_wait_ends() -> None:
    bell = Bell("test-nobody")
    assert not await bell.wait_async(0.2)
    bell.close()
