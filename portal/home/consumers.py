"""The live connection of a page: it hints that something changed, and the page fetches the parts that show it.

A hint has no content: the rows are the truth, and each part checks again what its reader may see. ``?topics=lab,mine``
names what the page shows; a message is ``{"changed": ["lab"]}``. A lost notification costs at most ``TIMER_SECONDS``.
"""

import asyncio
import json
import logging
import time
from urllib.parse import parse_qs

from portal.accounts.models import User
from portal.sockets import (
    BROKEN,
    INVALID_MESSAGE,
    MAX_MESSAGE_CHARACTERS,
    SIGNED_OUT,
    TOO_BIG,
    CountedConsumer,
    user_of_session,
)
from portal.wake import LAB, SCHEDULER, NotificationHub, user_channel

logger = logging.getLogger(__name__)

TIMER_SECONDS = 30
"""Readings, forecasts and times change without a notification: so often, everything is hinted at."""
ACCESS_CHECK_SECONDS = 15
MIN_SECONDS_BETWEEN = 1.0
SECONDS_PER_SOCKET = 0.1
"""With many open pages, each is hinted at less often, so that together they fetch at most ten times a second."""
MAX_SOCKETS = 30
"""The maximum number of pages of a user in this process."""


def channels_of(topic: str, user: User) -> list[str]:
    """Return the channels whose notifications mean that a topic has changed."""
    return {"lab": [LAB, SCHEDULER], "mine": [user_channel(user.pk)]}[topic]


TOPICS = ("lab", "mine")
"""What a page may watch: the machines and the queue, and the jobs of its reader."""


class PageConsumer(CountedConsumer):
    async def connect(self) -> None:
        topics = parse_qs(self.scope["query_string"].decode("latin-1")).get("topics", [""])[-1].split(",")
        user = await user_of_session(self.scope)
        if user is None or not set(topics) <= set(TOPICS):
            await self.close()  # before accepting: the response to the handshake is 403
            return
        hub = NotificationHub.current()
        self.events = {
            topic: [self.subscription.enter_context(hub.subscribe(each)) for each in channels_of(topic, user)]
            for topic in topics
        }
        self.signed_out = self.subscription.enter_context(hub.subscribe(user_channel(user.pk)))
        await self.accept_counted(user, MAX_SOCKETS, self._run())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Refuse every message: pages send none."""
        too_big = len(text_data or bytes_data or "") > MAX_MESSAGE_CHARACTERS
        await self.close(TOO_BIG if too_big else INVALID_MESSAGE)

    async def _run(self) -> None:
        try:
            await self._hint_until_signed_out()
            await self.close(SIGNED_OUT)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a page could not be kept up to date")  # it connects again
            await self.close(BROKEN)

    async def _hint_until_signed_out(self) -> None:
        hinted_at = checked_at = time.monotonic()
        while True:
            await self._wait_for_notification(min(TIMER_SECONDS, ACCESS_CHECK_SECONDS))
            now = time.monotonic()
            changed = self._changed_topics()
            if not changed and now - hinted_at >= TIMER_SECONDS:
                changed = list(self.events)
            if changed or self.signed_out.is_set() or now - checked_at >= ACCESS_CHECK_SECONDS:
                self.signed_out.clear()
                checked_at = now
                if await user_of_session(self.scope) is None:
                    return
            if changed:
                await self.send(text_data=json.dumps({"changed": changed}))
                hinted_at = time.monotonic()
                await asyncio.sleep(self._pause())

    async def _wait_for_notification(self, seconds: float) -> None:
        events = [self.signed_out, *(event for several in self.events.values() for event in several)]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _changed_topics(self) -> list[str]:
        changed = []
        for topic, several in self.events.items():
            if any(event.is_set() for event in several):
                changed.append(topic)
            for event in several:
                event.clear()
        return changed

    def _pause(self) -> float:
        return max(MIN_SECONDS_BETWEEN, SECONDS_PER_SOCKET * self.open_sockets.total())
