"""What the WebSockets of the portal share: close codes, whose session a socket has, and how many a user has open."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import ExitStack
from importlib import import_module
from typing import Any, ClassVar

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from portal.accounts.models import User

SIGNED_OUT, FORBIDDEN, TOO_SLOW, TOO_MANY, TOO_BIG, INVALID_MESSAGE = 4401, 4403, 4408, 4429, 4413, 4400
BROKEN = 4500
"""Applications may only use 1000 and codes from 3000."""
MAX_MESSAGE_CHARACTERS = 4096


def user_of_session(scope: Any) -> User | None:
    """Return the user to whom the session of a socket belongs now; None once they are signed out or deactivated."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(scope["session"].session_key)
    user = get_user(request)
    return user if isinstance(user, User) and user.is_active else None


class CountedConsumer(AsyncWebsocketConsumer):
    """A consumer with a task that sends, of which a user has a limited number open. It ends all that at the end."""

    open_sockets: ClassVar[Counter[int]]
    """The number of open sockets of each user in this process, of this kind of consumer."""
    counted_for: int | None = None
    pump: asyncio.Task[None] | None = None
    subscription: ExitStack
    """Holds what the consumer has subscribed to."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.open_sockets = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the consumer and release its place at the end: ``disconnect`` is not called after an error."""
        self.subscription = ExitStack()
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()

    async def accept_counted(self, user: User, most: int, pump: Coroutine[Any, Any, None]) -> None:
        """Accept the socket and start its task; close it at once if the user has ``most`` open already."""
        await self.accept()
        if self.open_sockets[user.pk] >= most:
            pump.close()
            await self.close(TOO_MANY)
            return
        self.open_sockets[user.pk] += 1
        self.counted_for = user.pk
        self.pump = asyncio.create_task(pump)

    async def disconnect(self, code: int) -> None:
        self._release()

    def _release(self) -> None:
        self.subscription.close()
        if self.counted_for is not None:
            self.open_sockets[self.counted_for] -= 1
            if not self.open_sockets[self.counted_for]:
                del self.open_sockets[self.counted_for]
            self.counted_for = None
        if self.pump is not None:
            self.pump.cancel()
            self.pump = None
