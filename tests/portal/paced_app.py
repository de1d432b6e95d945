"""A server of ``portal.serving.paced`` with an application that sends far more than anyone reads; see test_serving_paced.

Run as a program: prints its port, and at ``/made`` answers how many pieces it has made and how many responses are open.
"""

import asyncio
import socket
import sys
from typing import Any

import daphne.server  # noqa: F401  installs the reactor that runs on asyncio

from portal.serving import paced
from portal.serving.paced import PacedServer

PIECE_BYTES = 64 * 1024
PIECES = 2048
MAX_BODY_BYTES = 1 << 20
MAX_UNKNOWN_SENDER_BYTES = 1000

made = 0
under_way = 0


def piece() -> bytes:
    """A new object each time: shared memory would hide what is kept."""
    global made  # noqa: PLW0603
    made += 1
    return bytes(bytearray(PIECE_BYTES))


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global under_way  # noqa: PLW0603
    under_way += 1
    try:
        if scope["type"] == "websocket":
            await _socket(scope, receive, send)
        elif scope["path"] == "/large":
            await _large(send)
        else:
            await _small(scope, receive, send)
    finally:
        under_way -= 1


async def _socket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/deaf":
        await asyncio.Event().wait()
    for _ in range(PIECES):
        await send({"type": "websocket.send", "bytes": piece()})
    await send({"type": "websocket.close", "code": 1000})


async def _large(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(PIECES):
        await send({"type": "http.response.body", "body": piece(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _small(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    text = f"{made} {under_way - 1}" if scope["path"] == "/made" else str(len(body))
    headers = [(b"Content-Length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


if __name__ == "__main__":
    stall_seconds = float(sys.argv[1])
    paced.MAX_UNKNOWN_SENDER_BYTES = MAX_UNKNOWN_SENDER_BYTES
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = PacedServer(
        application,
        [f"tcp:{port}:interface=127.0.0.1"],
        max_body_bytes=lambda path: 0 if path == b"/nothing" else MAX_BODY_BYTES,
        stall_seconds=stall_seconds,
        verbosity=0,
        client_of=lambda cookies: cookies,
        may_send_large_body=lambda path, authorization: path != b"/agent/echo" or authorization == "Bearer known",
        ready_callable=lambda: print(port, flush=True),
    )
    server.run()
