"""The live log over a WebSocket.

The viewer sends its cursors, receives frames and acknowledges them. At most ``WINDOW_BYTES`` are not acknowledged:
otherwise the server, which has no back-pressure, would buffer without limit for a viewer that does not read. A
notification of ``portal.wake`` may be lost; a timer checks for new output anyway.

To the viewer, as text: ``{"type": "streams", "streams": [{"id", "label", "attempt", "size"}]}``, answered by
``{"type": "read", "cursors": {"<id>": offset}}`` (in several messages when "more" is true); ``{"type": "job", "state",
"changed"}`` when something about the job changed; ``{"type": "idle", "finished"}`` when the viewer has everything for
now, and at least every ``HEARTBEAT_SECONDS``; ``{"type": "end"}`` when there will be no more. As bytes: pieces, see ``feed.Piece``. From the viewer also ``{"type": "ack", "bytes": received so far}``.
"""

import asyncio
import json
import logging
import math
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from channels.db import database_sync_to_async
from django.db.models import Count
from django.utils import timezone

from portal.jobs import log_watchers
from portal.jobs.feed import Feed
from portal.jobs.log_rate_limit import Allowance
from portal.jobs.models import FINISHED_STATES, Job, LogStream
from portal.serving import TOO_FAST_CLOSE_CODE
from portal.sockets import (
    BROKEN,
    FORBIDDEN,
    INVALID_MESSAGE,
    MAX_MESSAGE_CHARACTERS,
    SIGNED_OUT,
    TOO_BIG,
    TOO_SLOW,
    CountedConsumer,
    user_of_session,
)
from portal.wake import NotificationHub, job_channel, log_channel

logger = logging.getLogger(__name__)

WINDOW_BYTES = 256 * 1024
ACK_SECONDS = 30
ACCESS_CHECK_SECONDS = 30
POLL_SECONDS = 2
HEARTBEAT_SECONDS = 15
"""A message at least so often shows the viewer that it is still connected."""
COALESCE_SECONDS = 0.03
"""Notifications within this time are handled together."""
MAX_SOCKETS = 20
"""The maximum number of sockets of a user in this process."""
LAST_OUTPUT_WAIT = timedelta(minutes=2)
"""How long the last bytes of a finished job are waited for: a lost node never closes its streams."""


