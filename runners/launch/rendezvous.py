"""The driver's HTTP server: the store through which ranks find each other, and the channel to the supervisors.

Horovod's own rendezvous accepts pickles from anyone (CVE-2024-10190). This one understands the same requests, but each must
have the attempt's signature, only known scopes and keys exist, bodies are bounded, and values are opaque bytes or JSON.
Nothing here can unpickle.

    GET PUT DELETE  /global/<rank>  /local_<host>/<rank>  /cross_<n>/<rank>   Gloo's store
    GET             /rank_and_size/<host>:<slot>[:<request>]  elastic: a rank's new place; waits for the others
    GET             /first_place/<host>:<slot>                elastic: the variables of a new rank, JSON; waits for its group
    GET             /hosts_updated/<host>:<slot>:<seen>       elastic: waits for updates about hosts, JSON
    GET             /went_on/<host>:<slot>:<milliseconds>     elastic: a rank reports what a change cost it
    POST            /ring/poll, /ring/exit                    supervisors, JSON

401: no valid signature. 403: no such scope or key. 404: nothing there (yet). 413: too large.
"""

import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runners.launch import signing

BODY_LIMIT_BYTES = 1024 * 1024
STORE_LIMIT_BYTES = 64 * 1024 * 1024
SOCKET_SECONDS = 30.0
"""A peer that sends nothing for this time is disconnected."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}"
STORE_SCOPE = re.compile(rf"(global|local_{_NAME}|cross_\d{{1,6}})(_process_set_hash_[0-9a-f]{{1,16}})?\Z")
STORE_KEY = re.compile(r"(rank_)?\d{1,6}\Z")
SLOT_KEY = re.compile(rf"({_NAME}):(\d{{1,6}})(:[0-9a-f]{{1,32}})?\Z")
NUMBERED_SLOT_KEY = re.compile(rf"({_NAME}):(\d{{1,6}}):(\d{{1,12}})\Z")
RANK_AND_SIZE = "rank_and_size"
FIRST_PLACE = "first_place"
HOSTS_UPDATED = "hosts_updated"
RESUMED = "went_on"


def is_allowed_for_ranks(method: str, scope: str, key: str) -> bool:
    """Whether a rank may send this request; the forwarder refuses all others."""
    if method == "GET" and scope in (RANK_AND_SIZE, FIRST_PLACE):
        return SLOT_KEY.match(key) is not None
    if method == "GET" and scope in (HOSTS_UPDATED, RESUMED):
        return NUMBERED_SLOT_KEY.match(key) is not None
    in_store = STORE_SCOPE.match(scope) is not None and STORE_KEY.match(key) is not None
    return in_store and method in {"GET", "PUT", "DELETE"}


def split_path(path: str) -> tuple[str, str]:
    """Split ``/scope/key``; returns two empty strings for anything else."""
    parts = path.split("/")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "" else ("", "")


class RefusedError(Exception):
    """The request is answered with this status."""

    def __init__(self, status: int, sentence: str = "") -> None:
        super().__init__(sentence)
        self.status = status


class Store:
    """Gloo's keys by scope, bounded in bytes."""

    def __init__(self) -> None:
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._scopes.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            values = self._scopes.get(scope, {})
            size = self._size - len(values.get(key, b"")) + len(value)
            if size > STORE_LIMIT_BYTES:
                raise RefusedError(413, "the store is full")
            self._scopes.setdefault(scope, values)[key] = value
            self._size = size

    def delete(self, scope: str, key: str) -> None:
        """Delete a key and its ``rank_<key>``. A rank deletes its key when all ranks have connected."""
        with self._lock:
            values = self._scopes.get(scope, {})
            for gone in (key, f"rank_{key}"):
                self._size -= len(values.pop(gone, b""))
            if not values:
                self._scopes.pop(scope, None)

    def clear(self) -> None:
        with self._lock:
            self._scopes.clear()
            self._size = 0


def _no_places(_host: str, _slot: int, _request: str) -> str:
    raise RefusedError(404, "this group does not change")


def _no_joining_ranks(_host: str, _slot: int) -> dict[str, str]:
    raise RefusedError(404, "no rank joins here")


def _no_host_updates(_host: str, _slot: int, _seen: int) -> dict[str, Any]:
    raise RefusedError(404, "this group does not change")


