"""The ASGI applications: one for everything, one for the nodes alone."""

import asyncio
import gc
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import parse_cookie

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
http = get_asgi_application()

# models can be imported only now
from portal import callers  # noqa: E402
from portal.agents.asgi import AgentDoor  # noqa: E402
from portal.jobs.routing import websocket_urlpatterns  # noqa: E402
from portal.serving import NODES_PATH  # noqa: E402

USER = "user "
"""Begins the name of a client whose user is known; behind an address there may be many."""


class AtMost:
    """Lets so many requests in at once, ``of_one`` client's at most; others wait their turn.

    Each has a thread and a connection to the database of its own, and of those a database has a limited number. A
    response that is streamed gives its place back, so that readers who take their time keep no page waiting; of those
    there are at most twice as many.
    """

    def __init__(self, inner: Any, count: int, of_one: int | None = None) -> None:
        self.inner = inner
        self.places = asyncio.Semaphore(count)
        self.clients = Clients(of_one or count)
        self.downloads = 0
        self.max_downloads = 2 * count

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        async with self.clients.turn(client_of(scope)) as turn:
            await self.places.acquire()
            answer = _Answer(self, turn, send)
            try:
                await self.inner(scope, receive, answer.send)
            except TooManyDownloadsError:
                text = b"Too many downloads are under way. Try again in a minute.\n"
                await _refuse(send, 503, text, (b"Retry-After", b"60"))
            finally:
                answer.end()


class Turn:
    """Of one request among those of its client."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_held = True

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.release()


class Clients:
    """Each has ``count`` requests under way at most: one that asks costly things without end leaves places to others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[Turn]:
        places = self._places.setdefault(client, asyncio.Semaphore(self._count))
        await places.acquire()
        turn = Turn(places)
        try:
            yield turn
        finally:
            turn.end()


def client_of(scope: dict[str, Any]) -> str:
    """Who asks: the user whose token or session has been seen before, else an address. What is made up counts as an address."""
    headers = dict(scope.get("headers", ()))
    _, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scope.get("path", "").startswith(NODES_PATH):
        return f"node {token.strip()}"  # many may share an address, and what has no node's token is refused at once
    session = parse_cookie(headers.get(b"cookie", b"").decode("latin-1")).get(settings.SESSION_COOKIE_NAME, "")
    users = (callers.known.user_of(secret) for secret in (session, token.strip()) if secret)
    user = next((user for user in users if user is not None), None)
    return f"{USER}{user}" if user is not None else str((scope.get("client") or [""])[0])


async def _refuse(send: Any, status: int, text: bytes, header: tuple[bytes, bytes]) -> None:
    """Answer with a sentence, without Django."""
    headers = [(b"Content-Type", b"text/plain; charset=utf-8"), header]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class TooManyDownloadsError(Exception):
    """Ends a response before its first byte."""


class _Answer:
    """What one request holds: a place and its client's turn, until its response is streamed, and then a download."""

    def __init__(self, limit: AtMost, turn: Turn, send: Any) -> None:
        self._limit, self._turn, self._send = limit, turn, send
        self._start: dict[str, Any] | None = None
        self._streams = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # the first piece shows whether it is streamed
            return
        if message.get("more_body") and not self._streams:
            if self._limit.downloads >= self._limit.max_downloads:
                raise TooManyDownloadsError
            self._streams = True
            self._limit.downloads += 1
            self._limit.places.release()
            self._turn.end()
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        await self._send(message)

    def end(self) -> None:
        if self._streams:
            self._limit.downloads -= 1
        else:
            self._limit.places.release()


class SameOrigin:
    """Refuses sockets that a page of another origin opens with our user's cookie, other ports and schemes included.

    The name alone, which AllowedHostsOriginValidator compares, is not enough on a machine where others run servers.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        ours = f"{'https' if settings.HTTPS else 'http'}://{host}"
        allowed = {ours, *settings.CSRF_TRUSTED_ORIGINS}
        if host and _normal(origin) in {_normal(each) for each in allowed}:
            return await self.inner(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def _normal(origin: str) -> tuple[str, str]:
    parts = urlsplit(origin)
    return parts.scheme, parts.netloc.lower()


class NodesOnly:
    """Refuses whatever is not for nodes: what people ask must not delay them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"].startswith(NODES_PATH):
            await self.inner(scope, receive, send)
        else:
            text = b"This process answers nodes only. Load the page again.\n"
            await _refuse(send, 421, text, (b"Connection", b"close"))


class Lanes:
    """Uploads wait for one another, not in the places of pages: unpacking takes up to a minute.

    One user's changes are made one after another. SQLite has one writer at a time and no queue: a user who writes over
    twenty connections would keep nodes waiting.
    """

    UPLOADS = re.compile(r"(/api/v1)?/projects/\d+/code/?")
    UPLOADS_AT_ONCE = 6
    READS = frozenset({"GET", "HEAD", "OPTIONS"})

    def __init__(self, inner: Any, count: int) -> None:
        self.pages = AtMost(inner, count, max(2, count // 8))
        self.uploads = AtMost(inner, self.UPLOADS_AT_ONCE, 2)
        self.changes = Clients(1)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        client = client_of(scope)
        if scope["method"] == "POST" and self.UPLOADS.fullmatch(scope["path"]):
            await self.uploads(scope, receive, send)
        elif scope["method"] in self.READS or not client.startswith(USER):
            await self.pages(scope, receive, send)
        else:
            async with self.changes.turn(client):
                await self.pages(scope, receive, send)


http_application = AgentDoor(Lanes(http, settings.REQUESTS_AT_ONCE))

application = ProtocolTypeRouter(
    {
        "http": http_application,
        "websocket": AllowedHostsOriginValidator(SameOrigin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)

nodes_application = ProtocolTypeRouter({"http": NodesOnly(http_application), "websocket": WebsocketDenier()})
"""For the process that answers nodes (``portal.serving``)."""

# What was imported stays: to look through it for rubbish again and again took about a thirtieth of the process's time.
gc.collect()
gc.freeze()