class _CloseSocketError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class LogConsumer(CountedConsumer):
    reported_at = -math.inf
    """When the viewer was last sent that it has everything."""
    closing = False
    """The socket is being closed; messages that still arrive are ignored."""

    async def connect(self) -> None:
        self.job_id = int(self.scope["url_route"]["kwargs"]["job_id"])
        self.feed = Feed()
        self.cursors: dict[int, int] = {}
        self.checked_at = time.monotonic()
        self.sent = self.acked = 0
        self.allowance = Allowance()
        channels = job_channel(self.job_id), log_channel(self.job_id)
        self.notified = self.subscription.enter_context(NotificationHub.current().subscribe(*channels))
        self.room = asyncio.Event()
        self.cursors_received = False
        self.shown: dict[str, Any] = {}
        if await self._code_of_refusal() is not None:
            await self.close()  # before accepting: the response to the handshake is 403
            return
        await self.accept_counted(self.scope["user"], MAX_SOCKETS, self._run())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.closing:
            return
        if not self.allowance.accept():
            await self._close(TOO_FAST_CLOSE_CODE)
            return
        if len(text_data or bytes_data or "") > MAX_MESSAGE_CHARACTERS:
            await self._close(TOO_BIG)
            return
        try:
            self._handle_message(json.loads(text_data or ""))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            await self._close(INVALID_MESSAGE)

    async def _close(self, code: int) -> None:
        self.closing = True
        await self.close(code)

    def _handle_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "ack":
            # at most what was sent: a viewer cannot widen its window
            self.acked = max(self.acked, min(int(message["bytes"]), self.sent))
            self.room.set()
        elif message["type"] == "read":
            cursors = {int(stream): int(offset) for stream, offset in message["cursors"].items()}
            # only of known streams: a viewer cannot fill our memory with others
            self.cursors.update({stream: offset for stream, offset in cursors.items() if self.feed.has(stream)})
            if not message.get("more"):
                self.cursors_received = True
                self.notified.set()
        else:
            raise ValueError(message["type"])

    # --- the pump -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not await self._send_new_output():
                try:
                    await asyncio.wait_for(self.notified.wait(), POLL_SECONDS)
                    await asyncio.sleep(COALESCE_SECONDS)
                except TimeoutError:
                    pass
            await self._send_message({"type": "end"})
        except _CloseSocketError as reason:
            await self.close(reason.code)
        except asyncio.CancelledError:
            raise
        except Exception:
            # The viewer reconnects and continues from its cursors.
            logger.exception("the log of job %s could not be sent", self.job_id)
            await self.close(BROKEN)

    async def _send_new_output(self) -> bool:
        """Send all output that there is; return whether no more will come."""
        await self._check_access_again()
        self.notified.clear()
        job, rows = await self._read_rows()
        if self.feed.update(rows) or not self.shown:
            self.cursors_received = False
            await self._send_message({"type": "streams", "streams": self.feed.describe()})
        about = {"type": "job", "state": job.state, "changed": job.edition}
        if about != self.shown:
            self.shown = about
            await self._send_message(about)
        if not self.cursors_received:
            await self._await_cursors()
        self.feed.start(self.cursors)
        sent = False
        while piece := await asyncio.to_thread(self.feed.next):
            await self._await_room(len(piece.data))
            self.sent += len(piece.data)
            await self.send(bytes_data=piece.frame())
            self.allowance.record_sent()
            sent = True
            await self._check_access_again()
        finished = job.state in FINISHED_STATES
        if sent or time.monotonic() - self.reported_at >= HEARTBEAT_SECONDS:
            self.reported_at = time.monotonic()
            await self._send_message({"type": "idle", "finished": finished})
        late = job.finished_at is not None and timezone.now() - job.finished_at > LAST_OUTPUT_WAIT
        return finished and self.feed.is_caught_up and (self.feed.is_closed or late)

    async def _await_cursors(self) -> None:
        """Wait until the viewer has answered a list of streams with its cursors."""
        until = time.monotonic() + ACK_SECONDS
        while not self.cursors_received:
            self.notified.clear()
            try:
                await asyncio.wait_for(self.notified.wait(), until - time.monotonic())
            except TimeoutError:
                raise _CloseSocketError(TOO_SLOW) from None

    async def _await_room(self, size: int) -> None:
        """Wait until the viewer has acknowledged so much that ``size`` more bytes fit into the window."""
        until = time.monotonic() + ACK_SECONDS
        while self.sent + size - self.acked > WINDOW_BYTES:
            self.room.clear()
            before = self.acked
            try:
                await asyncio.wait_for(self.room.wait(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise _CloseSocketError(TOO_SLOW) from None
            if self.acked > before:
                until = time.monotonic() + ACK_SECONDS

    async def _send_message(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message))
        self.allowance.record_sent()

    # --- rows -----------------------------------------------------------------------------------------------------

    async def _check_access_again(self) -> None:
        """Close the socket of a user who may no longer see the job."""
        if time.monotonic() - self.checked_at >= ACCESS_CHECK_SECONDS:
            self.checked_at = time.monotonic()
            if (code := await self._code_of_refusal()) is not None:
                raise _CloseSocketError(code)

    async def _code_of_refusal(self) -> int | None:
        """Return the code for a session that may not see the job now; None if it may."""
        user = await user_of_session(self.scope)
        if user is None:
            return SIGNED_OUT
        visible = await database_sync_to_async(Job.objects.visible_to(user).filter(pk=self.job_id).exists)()
        return None if visible else FORBIDDEN

    @database_sync_to_async
    def _read_rows(self) -> tuple["_JobRow", list[LogStream]]:
        log_watchers.watch(self.job_id)
        job = Job.objects.filter(pk=self.job_id).values_list("state", "finished_at", Count("events")).get()
        streams = LogStream.printed.filter(container__attempt__job=self.job_id)
        return _JobRow(*job), list(streams.select_related("container__attempt").defer("container__spec"))


class _JobRow(NamedTuple):
    state: str
    finished_at: datetime | None
    edition: int
    """The number of lines in the history of the job."""
