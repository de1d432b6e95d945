"""Sends what the supervisors write to ``scribe/log/`` to the portal, byte for byte.

The files are the buffer: while the portal is away nothing is held in memory and nothing is lost. The portal knows how
much it has, so no offset is stored here: an agent that restarts asks the portal. A container may write anything to its
files, so whatever is not a regular file with the name of a stream is ignored.

``ContainerLog`` is the partly sent log of one container. ``LogShipper`` sends one batch of each container in turn, so that
fifty floods do not delay a single line.
"""

import contextlib
import heapq
import itertools
import logging
import os
import re
import stat
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runners.agent.portal_client import Backoff, LogAnswer, PortalError, PortalRefusedError, PortalUnavailableError
from runners.host.node_files import open_beneath, open_folder, read_json_beneath
from runners.messages import Message
from runners.messages.portal import LogOffsetsContradict

logger = logging.getLogger(__name__)

STREAM_NAME = re.compile(r"(setup|metrics|0|[1-9]\d{0,3})\.log")
MAX_STREAM_BYTES = (1 << 30) + (1 << 20)
"""The supervisor ends a stream at 256 MiB with a marker (``log_writer.LOG_LIMIT_MIB``). A file that is longer than this was made by
something else and may be sparse."""
MAX_BATCH_BYTES = 1 << 20
"""The largest request that the portal accepts, in bytes."""
MAX_MARKS = 200
MAX_LABEL_CHARACTERS = 40
MAX_NAMES = 2_000
"""How many names of a log folder are read: a rank has two files, and a supervisor makes no more than these."""
POLL_SECONDS = 0.1
"""Between two checks of a container that wrote nothing: the delay of a first line."""
UNWATCHED_SECONDS = 2.0
"""Between two batches of a steadily written stream that no user watches: the delay for a user who opens it."""
MAX_PAUSE_SECONDS = 1.0
"""The longest pause between two batches of a container that writes steadily, when no user watches or the portal is slow."""
PAUSE_PER_SEND = 4
"""The pause of a steady writer as a multiple of the duration of the last send: sending takes at most a fifth of the time,
and a slow portal gets larger batches."""
FULL_BATCH_BYTES = 256 * 1024
"""After a batch of at least this size there is no pause, to keep up with a flood."""
MAX_RETRY_SECONDS = 5.0
"""The longest pause between attempts while the portal is away."""
MARK_FORMAT = struct.Struct("<QQ")
MAX_MILLISECONDS = 1 << 52


class LogPortal(Protocol):
    def append_log(
        self,
        container: str,
        stream: str,
        offset: int,
        content: bytes,
        *,
        marks: tuple[tuple[int, int], ...] = (),
        label: str = "",
        final: bool = False,
    ) -> LogAnswer: ...


@dataclass(slots=True)
class _Stream:
    name: str
    offset: int | None
    """Where to continue; None to ask the portal first."""
    finished: bool = False
    """Everything and its end were sent, or the portal accepts no more of it."""
    rejections: int = 0


