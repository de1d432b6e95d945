"""The ASGI applications: one for all requests, one for the nodes only."""

import asyncio
import gc
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from channels.sessions import SessionMiddlewareStack
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import parse_cookie

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
http = get_asgi_application()

# models can be imported only now
from portal import callers  # noqa: E402
from portal.agents.asgi import AgentFastPath  # noqa: E402
from portal.routing import websocket_urlpatterns  # noqa: E402
from portal.serving import NODES_PATH  # noqa: E402

USER_PREFIX = "user "
"""Prefix of a client whose user is known. Other clients are named by address, which several may share."""


class ConcurrencyLimit:
    """Handles at most ``count`` requests at the same time, and ``per_client`` of one client; others wait.

    Each request has its own thread and database connection, and a database allows a limited number of connections. A
    streamed response frees its slot, so that slow readers keep no page waiting; there are at most ``2 * count`` of these.
    """

    def __init__(self, inner: Any, count: int, per_client: int | None = None) -> None:
        self.inner = inner
        self.slots = asyncio.Semaphore(count)
        self.clients = ClientLimit(per_client or count)
        self.downloads = 0
        self.max_downloads = 2 * count

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        async with self.clients.slot(client_of(scope)) as client_slot:
            await self.slots.acquire()
            response = _Response(self, client_slot, send)
            try:
                await self.inner(scope, receive, response.send)
            except TooManyDownloadsError:
                text = b"Too many downloads are in progress. Try again in a minute.\n"
                await _refuse(send, 503, text, (b"Retry-After", b"60"))
            finally:
                response.release()


class ClientSlot:
    """The slot that one request holds within the limit of its client."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release()


class ClientLimit:
    """Handles at most ``count`` requests of each client at the same time, so that no client occupies all slots."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[ClientSlot]:
        slots = self._slots.setdefault(client, asyncio.Semaphore(self._count))
        await slots.acquire()
        slot = ClientSlot(slots)
        try:
            yield slot
        finally:
            slot.release()


def client_of(scope: dict[str, Any]) -> str:
    """Name the client: the user whose token or session this process has seen before, otherwise the address.

    A token or session that was made up does not make another client of its address.
    """
    headers = dict(scope.get("headers", ()))
    _, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scope.get("path", "").startswith(NODES_PATH):
        return f"node {token.strip()}"  # nodes may share an address; a token that is no node's is refused at once
    session = parse_cookie(headers.get(b"cookie", b"").decode("latin-1")).get(settings.SESSION_COOKIE_NAME, "")
    users = (callers.known_callers.user_of(secret) for secret in (session, token.strip()) if secret)
    user = next((user for user in users if user is not None), None)
    return f"{USER_PREFIX}{user}" if user is not None else str((scope.get("client") or [""])[0])


async def _refuse(send: Any, status: int, text: bytes, header: tuple[bytes, bytes]) -> None:
    """Send a refusal with a sentence, without Django."""
    headers = [(b"Content-Type", b"text/plain; charset=utf-8"), header]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class TooManyDownloadsError(Exception):
    """Raised before the first byte of a streamed response when too many are in progress."""


class _Response:
    """The response to one request. It holds a slot and one of its client; once it is streamed, only a download."""

    def __init__(self, limit: ConcurrencyLimit, client_slot: ClientSlot, send: Any) -> None:
        self._limit, self._client_slot, self._send = limit, client_slot, send
        self._start: dict[str, Any] | None = None
        self._streams = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # the first part of the body shows whether it is streamed
            return
        if message.get("more_body") and not self._streams:
            if self._limit.downloads >= self._limit.max_downloads:
                raise TooManyDownloadsError
            self._streams = True
            self._limit.downloads += 1
            self._limit.slots.release()
            self._client_slot.release()
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        await self._send(message)

    def release(self) -> None:
        if self._streams:
            self._limit.downloads -= 1
        else:
            self._limit.slots.release()


class SameOrigin:
    """Refuses WebSockets that a page of another origin opens with our user's cookie; another port or scheme counts too.

    AllowedHostsOriginValidator compares host names only. That is not enough on a machine where others run servers.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        ours = f"{'https' if settings.HTTPS else 'http'}://{host}"
        allowed = {ours, *settings.CSRF_TRUSTED_ORIGINS}
        if host and _split_origin(origin) in {_split_origin(each) for each in allowed}:
            return await self.inner(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def _split_origin(origin: str) -> tuple[str, str]:
    parts = urlsplit(origin)
    return parts.scheme, parts.netloc.lower()


class NodesOnly:
    """Refuses all requests except those of nodes, which the requests of users must not delay."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"].startswith(NODES_PATH):
            await self.inner(scope, receive, send)
        else:
            text = b"This process answers nodes only. Load the page again.\n"
            await _refuse(send, 421, text, (b"Connection", b"close"))


class RequestLimits:
    """Separate limits for uploads and pages: unpacking an upload takes up to a minute and must not occupy a page's slot.

    Requests of one user that change something run one after another. SQLite has one writer at a time and no queue: a
    user who writes over twenty connections would keep nodes waiting.
    """

    UPLOADS = re.compile(r"(/api/v1)?/projects/\d+/code/?")
    PIECES = re.compile(r"/api/v1/(uploads/|datasets/\d+/versions/\d+/uploads/).*", re.DOTALL)
    """Writing a piece of a dataset to a slow disk takes seconds, and must not keep other changes of its sender waiting."""
    MAX_UPLOADS = 6
    READS = frozenset({"GET", "HEAD", "OPTIONS"})

    def __init__(self, inner: Any, count: int) -> None:
        self.pages = ConcurrencyLimit(inner, count, max(2, count // 8))
        self.uploads = ConcurrencyLimit(inner, self.MAX_UPLOADS, 2)
        self.pieces = ConcurrencyLimit(inner, self.MAX_UPLOADS, 2)
        self.changes = ClientLimit(1)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        client = client_of(scope)
        if scope["method"] == "POST" and self.UPLOADS.fullmatch(scope["path"]):
            await self.uploads(scope, receive, send)
        elif scope["method"] in ("PATCH", "POST") and self.PIECES.fullmatch(scope["path"]):
            await self.pieces(scope, receive, send)
        elif scope["method"] in self.READS or not client.startswith(USER_PREFIX):
            await self.pages(scope, receive, send)
        else:
            async with self.changes.slot(client):
                await self.pages(scope, receive, send)


http_application = AgentFastPath(RequestLimits(http, settings.REQUESTS_AT_ONCE))

application = ProtocolTypeRouter(
    {
        "http": http_application,
        # consumers look up the user, when a socket opens and again and again: user_of_session
        "websocket": AllowedHostsOriginValidator(SameOrigin(SessionMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)

nodes_application = ProtocolTypeRouter({"http": NodesOnly(http_application), "websocket": WebsocketDenier()})
"""For the process that answers nodes (``portal.serving``)."""

# Imported objects live as long as the process. Frozen, the garbage collector skips them: scanning them again and again
# took about 3 % of the process's time.
gc.collect()
gc.freeze()
