"""The fast path for agents: answers the reports that hundreds of nodes send every few seconds.

Django's handler and its middleware would take most of the time of such a short response, and do nothing for a program
that has no cookie and shows no page. The most frequent views of ``agents`` are therefore called directly, in threads
that keep their database connection. All other requests of agents (code, outputs, checkpoints) go through Django's
handler, as pages do.
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
from portal.threads import DatabaseThreadPool

PREFIX = "/agent/v1/"
EXACT_PATHS = {f"{PREFIX}sync": views.sync, f"{PREFIX}wait": views.wait}
FAST_VIEWS = (views.sync, views.wait, views.new_token, views.append_log)
report_threads = DatabaseThreadPool("agents' reports", 4)
"""For reports only: one that is answered late renews no lease, so nothing slow may be queued before it."""
log_threads = DatabaseThreadPool("agents' logs", 8)
SECURITY_HEADERS = [
    (b"Content-Security-Policy", b"default-src 'none'; sandbox"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Referrer-Policy", b"same-origin"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
]
"""Sent with every response, in case a browser ever shows it (tests/laws/test_headers.py)."""

_routes = URLResolver(RegexPattern(r"^/"), urlpatterns)


class ClientDisconnectedError(Exception):
    """The client closed its connection before it got a response."""


class AgentFastPath:
    """An ASGI application that answers agents' frequent requests and passes all others to ``inner``."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"]
        if not path.startswith(PREFIX) or settings.SECURE_SSL_REDIRECT:
            await self.inner(scope, receive, send)
            return
        view, named = EXACT_PATHS.get(path), {}
        if view is None:
            with suppress(Resolver404):
                view, _, named = _routes.resolve(path)
        if view not in FAST_VIEWS:
            await self.inner(scope, receive, send)
            return
        with suppress(ClientDisconnectedError):
            response = await _response(scope, receive, view, named)
            await send({"type": "http.response.start", "status": response.status_code, "headers": _headers(response)})
            await send({"type": "http.response.body", "body": response.content})


async def _response(scope: dict[str, Any], receive: Any, view: Any, named: dict[str, Any]) -> HttpResponse:
    try:
        request = ASGIRequest(scope, BytesIO(await _read_body(receive)))
        request.get_host()  # refuses hosts that are not ours, as for pages
        if refusal := nul_refusal(request):
            return refusal
        if view is views.wait:
            return await _respond_while_connected(views.wait(request, report_threads), receive)
        threads = log_threads if view is views.append_log else report_threads
        response: HttpResponse = await threads(view)(request, **named)
        return response
    except ClientDisconnectedError:
        raise
    except UnicodeDecodeError:
        return views.AgentError(400, "invalid", "The address is not valid text.").response()
    except Exception as error:  # noqa: BLE001  as Django's handler does for any error of a view
        return response_for_exception(request, error)


async def _read_body(receive: Any) -> bytes:
    """Read the body, no further than the largest that any view accepts."""
    body = bytearray()
    while len(body) <= views.MAX_SYNC_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


async def _respond_while_connected(response: Coroutine[Any, Any, HttpResponse], receive: Any) -> HttpResponse:
    """Wait for a response; stop when the client disconnects."""
    responding, disconnecting = asyncio.ensure_future(response), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({responding, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not responding.done():
            raise ClientDisconnectedError
        return responding.result()
    finally:
        responding.cancel()
        disconnecting.cancel()


def _headers(response: HttpResponse) -> list[tuple[bytes, bytes]]:
    of_view = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    return [*of_view, (b"Content-Length", b"%d" % len(response.content)), *SECURITY_HEADERS]