class ContainerLog:
    """How much of one container's streams is sent. Only one thread uses it at a time."""

    def __init__(self, name: str, scribe: Path, ranks: int, *, known_to_portal: bool = False) -> None:
        self.name = name
        self.ranks = ranks
        self.scribe = scribe
        self.ended = False
        """Set once no process writes any more: the files are complete."""
        self.refusal: Message | None = None
        """Why the portal refused a stream."""
        self.watched = False
        """Whether a user watches the log, from the portal's answer to the last batch."""
        self._known = known_to_portal
        self._streams: dict[str, _Stream] = {}
        self._last = ""

    def send_batch(self, portal: LogPortal) -> int | None:
        """Send one batch of the next stream in turn.

        Returns its size in bytes; None when there was nothing to send. Raises PortalUnavailableError; the batch is then
        sent again.
        """
        ended = self.ended  # read before the sizes: after an end they are final
        try:
            with open_folder(self.scribe, "log") as folder:
                sizes = _stream_sizes(folder, self.ranks)
                for name in self._names_in_turn(sizes):
                    sent = self._send(portal, folder, self._streams[name], sizes[name], ended)
                    if sent is not None:
                        self._last = name
                        return sent
        except OSError:
            # There is no log folder (yet), so nothing was written; or the job put something else in its place.
            return None
        return None

    @property
    def open_streams(self) -> int:
        return sum([not stream.finished for stream in self._streams.values()])

    @property
    def is_drained(self) -> bool:
        """Whether it ended and the portal has all of it. Reads the folder, so that no late stream is missed."""
        if not self.ended:
            return False
        try:
            with open_folder(self.scribe, "log") as folder:
                names = _stream_sizes(folder, self.ranks)
        except OSError:
            return True
        return all(name in self._streams and self._streams[name].finished for name in names)

    def _names_in_turn(self, sizes: dict[str, int]) -> list[str]:
        for name in sizes:
            self._streams.setdefault(name, _Stream(name, None if self._known else 0))
        names = sorted(sizes)
        return [name for name in names if name > self._last] + [name for name in names if name <= self._last]

    def _send(self, portal: LogPortal, folder: int, stream: _Stream, size: int, ended: bool) -> int | None:
        if stream.finished:
            return None
        try:
            return self._send_next(portal, folder, stream, size, ended)
        except PortalRefusedError as refused:
            if refused.status == 401:
                raise PortalUnavailableError(refused.message) from refused
            logger.warning("The portal takes no more of the log of %s, stream %s: %s", self.name, stream.name, refused)
            self.refusal = refused.message
            stream.finished = True
            return 0

    def _send_next(self, portal: LogPortal, folder: int, stream: _Stream, size: int, ended: bool) -> int | None:
        if stream.offset is None:
            stream.offset = portal.append_log(self.name, stream.name, 0, b"").size
        content = _read(folder, stream.name, stream.offset, min(MAX_BATCH_BYTES, size - stream.offset))
        if content is None:
            # It is not a regular file: it has nothing to send, now or later.
            stream.finished = ended
            return None
        final = ended and stream.offset + len(content) >= size
        if not content and not final:
            return None
        answer = portal.append_log(
            self.name,
            stream.name,
            stream.offset,
            content,
            marks=read_marks(folder, f"{stream.name}.idx", stream.offset, stream.offset + len(content)),
            label=_read_label(self.scribe, stream.name),
            final=final,
        )
        self.watched = answer.watched
        if answer.accepted:
            stream.rejections = 0
            stream.finished = final
        else:
            stream.rejections += 1
        stream.offset = answer.size
        if stream.rejections >= 3:
            stream.rejections = 0
            raise PortalUnavailableError(LogOffsetsContradict(self.name, stream.name))
        return len(content)


@dataclass(slots=True)
class _QueuedLog:
    """The place of a container in the queue."""

    log: ContainerLog
    due: float = 0.0
    number: int = 0
    """The number of its newest entry in the queue; older entries are void."""
    busy: bool = False
    consecutive_batches: int = 0
    """Batches since it last had nothing to send."""
    forgotten: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, MAX_RETRY_SECONDS))
    drained: threading.Event = field(default_factory=threading.Event)


class LogShipper:
    """Sends the logs of all followed containers in turn, on a few threads; each container is sent by one thread at a time."""

    def __init__(self, portal: LogPortal, threads: int = 4) -> None:
        self._portal = portal
        self._changed = threading.Condition()
        self._queued_logs: dict[str, _QueuedLog] = {}
        self._queue: list[tuple[float, int, _QueuedLog]] = []
        self._numbers = itertools.count(1)
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"log-shipper-{index}", daemon=True) for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(seconds)

    def follow(self, name: str, scribe: Path, ranks: int, *, known_to_portal: bool = False) -> None:
        """Start to send a container's log. May be repeated."""
        with self._changed:
            if name not in self._queued_logs:
                self._queued_logs[name] = _QueuedLog(ContainerLog(name, scribe, ranks, known_to_portal=known_to_portal))
                self._enqueue(self._queued_logs[name], 0.0)

    def finish(self, name: str, seconds: float) -> bool:
        """Send the rest of a complete log, and close it. Returns whether that was done within the given time."""
        with self._changed:
            queued = self._queued_logs.get(name)
            if queued is None:
                return True
            queued.log.ended = True
            self._enqueue(queued, 0.0)
        return queued.drained.wait(seconds)

    def refusal(self, name: str) -> Message | None:
        with self._changed:
            queued = self._queued_logs.get(name)
        return queued.log.refusal if queued else None

    def forget(self, name: str) -> None:
        with self._changed:
            queued = self._queued_logs.pop(name, None)
            if queued is not None:
                queued.forgotten = True
                queued.drained.set()

    def retry_now(self) -> None:
        """Send at once the logs that wait because the portal was away."""
        with self._changed:
            for queued in self._queued_logs.values():
                if queued.backoff.failures:
                    queued.backoff.reset()
                    self._enqueue(queued, 0.0)

    def _enqueue(self, queued: _QueuedLog, rest_seconds: float) -> None:
        queued.due = time.monotonic() + rest_seconds
        queued.number = next(self._numbers)
        if not queued.busy:
            heapq.heappush(self._queue, (queued.due, queued.number, queued))
            self._changed.notify()

    def _work(self) -> None:
        while (queued := self._next()) is not None:
            number = queued.number
            rest: float | None = MAX_RETRY_SECONDS
            try:
                rest = self._send_batch(queued)
            except Exception:
                # An error with the files of one container must not end the logs of all.
                logger.exception("Sending the log of %s failed; it is tried again.", queued.log.name)
            with self._changed:
                queued.busy = False
                if queued.forgotten:
                    continue
                if queued.number != number:  # something happened meanwhile: look again at once
                    self._enqueue(queued, 0.0)
                elif rest is not None:
                    self._enqueue(queued, rest)

    def _next(self) -> _QueuedLog | None:
        with self._changed:
            while not self._stopping:
                while self._queue and (self._queue[0][2].number != self._queue[0][1] or self._queue[0][2].forgotten):
                    heapq.heappop(self._queue)
                left = self._queue[0][0] - time.monotonic() if self._queue else None
                if left is not None and left <= 0:
                    queued = heapq.heappop(self._queue)[2]
                    queued.busy = True
                    return queued
                self._changed.wait(left)
            return None

    def _send_batch(self, queued: _QueuedLog) -> float | None:
        """Send one batch; return the pause in seconds until the next, None when there is nothing left to do."""
        began = time.monotonic()
        try:
            sent = queued.log.send_batch(self._portal)
        except PortalError as error:
            if not queued.backoff.failures:
                logger.info("The log of %s waits: %s", queued.log.name, error)
            return queued.backoff.next_pause()
        queued.backoff.reset()
        if queued.log.ended:
            if sent is None and queued.log.is_drained:
                queued.drained.set()
                return None
            return 0.0 if sent is not None else POLL_SECONDS
        if sent is None:
            queued.consecutive_batches = 0
            return POLL_SECONDS
        queued.consecutive_batches += 1
        if sent >= FULL_BATCH_BYTES:
            return 0.0
        took = time.monotonic() - began
        return min(MAX_PAUSE_SECONDS, max(POLL_SECONDS, PAUSE_PER_SEND * took, _unwatched_pause(queued)))


