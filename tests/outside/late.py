"""A portal whose answers arrive late: a proxy that passes requests on at once and each piece of an answer after a delay."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE_BYTES = 65_536


@contextmanager
def late_by(seconds: float, port: int) -> Iterator[str]:
    """Yield the address at which what ``port`` of this machine answers is so many seconds late."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        threading.Thread(target=_accept, args=(listening, seconds, port), daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def _accept(listening: socket.socket, seconds: float, port: int) -> None:
    with suppress(OSError):  # it is closed in the end
        while True:
            caller, _ = listening.accept()
            portal = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_ask, args=(caller, portal), daemon=True).start()
            pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()
            threading.Thread(target=_hear, args=(portal, pieces, seconds), daemon=True).start()
            threading.Thread(target=_answer, args=(caller, portal, pieces), daemon=True).start()


def _ask(caller: socket.socket, portal: socket.socket) -> None:
    with suppress(OSError):
        while data := caller.recv(PIECE_BYTES):
            portal.sendall(data)
    with suppress(OSError):
        portal.shutdown(socket.SHUT_WR)


def _hear(portal: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]", seconds: float) -> None:
    data = b"begins"
    while data:
        try:
            data = portal.recv(PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + seconds, data))


def _answer(caller: socket.socket, portal: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]") -> None:
    with caller, portal, suppress(OSError):
        while True:
            due_at, data = pieces.get()
            time.sleep(max(0.0, due_at - time.monotonic()))
            if not data:
                return
            caller.sendall(data)
