"""Passes open connections from one process to another, over a pair of Unix sockets.

Connections wait in the kernel while the receiver restarts, so that none is lost.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

MAX_PER_CALLBACK = 16


def handover_pair() -> tuple[socket.socket, socket.socket]:
    """Return the sending and the receiving end. Message boundaries are kept."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (sender, receiver):
        end.setblocking(False)
    return sender, receiver


async def send_connection(sender: socket.socket, connection: socket.socket, seconds: float) -> None:
    """Pass a connection to the receiver; the caller still closes its own copy.

    Raises TimeoutError when the receiver accepts none for so long, and OSError when there is no receiver.
    """
    async with asyncio.timeout(seconds):
        while True:
            try:
                socket.send_fds(sender, [b"c"], [connection.fileno()])
            except BlockingIOError:
                await asyncio.sleep(
                    0.01
                )  # several senders wait for the same socket, and a reader callback serves only one
            else:
                return


def receive_connections(
    loop: asyncio.AbstractEventLoop, receiver: socket.socket, accept: Callable[[socket.socket], None]
) -> None:
    """Call ``accept`` with each connection from now on. It is closed after the call: ``accept`` must duplicate it."""

    def readable() -> None:
        for _ in range(MAX_PER_CALLBACK):
            try:
                data, handles, _, _ = socket.recv_fds(receiver, 1, 1)
            except BlockingIOError:
                return
            if not data:
                loop.remove_reader(receiver)  # the sender is closed
                return
            for handle in handles:
                with contextlib.closing(socket.socket(fileno=handle)) as connection:
                    connection.setblocking(False)
                    os.set_inheritable(handle, False)
                    accept(connection)

    receiver.setblocking(False)
    loop.add_reader(receiver, readable)