def _unwatched_pause(queued: _QueuedLog) -> float:
    """Return the pause of a steady writer while no user watches: growing, and shared among its streams."""
    if queued.log.watched:
        return 0.0
    whole: float = min(UNWATCHED_SECONDS, POLL_SECONDS * 2 ** min(queued.consecutive_batches, 8))
    return whole / max(1, queued.log.open_streams)


def read_marks(folder: int, name: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the (offset, milliseconds) pairs from ``start`` up to ``end``, evenly thinned to 200.

    The index is sorted if our supervisor wrote it; the search ends even if something else wrote it.
    """
    if end <= start:
        return ()
    try:
        with open_beneath(folder, name) as file:
            handle = file.fileno()
            count = os.fstat(handle).st_size // MARK_FORMAT.size
            first, last = _position(handle, count, start), _position(handle, count, end)
            wanted = max(0, last - first)
            step = max(1, -(-wanted // MAX_MARKS))
            found = [_read_mark(handle, index) for index in range(first, last, step)][:MAX_MARKS]
    except (OSError, struct.error, OverflowError):
        return ()
    marks: list[tuple[int, int]] = []
    before = start - 1
    for at, milliseconds in found:
        if before < at < end and milliseconds < MAX_MILLISECONDS:
            marks.append((at, milliseconds))
            before = at
    return tuple(marks)


def _position(handle: int, count: int, offset: int) -> int:
    """Return the index of the first record at or after an offset, by binary search."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _read_mark(handle, middle)[0] < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _read_mark(handle: int, index: int) -> tuple[int, int]:
    at, milliseconds = MARK_FORMAT.unpack(os.pread(handle, MARK_FORMAT.size, index * MARK_FORMAT.size))
    return at, milliseconds


def _stream_sizes(folder: int, ranks: int) -> dict[str, int]:
    """Return the log sizes in bytes by stream name, for the regular files that a supervisor with so many ranks can have."""
    sizes = {}
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MAX_NAMES):
            found = STREAM_NAME.fullmatch(entry.name)
            if found is None or (found[1].isdecimal() and int(found[1]) >= ranks):
                continue
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    sizes[found[1]] = min(info.st_size, MAX_STREAM_BYTES)
    return sizes


def _read(folder: int, stream: str, offset: int, length: int) -> bytes | None:
    """Read bytes of a log; None when it is not a readable file. For a length of zero or less, return no bytes."""
    try:
        with open_beneath(folder, f"{stream}.log") as file:
            return os.pread(file.fileno(), max(0, length), offset) if length > 0 else b""
    except (OSError, OverflowError):
        return None


def _read_label(scribe: Path, stream: str) -> str:
    entry = read_json_beneath(scribe, "log/streams.json").get(stream)
    label = entry.get("label") if isinstance(entry, dict) else None
    if not isinstance(label, str):
        return ""
    return "".join(character for character in label if character.isprintable())[:MAX_LABEL_CHARACTERS]
