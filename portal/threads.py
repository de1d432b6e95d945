"""Threads that keep their database connection from one piece of work to the next.

Under ASGI, Django uses a new thread and a new connection for each request, which takes longer than a short response.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, connections


class DatabaseThreadPool:
    """A pool of ``count`` threads, each with its own database connection. More work than that waits."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._pool = ThreadPoolExecutor(count, name)

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return an async function that runs ``work`` in the pool, as ``sync_to_async`` does."""

        async def run_in_pool(*args: Any, **named: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, partial(_run, work, *args, **named))

        return run_in_pool

    def close(self) -> None:
        """Close all connections. The pool can be used again."""
        barrier = threading.Barrier(self._count)
        for _ in range(self._count):
            self._pool.submit(_close_connections, barrier)
        self._pool.shutdown()
        self._pool = ThreadPoolExecutor(self._count, self._name)


def _run(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    try:
        return work(*args, **named)
    except (OperationalError, InterfaceError):
        connections.close_all()  # the server may be gone: the next piece of work opens a new connection
        raise


def _close_connections(barrier: threading.Barrier) -> None:
    barrier.wait()  # so that each thread of the pool runs this once
    connections.close_all()
