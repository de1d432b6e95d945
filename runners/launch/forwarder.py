"""Signs what ranks ask the driver. Horovod's C++ client cannot, so it talks to us on the container's loopback."""

import http.client
import threading

from runners.launch import signing
from runners.launch.rendezvous import BoundedHandler, RefusedError, Server, allowed_to_ranks, split_path

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 3600.0
"""``rank_and_size`` answers when the last rank of the ring has come to the barrier."""


def call(host: str, port: int, secret: str, method: str, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """One signed request to the driver. Raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=min(seconds, CONNECT_SECONDS))
    try:
        connection.connect()
        connection.sock.settimeout(seconds)
        headers = {signing.HEADER: signing.sign(secret, method, path, body)}
        connection.request(method, path, body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def forward(driver_host: str, driver_port: int, secret: str) -> Server:
    """Listens on a free port of the loopback; ``server_port`` says which."""

    class Handler(BoundedHandler):
        def reply(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            if not allowed_to_ranks(method, *split_path(path)):
                raise RefusedError(403, "no such scope or key")
            try:
                return call(driver_host, driver_port, secret, method, path, body, ANSWER_SECONDS)
            except (OSError, http.client.HTTPException) as error:
                raise RefusedError(502, "the driver does not answer") from error

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="forwarder", daemon=True).start()
    return server