def _no_costs(_milliseconds: int) -> None:
    raise RefusedError(404, "this group does not change")


def _no_channel(_message: dict[str, Any]) -> dict[str, Any]:
    raise RefusedError(404, "no supervisors are expected")


@dataclass
class Routes:
    """The functions that answer requests. All may be called from many threads at once, and may block."""

    store: Store = field(default_factory=Store)
    place: Callable[[str, int, str], str] = _no_places
    """(host, slot, number of the request) -> "rank,size,local rank,local size,cross rank,cross size" """
    first_place: Callable[[str, int], dict[str, str]] = _no_joining_ranks
    """(host, slot) -> its variables"""
    host_updates: Callable[[str, int, int], dict[str, Any]] = _no_host_updates
    record_resume: Callable[[int], None] = _no_costs
    poll: Callable[[dict[str, Any]], dict[str, Any]] = _no_channel
    record_exit: Callable[[dict[str, Any]], dict[str, Any]] = _no_channel

    def answer(self, method: str, path: str, body: bytes) -> bytes:
        """Return the answer to a request. Raises RefusedError."""
        scope, key = split_path(path)
        if method == "POST":
            channel = {"/ring/poll": self.poll, "/ring/exit": self.record_exit}.get(path)
            if channel is None:
                raise RefusedError(403, "no such address")
            return json.dumps(channel(_parse_message(body))).encode()
        if not is_allowed_for_ranks(method, scope, key):
            raise RefusedError(403, "no such scope or key")
        if scope == RANK_AND_SIZE:
            host, slot, request = [*key.split(":"), ""][:3]
            return self.place(host, int(slot), request).encode()
        if scope == FIRST_PLACE:
            host, slot, *_ = key.split(":")
            return json.dumps(self.first_place(host, int(slot))).encode()
        if scope == HOSTS_UPDATED:
            host, slot, seen = key.rsplit(":", 2)
            return json.dumps(self.host_updates(host, int(slot), int(seen))).encode()
        if scope == RESUMED:
            self.record_resume(int(key.rsplit(":", 1)[1]))
            return b""
        if method == "PUT":
            self.store.put(scope, key, body)
            return b""
        if method == "DELETE":
            self.store.delete(scope, key)
            return b""
        value = self.store.get(scope, key)
        if value is None:
            raise RefusedError(404, "nothing there yet")
        return value


def _parse_message(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "not JSON") from error
    if not isinstance(message, dict):
        raise RefusedError(400, "not an object")
    return message


class BoundedHandler(BaseHTTPRequestHandler, ABC):
    """Reads a bounded body, passes the request to ``reply`` and writes its answer. Subclasses implement ``reply``."""

    timeout = SOCKET_SECONDS
    server_version = "schedulearn"
    sys_version = ""

    @abstractmethod
    def reply(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and content. Raises RefusedError."""

    def _serve(self) -> None:
        try:
            status, content = self.reply(self.command, self.path, self._read_body())
        except RefusedError as refused:
            status, content = refused.status, str(refused).encode()
        except Exception:  # whatever went wrong with one request, the training continues
            status, content = 500, b"the request could not be answered"
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            pass  # the client has gone

    def _read_body(self) -> bytes:
        text = self.headers.get("Content-Length") or "0"
        if not (text.isascii() and text.isdecimal()):
            raise RefusedError(400, "Content-Length must be a number")
        if len(text) > 9 or int(text) > BODY_LIMIT_BYTES:
            raise RefusedError(413, f"a body may have {BODY_LIMIT_BYTES} bytes")
        body = self.rfile.read(int(text))
        if len(body) != int(text):
            raise RefusedError(400, "the body is cut short")
        return body

    do_GET = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815 - the base class looks for these names

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests do not concern the user."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that disconnects: it does not concern the user."""


def serve(secret: str, routes: Routes, address: str, port: int) -> Server:
    """Start a server that answers in threads. Raises OSError when the port is taken."""

    class Handler(BoundedHandler):
        def reply(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            if not signing.verify(secret, self.headers.get(signing.HEADER), method, path, body):
                raise RefusedError(401, "the request is not signed by this attempt")
            return 200, routes.answer(method, path, body)

    server = Server((address, port), Handler)
    threading.Thread(target=server.serve_forever, name="rendezvous", daemon=True).start()
    return server
