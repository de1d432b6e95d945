"""Open connections on their way from one process to another, over a pair of Unix sockets.

What is sent waits in the kernel while the receiver starts again, so that no connection is lost meanwhile.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

AT_ONCE = 16


def handover_pair() -> tuple[socket.socket, socket.socket]:
    """Where to send, where to receive. Message boundaries are kept."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (sender, receiver):
        end.setblocking(False)
    return sender, receiver


async def send_connection(sender: socket.socket, connection: socket.socket, seconds: float) -> None:
    """Give it to the receiver; the caller still closes its own. Raises TimeoutError when it takes none for so long, and
    OSError when there is none."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                socket.send_fds(sender, [b"c"], [connection.fileno()])
            except BlockingIOError:
                await asyncio.sleep(0.01)  # other senders wait for the same socket: a callback could serve but one
            else:
                return


def receive_connections(
    loop: asyncio.AbstractEventLoop, receiver: socket.socket, accept: Callable[[socket.socket], None]
) -> None:
    """Call ``accept`` with each connection that comes, from now on. It is closed afterwards: ``accept`` duplicates it."""

    def readable() -> None:
        for _ in range(AT_ONCE):
            try:
                data, handles, _, _ = socket.recv_fds(receiver, 1, 1)
            except BlockingIOError:
                return
            if not data:
                loop.remove_reader(receiver)  # no one will send any more
                return
            for handle in handles:
                with contextlib.closing(socket.socket(fileno=handle)) as connection:
                    connection.setblocking(False)
                    os.set_inheritable(handle, False)
                    accept(connection)

    receiver.setblocking(False)
    loop.add_reader(receiver, readable)
