"""Forwards requests of ranks to the driver, with a signature. Horovod's C++ client cannot sign, so it sends its requests to
the container's loopback."""

import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable

from runners.launch import signing
from runners.launch.rendezvous import (
    FIRST_PLACE,
    RANK_AND_SIZE,
    BoundedHandler,
    RefusedError,
    Server,
    is_allowed_for_ranks,
    split_path,
)

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 3600.0
"""``rank_and_size`` is answered when the last rank of the group has reached the barrier."""
MAX_DRIVER_ABSENCE_SECONDS = 240.0
"""How long ranks may be without a driver when its node was lost: until the loss is certain and another driver is up."""
RETRY_SECONDS = 0.5


def send_request(
    host: str, port: int, secret: str, method: str, path: str, body: bytes, seconds: float
) -> tuple[int, bytes]:
    """Send one signed request to the driver; returns status and body. Raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=min(seconds, CONNECT_SECONDS))
    try:
        connection.connect()
        _enable_keepalive(connection.sock)
        connection.sock.settimeout(seconds)
        headers = {signing.HEADER: signing.sign(secret, method, path, body)}
        connection.request(method, path, body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _enable_keepalive(connection: socket.socket) -> None:
    """Detect within half a minute that the driver's node is gone, however long an answer may take."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)  # also when it owes us a receipt


def _no_prestarted_rank(_slot: str) -> dict[str, str] | None:
    return None


def start_forwarder(
    driver: Callable[[], str],
    port: int,
    secret: str,
    driver_may_move: bool = False,
    first_place: Callable[[str], dict[str, str] | None] = _no_prestarted_rank,
) -> Server:
    """Listen on a free port of the loopback, ``server_port`` of the result. ``driver`` returns the driver's address.

    ``first_place`` returns the variables of a new rank by its slot; None: the driver is asked. With
    ``driver_may_move``, a rank's request for its place is held until a driver answers: Horovod itself would give up. Such
    a request has a number, so that the driver does not count a repeated one twice.
    """

    class Handler(BoundedHandler):
        def reply(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            scope, key = split_path(path)
            if not is_allowed_for_ranks(method, scope, key):
                raise RefusedError(403, "no such scope or key")
            if scope == FIRST_PLACE and (own := first_place(key.split(":")[1])) is not None:
                return 200, json.dumps(own).encode()
            placing = scope == RANK_AND_SIZE
            until = time.monotonic() + (MAX_DRIVER_ABSENCE_SECONDS if placing and driver_may_move else 0)
            path = f"{path}:{uuid.uuid4().hex}" if placing and key.count(":") == 1 else path
            while True:
                try:
                    return send_request(driver(), port, secret, method, path, body, ANSWER_SECONDS)
                except (OSError, http.client.HTTPException) as error:
                    if time.monotonic() > until:
                        raise RefusedError(502, "the driver does not answer") from error
                    time.sleep(RETRY_SECONDS)

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="forwarder", daemon=True).start()
    return server
