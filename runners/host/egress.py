"""An HTTP proxy on a unix socket that reaches only named hosts and records each connection.

A sandbox without a network gets this socket, and through it the hosts that it may use: package indexes for builds, and what
an admin allowed for jobs. The proxy resolves names itself and connects to the address that it has checked, so a name that
points into the local network reaches nothing there unless its rule is ``internal``. TLS passes through: the proxy sees only
the name and the number of bytes.
"""

import ipaddress
import logging
import os
import re
import select
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from runners.host.upstream import Upstream, open_tunnel

logger = logging.getLogger(__name__)

WEB_PORTS = frozenset({80, 443})
Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
REFUSED_NETWORKS: Networks = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3"),
        *("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
"""Private, shared, loopback, link-local, multicast and reserved addresses, and IPv6 addresses that contain IPv4 ones."""
MACHINE_NETWORKS: Networks = tuple(
    ipaddress.ip_network(network)
    for network in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/10", "ff00::/8")
)
"""Addresses that mean this machine, its cloud's service or no single machine. Jobs never reach them: a name that an admin
allowed may have such an address by /etc/hosts, or by the will of its owner."""
HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*|[0-9a-f:.]+", re.ASCII)
"""Names and addresses; no other characters get into records."""
MAX_CONNECTIONS = 64
"""uv opens 50 at a time."""
MAX_HEAD_BYTES = 64 * 1024
MAX_TOTAL_BYTES = 100 * 2**30
CHUNK_BYTES = 256 * 1024
CONNECT_SECONDS = 30.0
IDLE_SECONDS = 180.0
POLL_SECONDS = 0.5
CLOSE_SECONDS = 2.0
"""How long connections may take to be recorded when the proxy is closed."""
MAX_SOCKET_PATH = 107
UNLIMITED_BYTES = 2**62
METHODS = frozenset({"GET", "HEAD"})
CONTENT_METHODS = METHODS | {"POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
CONNECTION_HEADERS = frozenset(
    {"connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "upgrade"}
)
INTERNAL_MARK = "internal"
"""The second word of a rule in text, of a host in the local network."""
FORWARDED_HEADERS = frozenset(
    {"accept", "accept-encoding", "authorization", "cache-control", "if-modified-since", "if-none-match", "range"}
    | {"if-range", "user-agent"}
)
"""Headers of a plain request that the server receives; the others are dropped."""


Reason = Literal["", "not_allowed", "internal", "not_served", "unreachable", "cut_off"]
"""Why a connection was refused or ended early, for programs."""


class RefusedError(Exception):
    """The proxy does not open this connection; the text is the reason."""

    def __init__(self, text: str, reason: Reason = "not_served") -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that may be reached."""

    pattern: str
    """``files.example.org``, or ``*.example.org`` for all names below it."""
    ports: frozenset[int] = WEB_PORTS
    internal: bool = False
    """Whether it may have a private address: true only for hosts that the machine's settings or an admin named."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAME[:PORT] [internal]``. Raises ValueError for anything else."""
        words = text.split()
        if not words or words[1:] not in ([], [INTERNAL_MARK]):
            raise ValueError(f"{text!r} is not a rule for hosts.")
        name, _, port = words[0].partition(":")
        if not name or (port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16)):
            raise ValueError(f"{text!r} is not a rule for hosts.")
        return cls(name, frozenset({int(port)}) if port else WEB_PORTS, internal=len(words) > 1)

    def allows(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        if self.pattern.startswith("*."):
            return host.endswith(self.pattern[1:].lower())
        return host == self.pattern.lower()


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection that has ended, or was refused."""

    host: str
    port: int
    received_bytes: int = 0
    sent_bytes: int = 0
    refusal: str = ""
    """Why it was refused or cut off; empty if it was not."""
    error: str = ""
    """Why the host was not reached; empty if it was."""
    reason: Reason = ""

    @property
    def text(self) -> str:
        if self.refusal:
            return f"{self.host}:{self.port} refused: {self.refusal}"
        if self.error:
            return f"{self.host}:{self.port} cannot be reached: {self.error}"
        return f"{self.host}:{self.port} {self.received_bytes} bytes in, {self.sent_bytes} bytes out"


class EgressProxy:
    """Serves ``path`` until it is closed. ``record`` is called in a thread of the proxy for each connection.

    ``for_job``: plain requests may have any method, content and headers, as programs send them, and even rules for internal
    hosts never lead to this machine itself.
    """

    def __init__(
        self,
        path: Path,
        rules: Iterable[HostRule],
        record: Callable[[Connection], None],
        upstream: Upstream | None = None,
        max_total_bytes: int = MAX_TOTAL_BYTES,
        idle_seconds: float = IDLE_SECONDS,
        for_job: bool = False,
        never: Networks | None = None,
    ) -> None:
        """Listen at ``path``. ``never``: the addresses that even rules for internal hosts do not lead to. Raises OSError when
        that is not possible."""
        self.path = path
        self.rules = tuple(rules)
        self.upstream = upstream
        self.idle_seconds = idle_seconds
        self.for_job = for_job
        self.never: Networks = (MACHINE_NETWORKS if for_job else ()) if never is None else never
        self._record = record
        self._left_bytes = max_total_bytes
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind(self._listener, path)
            self._listener.listen(MAX_CONNECTIONS)
        except OSError:
            self._listener.close()
            raise
        self._listener.settimeout(POLL_SECONDS)
        self._thread = threading.Thread(target=self._accept, name="egress proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections, record them and remove the socket."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join()
        self._listener.close()
        with suppress(FileNotFoundError):
            self.path.unlink()
        until = time.monotonic() + CLOSE_SECONDS
        for _ in range(MAX_CONNECTIONS):  # each open connection holds one
            self._slots.acquire(timeout=max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not self._slots.acquire(timeout=POLL_SECONDS):
                continue
            try:
                client, _ = self._listener.accept()
            except OSError:  # no connection within the time
                self._slots.release()
                continue
            threading.Thread(target=self._serve, args=(client,), name="egress connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(self.idle_seconds)
                self._handle(client)
        except OSError as error:
            logger.debug("A connection of the proxy was lost: %s", error)
        finally:
            self._slots.release()

    def _handle(self, client: socket.socket) -> None:
        try:
            head, rest = read_head(client)
            request = Request.parse(head, self.for_job)
        except RefusedError as error:
            refuse(client, "400 Bad Request", str(error))
            return
        try:
            server = self._connect(request)
        except RefusedError as error:
            self._record(Connection(request.host, request.port, refusal=str(error), reason=error.reason))
            refuse(client, "403 Forbidden", str(error))
            return
        except OSError as error:
            why = error.strerror or str(error)
            self._record(Connection(request.host, request.port, error=why, reason="unreachable"))
            refuse(client, "502 Bad Gateway", f"Cannot connect to {request.host}: {error}")
            return
        with server:
            counts, refusal = {client: 0, server: 0}, ""
            try:
                if request.tunnel:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upstream = None if request.needs_tunnel else self._proxied(request.host)
                head = b"" if request.tunnel else request.forwarded(upstream, self.for_job)
                first = head + (rest if request.needs_tunnel else b"")
                server.sendall(first)
                counts[client] += len(first)
                refusal = self._copy(client, server, counts, request.needs_tunnel)
            finally:
                reason: Reason = "cut_off" if refusal else ""
                received, sent = counts[server], counts[client]
                self._record(Connection(request.host, request.port, received, sent, refusal, reason=reason))

    def _proxied(self, host: str) -> Upstream | None:
        """Return the machine's proxy if this host is reached through it."""
        if self.upstream is None or urllib.request.proxy_bypass(host):
            return None
        return self.upstream

    def _connect(self, request: "Request") -> socket.socket:
        """Connect to where a request leads. Raises RefusedError or OSError."""
        host, port = request.host, request.port
        rules = [rule for rule in self.rules if rule.allows(host, port)]
        if not rules:
            raise RefusedError("this host is not allowed", "not_allowed")
        refused = REFUSED_NETWORKS
        if any(rule.internal for rule in rules):
            refused = self.never
        if (upstream := self._proxied(host)) is not None:
            check_literal(host, refused)
            server = socket.create_connection((upstream.host, upstream.port), CONNECT_SECONDS)
            try:
                if request.needs_tunnel:
                    open_tunnel(server, host, port, upstream)
            except BaseException:
                server.close()
                raise
        else:
            server = connect_checked(host, port, refused)
        server.settimeout(self.idle_seconds)
        return server

    def _copy(self, client: socket.socket, server: socket.socket, counts: dict[socket.socket, int], both: bool) -> str:
        """Copy until the server or the client has gone, and return why it was cut off. ``counts`` has the bytes of each side,
        also when the other one breaks the connection.

        ``both``: also what the client sends. A plain request without content has been sent in full, so that its client sends
        nothing more. Each side may go on while the other one does not read, and a client that has only ended its own part still
        gets the answer."""
        flows = {server: client, client: server} if both else {server: client}
        unsent: dict[socket.socket, bytes] = {}
        """What came from a side and has not been sent on."""
        quiet_since = time.monotonic()
        while not self._closed.is_set():
            wanted = dict.fromkeys((server, client), 0)
            for source, target in flows.items():
                wanted[target if source in unsent else source] |= select.POLLOUT if source in unsent else select.POLLIN
            ready = select.poll()
            for side, mask in wanted.items():
                ready.register(side, mask)
            events = dict(ready.poll(POLL_SECONDS * 1000))
            if not events and time.monotonic() - quiet_since > self.idle_seconds:
                return f"idle for {self.idle_seconds:.0f} s"
            quiet_since = time.monotonic() if events else quiet_since
            for source, target in list(flows.items()):
                if source in unsent:
                    if events.get(target.fileno(), 0) & ~select.POLLIN:
                        unsent[source] = unsent[source][target.send(unsent[source]) :]
                        if not unsent[source]:
                            del unsent[source]
                elif events.get(source.fileno(), 0) & ~select.POLLOUT:
                    data = source.recv(CHUNK_BYTES)
                    if not data and source is server:
                        return ""
                    if not data:
                        del flows[source]
                        target.shutdown(socket.SHUT_WR)
                        continue
                    if not self._spend(len(data)):
                        return "the maximum size of all downloads is reached"
                    counts[source] += len(data)
                    unsent[source] = data
            if events.get(client.fileno(), 0) & (select.POLLHUP | select.POLLERR) and client not in flows:
                return ""
        return ""

    def _spend(self, size: int) -> bool:
        with self._lock:
            self._left_bytes -= size
            return self._left_bytes >= 0


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request to a proxy: ``CONNECT host:port``, or another method with a whole address."""

    method: str
    host: str
    port: int
    target: str
    """The path and the query; empty for a tunnel."""
    headers: tuple[tuple[str, str], ...]

    @property
    def tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def has_content(self) -> bool:
        return any(name in ("transfer-encoding", "content-length") for name, _ in self.headers)

    @property
    def needs_tunnel(self) -> bool:
        """Whether it goes through a tunnel of the machine's proxy: after content, that might read another request."""
        return self.tunnel or self.has_content

    @classmethod
    def parse(cls, head: bytes, content: bool = False) -> Self:
        """Raises RefusedError for what this proxy does not serve."""
        try:
            first, *lines = head.decode("ascii").split("\r\n")
            method, address, version = first.split(" ")
        except ValueError:
            raise RefusedError("this is not a request to a proxy") from None
        served = {"CONNECT"} | (CONTENT_METHODS if content else METHODS)
        if not version.startswith("HTTP/1.") or method not in served:
            raise RefusedError(f"only these methods are served: {', '.join(sorted(served))}")
        headers = []
        for line in lines:
            name, separator, value = line.partition(":")
            if not separator or name != name.strip() or any(ord(each) < 32 and each != "\t" for each in value):
                raise RefusedError("a header is malformed")
            headers.append((name.lower(), value.strip()))
        names = [name for name, _ in headers]
        framing = [name for name in names if name in ("transfer-encoding", "content-length")]
        if method != "CONNECT" and len(framing) > (1 if content else 0):
            raise RefusedError("its content has two lengths" if content else "requests with content are not served")
        return cls(method, *parse_address(method, address), tuple(headers))

    def forwarded(self, upstream: Upstream | None, all_headers: bool = False) -> bytes:
        """Return a plain request as the server, or the machine's proxy, receives it: one response, then the end."""
        host = self.host if ":" not in self.host else f"[{self.host}]"
        place = host if self.port == 80 else f"{host}:{self.port}"
        target = f"http://{place}{self.target}" if upstream else self.target
        named = {name for name, _ in self.headers}
        wanted = named - CONNECTION_HEADERS if all_headers else FORWARDED_HEADERS
        kept = [f"{name}: {value}" for name, value in self.headers if name in wanted]
        if upstream and upstream.authorization:
            kept.append(f"proxy-authorization: {upstream.authorization}")
        lines = [f"{self.method} {target} HTTP/1.1", f"host: {place}", "connection: close", *kept, "", ""]
        return "\r\n".join(lines).encode("ascii")


def parse_address(method: str, address: str) -> tuple[str, int, str]:
    """Return the host, the port and the path of a request. Raises RefusedError."""
    try:
        parts = urlsplit(f"//{address}" if method == "CONNECT" else address)
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        raise RefusedError("the address is malformed") from None
    if not HOST.fullmatch(host) or "@" in parts.netloc:
        raise RefusedError("the address has no proper host, or a user name")
    if method == "CONNECT":
        if port is None or parts.path or parts.query:
            raise RefusedError("the address of a tunnel is HOST:PORT")
        return host, port, ""
    if parts.scheme != "http":
        raise RefusedError("plain requests have addresses with http://")
    return host, port or 80, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Read the head of a request. Returns it, and what follows it. Raises RefusedError if it is too long or cut off."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            raise RefusedError("the request is too long")
        more = client.recv(4096)
        if not more:
            raise RefusedError("the request is cut off")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def bind(listener: socket.socket, path: Path) -> None:
    """Bind a socket to a path of any length: the kernel takes 107 bytes at most. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        in_folder = f"/proc/self/fd/{folder}/{path.name}"
        listener.bind(str(path) if len(os.fsencode(path)) <= MAX_SOCKET_PATH else in_folder)
    finally:
        os.close(folder)


def refuse(client: socket.socket, status: str, reason: str) -> None:
    body = f"{reason}\n".encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    with suppress(OSError):
        client.sendall(head.encode() + body)


# --- connections ------------------------------------------------------------------------------------------------------


def is_in(networks: Networks, address: str) -> bool:
    """Whether an address, with or without a zone, is in one of these networks in any notation."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks if network.version == found.version)


def refusal_of(which: str, address: str) -> RefusedError:
    if is_in(MACHINE_NETWORKS, address):
        return RefusedError(f"{which} one of the node itself, not of another machine", "internal")
    return RefusedError(f"{which} one of an internal network", "internal")


def check_literal(host: str, refused: Networks) -> None:
    """Refuse such an address that is written as the host. The machine's proxy resolves names."""
    with suppress(ValueError):
        if is_in(refused, host):
            raise refusal_of(f"{host} is", host)


def connect_checked(host: str, port: int, refused: Networks) -> socket.socket:
    """Connect to an address that was checked, not to a name that may have changed since. Raises RefusedError or OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [each for each in found if not is_in(refused, str(each[4][0]))]
    if not addresses:
        raise refusal_of(f"its address, {found[0][4][0]}, is", str(found[0][4][0]))
    error = OSError("no address")
    for family, kind, protocol, _, address in addresses:
        server = socket.socket(family, kind, protocol)
        server.settimeout(CONNECT_SECONDS)
        try:
            server.connect(address)
            return server
        except OSError as failed:
            server.close()
            error = failed
    raise error
