"""The websocket routes. A new route needs a row in tests/laws/route_matrix.py."""

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import re_path

from portal.jobs.routing import websocket_urlpatterns as of_jobs
from portal.live.consumers import PageConsumer


class RefusingConsumer(AsyncWebsocketConsumer):
    """Refuses sockets to any other address in the handshake."""

    async def connect(self) -> None:
        await self.close()
        raise StopConsumer


websocket_urlpatterns = [
    *of_jobs,
    re_path(r"^ws/page/$", PageConsumer.as_asgi()),
    re_path(r"", RefusingConsumer.as_asgi()),
]
