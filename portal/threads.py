"""Threads that keep their connection to the database from one piece of work to the next.

Django's own way under ASGI is a new thread and a new connection for each request, which takes longer than a short answer.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, connections


class KeptThreads:
    """At most ``count`` pieces of work at once, each on a connection of its own; what is more waits its turn."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._pool = ThreadPoolExecutor(count, name)

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """As ``sync_to_async``."""

        async def later(*args: Any, **named: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, partial(_do, work, *args, **named))

        return later

    def close(self) -> None:
        """Lets go of all connections. It can be used again."""
        together = threading.Barrier(self._count)
        for _ in range(self._count):
            self._pool.submit(_close, together)
        self._pool.shutdown()
        self._pool = ThreadPoolExecutor(self._count, self._name)


def _do(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    try:
        return work(*args, **named)
    except (OperationalError, InterfaceError):
        connections.close_all()  # the server may have gone away: the next one begins anew
        raise


def _close(together: threading.Barrier) -> None:
    """Nobody takes another one's turn."""
    together.wait()
    connections.close_all()
