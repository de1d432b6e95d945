"""The door for HTTP and WebSockets."""

import asyncio
import gc
import os
from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
http = get_asgi_application()

# models can be imported only now
from portal.control.agent_door import AgentDoor  # noqa: E402
from portal.jobs.routing import websocket_urlpatterns  # noqa: E402


class AtMost:
    """Lets so many requests in at once; others wait their turn.

    Each has a thread and a connection to the database of its own, and of those a database has a limited number.
    """

    def __init__(self, inner: Any, count: int) -> None:
        self.inner = inner
        self.places = asyncio.Semaphore(count)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        async with self.places:
            await self.inner(scope, receive, send)


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


application = ProtocolTypeRouter(
    {
        "http": AgentDoor(AtMost(http, settings.REQUESTS_AT_ONCE)),
        "websocket": AllowedHostsOriginValidator(SameOrigin(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))),
    }
)

# What was imported stays: to look through it for rubbish again and again took about a thirtieth of the process's time.
gc.collect()
gc.freeze()
