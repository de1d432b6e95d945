"""One address for users and nodes: accepts connections and sends each to the process that its first request is for.

    python -m portal.serving.entry LISTENING PAGES NODES

The arguments are the numbers of inherited sockets: one that listens, and an end of a ``handover_pair`` for each process.
This process does nothing else, so that it accepts promptly whatever happens to the others. It never reads from a
connection; it only peeks at its first bytes.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections import OrderedDict
from contextlib import closing

from portal.serving import NODES_PATH
from portal.serving.handover import send_connection

logger = logging.getLogger(__name__)

MAX_METHOD_BYTES = 8
"""The length of the longest method of a request to the portal."""
PREFIX = NODES_PATH.encode()
PEEK_BYTES = MAX_METHOD_BYTES + 1 + len(PREFIX)
FIRST_BYTES_SECONDS = 30.0
"""Time limit for the first bytes. Browsers open connections before they have a request."""
HANDOVER_SECONDS = 10.0
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.02, 1.0
"""Pause before peeking again at an incomplete request line, doubled each time: a few hundred took a quarter of a core."""
MAX_UNDECIDED = 512
"""Connections that have sent nothing yet. With more, the oldest is closed, so that silent clients never block others."""


def is_for_nodes(head: bytes) -> bool | None:
    """Return whether a connection with these first bytes is for the nodes' process; None when more bytes are needed."""
    method, space, rest = head.partition(b" ")
    if not space:
        return None if len(head) <= MAX_METHOD_BYTES else False
    if len(rest) < len(PREFIX) and PREFIX.startswith(rest):
        return None
    return rest.startswith(PREFIX)


class Entry:
    def __init__(self, pages: socket.socket, nodes: socket.socket) -> None:
        self._pages, self._nodes = pages, nodes
        self._undecided: OrderedDict[asyncio.Task[None], None] = OrderedDict()

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                logger.warning("A connection could not be accepted: %s", error)
                await asyncio.sleep(1)  # probably too many open files; some will be closed by then
                continue
            task = asyncio.create_task(self._route(connection))
            self._undecided[task] = None
            task.add_done_callback(lambda task: self._undecided.pop(task, None))
            if len(self._undecided) > MAX_UNDECIDED:
                next(iter(self._undecided)).cancel()

    async def _route(self, connection: socket.socket) -> None:
        with closing(connection):
            try:
                async with asyncio.timeout(FIRST_BYTES_SECONDS):
                    to_nodes = await first_path_is_for_nodes(connection)
            except (TimeoutError, OSError):
                return
            if to_nodes is None:
                return
            try:
                await send_connection(self._nodes if to_nodes else self._pages, connection, HANDOVER_SECONDS)
            except (TimeoutError, OSError) as error:
                logger.warning("The process for %s accepts no connections: %r", "nodes" if to_nodes else "pages", error)


async def first_path_is_for_nodes(connection: socket.socket) -> bool | None:
    """Return whether the connection is for the nodes' process; None when the client has disconnected. Raises OSError."""
    pause = RETRY_SECONDS
    while True:
        await _wait_until_readable(connection)
        try:
            head = connection.recv(PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not head:
            return None
        if (answer := is_for_nodes(head)) is not None:
            return answer
        await asyncio.sleep(pause)  # the socket stays readable meanwhile
        pause = min(2 * pause, MAX_RETRY_SECONDS)


async def _wait_until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


async def main(listening: int, pages: int, nodes: int) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; this process ends last, by SIGTERM
    entry = Entry(socket.socket(fileno=pages), socket.socket(fileno=nodes))
    await entry.serve(socket.socket(fileno=listening))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main(*(int(number) for number in sys.argv[1:])))
