"""The live log over a WebSocket.

The viewer sends its cursors, receives frames and acknowledges them. At most ``WINDOW_BYTES`` are not acknowledged:
otherwise the server, which has no back-pressure, would buffer without limit for a viewer that does not read. All viewers
of a job share what is read of it (``log_source``).

To the viewer, as text: ``{"type": "streams", "streams": [{"id", "label", "attempt", "size"}]}``, answered by
``{"type": "read", "cursors": {"<id>": offset}}`` (in several messages when "more" is true); ``{"type": "job", "state",
"changed"}`` when something about the job changed; ``{"type": "idle", "finished"}`` when the viewer has everything for
the first time, at the end of the job, and every ``HEARTBEAT_SECONDS``; ``{"type": "end"}`` when there will be no more. As
bytes: pieces, see ``feed.Piece``. From the viewer also ``{"type": "ack", "bytes": received so far}``, for several pieces at
once.
"""

import asyncio
import json
import logging
import math
import random
import time
from datetime import timedelta
from typing import Any

from channels.db import database_sync_to_async
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.feed import Feed
from portal.jobs.log_rate_limit import Allowance
from portal.jobs.log_source import LogSource, LogState
from portal.jobs.models import FINISHED_STATES, Job
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

logger = logging.getLogger(__name__)

WINDOW_BYTES = 256 * 1024
ACK_SECONDS = 30
ACCESS_CHECK_SECONDS = 30
HEARTBEAT_SECONDS = 15
"""A message at least so often shows the viewer that it is still connected."""
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
    reported_finished = False
    """When the viewer was last sent that it has everything, and whether the job had ended."""
    closing = False
    """The socket is being closed; messages that still arrive are ignored."""

    async def connect(self) -> None:
        self.job_id = int(self.scope["url_route"]["kwargs"]["job_id"])
        self.feed = Feed()
        self.cursors: dict[int, int] = {}
        # not all viewers at the same time
        self.checked_at = time.monotonic() - random.uniform(0, ACCESS_CHECK_SECONDS)  # noqa: S311
        self.sent = self.acked = 0
        self.allowance = Allowance()
        self.room = asyncio.Event()
        self.cursors_received = asyncio.Event()
        self.shown: dict[str, Any] = {}
        user = await self._find_viewer()
        if not isinstance(user, User):
            await self.close()  # before accepting: the response to the handshake is 403
            return
        self.source = self.subscription.enter_context(LogSource.of(self.job_id))
        await self.accept_counted(user, MAX_SOCKETS, self._run())

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
                self.cursors_received.set()
        else:
            raise ValueError(message["type"])

    # --- the pump -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            seen = -1
            while True:
                log = await self.source.newer_than(seen)
                seen = log.number
                if await self._send_new_output(log):
                    break
            await self._send_message({"type": "end"})
        except _CloseSocketError as reason:
            await self.close(reason.code)
        except asyncio.CancelledError:
            raise
        except Exception:
            # The viewer reconnects and continues from its cursors.
            logger.exception("the log of job %s could not be sent", self.job_id)
            await self.close(BROKEN)

    async def _send_new_output(self, log: LogState) -> bool:
        """Send all output that there is; return whether no more will come."""
        await self._check_access_again()
        if self.feed.update(log.streams) or not self.shown:
            self.cursors_received.clear()
            await self._send_message({"type": "streams", "streams": self.feed.describe()})
        about = {"type": "job", "state": log.state, "changed": log.edition}
        if about != self.shown:
            self.shown = about
            await self._send_message(about)
        await self._await_cursors()
        self.feed.start(self.cursors)
        sent = False
        while piece := await self.source.next_piece(self.feed):
            await self._await_room(len(piece.data))
            self.sent += len(piece.data)
            await self.send(bytes_data=piece.frame)
            self.allowance.record_sent()
            sent = True
            await self._check_access_again()
        finished = log.state in FINISHED_STATES
        is_news = finished and (sent or not self.reported_finished)
        if is_news or time.monotonic() - self.reported_at >= HEARTBEAT_SECONDS:
            self.reported_at, self.reported_finished = time.monotonic(), finished
            await self._send_message({"type": "idle", "finished": finished})
        given_up = log.finished_at is not None and timezone.now() - log.finished_at > LAST_OUTPUT_WAIT
        return finished and self.feed.is_caught_up and (self.feed.is_closed or given_up)

    async def _await_cursors(self) -> None:
        """Wait until the viewer has answered a list of streams with its cursors."""
        try:
            await asyncio.wait_for(self.cursors_received.wait(), ACK_SECONDS)
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

    # --- access ---------------------------------------------------------------------------------------------------

    async def _check_access_again(self) -> None:
        """Close the socket of a user who may no longer see the job."""
        if time.monotonic() - self.checked_at >= ACCESS_CHECK_SECONDS:
            self.checked_at = time.monotonic()
            if isinstance(found := await self._find_viewer(), int):
                raise _CloseSocketError(found)

    @database_sync_to_async
    def _find_viewer(self) -> User | int:
        """Return the user of the session if they may see the job now, otherwise the code to close with."""
        user = user_of_session(self.scope)
        if user is None:
            return SIGNED_OUT
        return user if Job.objects.visible_to(user).filter(pk=self.job_id).exists() else FORBIDDEN
