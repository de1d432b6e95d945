"""The way in for agents, beside the one for people: what hundreds of nodes say every few seconds is answered here.

Django's handler and its middleware take most of the time of so short an answer, and do nothing for a program that has
no cookie and shows no page. So the views of ``agents`` that are asked most are called directly, in threads that keep
their connection. Whatever else an agent sends (code, outputs, checkpoints) goes by Django's handler, as pages do.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.exception import response_for_exception
from django.http import HttpResponse
from django.urls import Resolver404, URLResolver
from django.urls.resolvers import RegexPattern

from portal.agents import views
from portal.agents.urls import urlpatterns
from portal.middleware import nul_refusal
from portal.threads import KeptThreads

PREFIX = "/agent/v1/"
SHORT = {f"{PREFIX}sync": views.sync, f"{PREFIX}wait": views.wait}
VIEWS = (views.sync, views.wait, views.new_token, views.append_log)
reports = KeptThreads("agents' reports", 4)
"""A report answered late renews no lease: nothing slow may be before it."""
pieces = KeptThreads("agents' logs", 8)
HEADERS = [
    (b"Content-Security-Policy", b"default-src 'none'; sandbox"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Referrer-Policy", b"same-origin"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
]
"""Of every answer, should a browser ever see it (tests/laws/test_headers.py)."""

_routes = URLResolver(RegexPattern(r"^/"), urlpatterns)


class Gone(Exception):  # noqa: N818
    """Whoever asked has left."""


class AgentDoor:
    """An ASGI application before another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"]
        if not path.startswith(PREFIX) or settings.SECURE_SSL_REDIRECT:
            await self.inner(scope, receive, send)
            return
        view, named = SHORT.get(path), {}
        if view is None:
            with suppress(Resolver404):
                view, _, named = _routes.resolve(path)
        if view not in VIEWS:
            await self.inner(scope, receive, send)
            return
        with suppress(Gone):
            response = await _answer(scope, receive, view, named)
            await send({"type": "http.response.start", "status": response.status_code, "headers": _headers(response)})
            await send({"type": "http.response.body", "body": response.content})


async def _answer(scope: dict[str, Any], receive: Any, view: Any, named: dict[str, Any]) -> HttpResponse:
    try:
        request = ASGIRequest(scope, BytesIO(await _body(receive)))
        request.get_host()  # refuses hosts that are not ours, as for pages
        if refusal := nul_refusal(request):
            return refusal
        if view is views.wait:
            return await _while_there(views.wait(request, reports), receive)
        return await (pieces if view is views.append_log else reports)(view)(request, **named)
    except Gone:
        raise
    except UnicodeDecodeError:
        return views.AgentError(400, "invalid", "The address is no text.").response()
    except Exception as error:  # noqa: BLE001  Django's last word for whatever went wrong in a view
        return response_for_exception(request, error)


async def _body(receive: Any) -> bytes:
    """Cut behind what any view takes."""
    body = bytearray()
    while len(body) <= views.MAX_SYNC_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


async def _while_there(answer: Coroutine[Any, Any, HttpResponse], receive: Any) -> HttpResponse:
    """Nobody is waited for who has left."""
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Gone
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


def _headers(response: HttpResponse) -> list[tuple[bytes, bytes]]:
    said = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    return [*said, (b"Content-Length", b"%d" % len(response.content)), *HEADERS]
