"""The live connection of a page: it hints that something changed, and the page fetches the parts that show it.

A hint has no content: the rows are the truth, and each part checks again what its reader may see. ``?topics=lab,job-5``
names what the page shows; a message is ``{"changed": ["lab"]}``. A lost notification costs at most the ``seconds`` of its
topic. A message at least every ``HEARTBEAT_SECONDS`` shows the page that it is still connected.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import parse_qs

from channels.db import database_sync_to_async

from portal.accounts.models import User
from portal.live.topics import Topic, may_watch, topics_of
from portal.sockets import (
    BROKEN,
    FORBIDDEN,
    INVALID_MESSAGE,
    MAX_MESSAGE_CHARACTERS,
    SIGNED_OUT,
    TOO_BIG,
    CountedConsumer,
    user_of_session,
)
from portal.wake import NotificationHub, user_channel

logger = logging.getLogger(__name__)

ACCESS_CHECK_SECONDS = 15
HEARTBEAT_SECONDS = 15
MIN_SECONDS_BETWEEN = 1.0
SECONDS_PER_PAGE = 0.1
"""With many pages on a topic, each is hinted at less often, so that together they fetch at most ten times a second."""
MAX_SOCKETS = 30
"""The maximum number of pages of a user in this process."""


class Watch:
    """One topic of a page, and when the page is to be hinted at it."""

    def __init__(self, topic: Topic, notified: asyncio.Event) -> None:
        self.topic = topic
        self.notified = notified
        self.hinted_at = time.monotonic()
        self.seconds = topic.kind.seconds
        self.pause = 0.0
        """The first notification is passed on at once."""

    @property
    def due_at(self) -> float:
        return self.hinted_at + (self.pause if self.notified.is_set() else max(self.seconds, self.pause))

    def record_hint(self, pages: int) -> None:
        """Record that the page was hinted at the topic, which so many pages watch."""
        self.notified.clear()
        self.hinted_at = time.monotonic()
        self.pause = max(MIN_SECONDS_BETWEEN, SECONDS_PER_PAGE * pages)


class PageConsumer(CountedConsumer):
    pages: ClassVar[Counter[tuple[str, ...]]] = Counter()
    """How many topics of open pages of this process have these channels."""
    topics: Sequence[Topic] = ()
    watches: Sequence[Watch] = ()

    async def connect(self) -> None:
        names = parse_qs(self.scope["query_string"].decode("latin-1")).get("topics", [""])[-1]
        user = await self._admit(names)
        if user is None:
            await self.close()  # before accepting: the response to the handshake is 403, whatever the reason
            return
        hub = NotificationHub.current()
        self.watches = [
            Watch(each, self.subscription.enter_context(hub.subscribe(*each.channels))) for each in self.topics
        ]
        self.signed_out = self.subscription.enter_context(hub.subscribe(user_channel(user.pk)))
        for topic in self.topics:
            self.pages[topic.channels] += 1
        self.subscription.callback(self._forget_page)
        await self.accept_counted(user, MAX_SOCKETS, self._run())

    @database_sync_to_async
    def _admit(self, names: str) -> User | None:
        """Return the user if the page may watch what it names, and note the topics."""
        user = user_of_session(self.scope)
        if user is None:
            return None
        try:
            self.topics = topics_of(names, user)
        except ValueError:
            return None
        return user if may_watch(user, self.topics) else None

    def _forget_page(self) -> None:
        for topic in self.topics:
            self.pages[topic.channels] -= 1
            if not self.pages[topic.channels]:
                del self.pages[topic.channels]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Refuse every message: pages send none."""
        too_big = len(text_data or bytes_data or "") > MAX_MESSAGE_CHARACTERS
        await self.close(TOO_BIG if too_big else INVALID_MESSAGE)

    async def _run(self) -> None:
        try:
            await self.close(await self._hint_until_refused())
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("a page could not be kept up to date")  # it connects again
            await self.close(BROKEN)

    async def _hint_until_refused(self) -> int:
        """Hint at what changes; return the code to close with once the reader is signed out or may not see it any more."""
        sent_at = checked_at = time.monotonic()
        while True:
            await self._wait(min(sent_at + HEARTBEAT_SECONDS, checked_at + ACCESS_CHECK_SECONDS))
            now = time.monotonic()
            due = [watch for watch in self.watches if now >= watch.due_at]
            if due or self.signed_out.is_set() or now - checked_at >= ACCESS_CHECK_SECONDS:
                self.signed_out.clear()
                checked_at = now
                code: int | None = await self._code_of_refusal()
                if code is not None:
                    return code
            if due or now - sent_at >= HEARTBEAT_SECONDS:
                for watch in due:
                    watch.record_hint(self.pages[watch.topic.channels])
                await self.send(text_data=json.dumps({"changed": [watch.topic.name for watch in due]}))
                sent_at = time.monotonic()

    @database_sync_to_async
    def _code_of_refusal(self) -> int | None:
        user = user_of_session(self.scope)
        if user is None:
            return SIGNED_OUT
        return None if may_watch(user, self.topics) else FORBIDDEN

    async def _wait(self, until: float) -> None:
        """Wait until a topic is due or notified, or the reader may have signed out."""
        until = min(until, *(watch.due_at for watch in self.watches))
        events = [self.signed_out, *(watch.notified for watch in self.watches if not watch.notified.is_set())]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            timeout = max(0.0, until - time.monotonic())
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
