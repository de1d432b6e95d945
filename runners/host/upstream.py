"""The machine's own HTTP proxy, for machines that reach the network only through one."""

import base64
import os
import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Upstream:
    """The machine's own proxy, through which this one connects."""

    host: str
    port: int
    authorization: str = ""
    """The value of ``Proxy-Authorization``; empty without a password."""

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse ``http://user:password@host:port``. Raises ValueError for another kind of proxy."""
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"The proxy {redacted(parts)} is not supported: only addresses with http:// are.")
        authorization = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return cls(parts.hostname, parts.port or 80, authorization)


def redacted(parts: SplitResult) -> str:
    """Return an address without user name, password and what follows the host."""
    return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")


def open_tunnel(server: socket.socket, host: str, port: int, upstream: Upstream) -> None:
    """Ask the machine's proxy for a tunnel. Raises OSError when it refuses."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}"]
    if upstream.authorization:
        lines.append(f"proxy-authorization: {upstream.authorization}")
    server.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    data = b""
    while not data.endswith(b"\r\n\r\n"):  # one byte at a time: what follows belongs to the tunnel
        more = server.recv(1)
        if not more or len(data) > MAX_ANSWER_BYTES:
            raise OSError("the machine's proxy closed the connection")
        data += more
    status = data.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError(f"the machine's proxy answered {status}")


def environment_upstream(address: str = "") -> Upstream | None:
    """Return the proxy at this address, else the one of the environment (HTTPS_PROXY, HTTP_PROXY). Raises ValueError."""
    names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    found = address or next((value for name in names if (value := os.environ.get(name))), "")
    return Upstream.parse(found) if found else None
