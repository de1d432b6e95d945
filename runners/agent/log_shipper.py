"""Sends what the supervisors write to ``scribe/log/`` to the portal, byte for byte.

The files are the buffer: while the portal is away nothing is held in memory and nothing is lost. The portal knows how
much it has, so an offset is never stored here: whoever starts anew asks. A container's files are hostile ground, so
what is no regular file, or has no stream's name, is not there.

``ContainerLog`` is one container's half-sent log; ``LogShipper`` gives each container its turn: one batch, then the
next container, so that fifty floods do not starve a single line.
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

from runners.agent.portal_client import Backoff, LogAnswer, PortalAwayError, PortalError, PortalRefusedError
from runners.host.node_files import open_beneath, opened_folder, read_json_beneath

logger = logging.getLogger(__name__)

STREAM_NAME = re.compile(r"(setup|metrics|0|[1-9]\d{0,3})\.log")
MOST_STREAM = (1 << 30) + (1 << 20)
"""The supervisor ends a stream at 1 GiB with a marker; a longer file was made by someone else (and may be a hole)."""
MOST_BATCH = 1 << 20
"""The portal takes no more at once."""
MOST_MARKS = 200
MOST_LABEL = 40
MOST_NAMES = 2_000
"""Looked at in a log folder: a rank has two files, everything beyond is mischief."""
LOOK_SECONDS = 0.1
"""Between two looks at a container that wrote nothing: the delay of a first line."""
UNWATCHED_SECONDS = 2.0
"""From one batch of a stream to its next, when it is written to steadily and nobody looks: the delay of a first look."""
MOST_REST_SECONDS = 1.0
"""Between two batches of a container that writes steadily, when nobody looks or the portal is slow."""
REST_PER_SEND = 4
"""A steady writer's rest in multiples of the last send's time, so that sends stay a fifth of it and grow instead."""
FULL = 256 * 1024
"""A batch of this size earns no rest: there is a flood to keep up with."""
AWAY_SECONDS = 5.0
"""At most, between tries while the portal is away."""
MARK = struct.Struct("<QQ")
MOST_MILLISECONDS = 1 << 52


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
    """Where to continue; None: ask the portal first."""
    finished: bool = False
    """Everything and its end were sent, or the portal wants no more of it."""
    rejections: int = 0


class ContainerLog:
    """How far one container's streams are sent. Not shared between threads while it takes its turn."""

    def __init__(self, name: str, scribe: Path, ranks: int, *, known_to_portal: bool = False) -> None:
        self.name = name
        self.ranks = ranks
        self.scribe = scribe
        self.ended = False
        """Set once nobody writes any more: what is there now is all."""
        self.refusal = ""
        """The portal's sentence when it did not take a stream."""
        self.watched = False
        """The portal said so when it took the last batch."""
        self._known = known_to_portal
        self._streams: dict[str, _Stream] = {}
        self._last = ""

    def send_batch(self, portal: LogPortal) -> int | None:
        """Sends one batch of the stream whose turn it is.

        Returns its bytes; None when there was nothing to send. Raises PortalAwayError; the batch is then sent again.
        """
        ended = self.ended  # read before the sizes: after an end they are final
        try:
            with opened_folder(self.scribe, "log") as folder:
                sizes = _sizes(folder, self.ranks)
                for name in self._in_turn(sizes):
                    sent = self._send(portal, folder, self._streams[name], sizes[name], ended)
                    if sent is not None:
                        self._last = name
                        return sent
        except OSError:
            # No log folder (yet): nothing was said. Or something hostile in its place.
            return None
        return None

    @property
    def open_streams(self) -> int:
        return sum([not stream.finished for stream in self._streams.values()])

    @property
    def drained(self) -> bool:
        """True when it ended and the portal has all of it. Looks at the folder, so that no late stream is missed."""
        if not self.ended:
            return False
        try:
            with opened_folder(self.scribe, "log") as folder:
                names = _sizes(folder, self.ranks)
        except OSError:
            return True
        return all(name in self._streams and self._streams[name].finished for name in names)

    def _in_turn(self, sizes: dict[str, int]) -> list[str]:
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
                raise PortalAwayError(str(refused)) from refused
            logger.warning("The portal takes no more of the log of %s, stream %s: %s", self.name, stream.name, refused)
            self.refusal = str(refused)
            stream.finished = True
            return 0

    def _send_next(self, portal: LogPortal, folder: int, stream: _Stream, size: int, ended: bool) -> int | None:
        if stream.offset is None:
            stream.offset = portal.append_log(self.name, stream.name, 0, b"").size
        content = _read(folder, stream.name, stream.offset, min(MOST_BATCH, size - stream.offset))
        if content is None:
            # It is not what its name promised: it has nothing to send, now or later.
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
            label=_label(self.scribe, stream.name),
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
            raise PortalAwayError(f"The portal contradicts itself about stream {stream.name} of {self.name}.")
        return len(content)


@dataclass(slots=True)
class _Turn:
    """A container's place in the round."""

    log: ContainerLog
    due: float = 0.0
    number: int = 0
    """Of its newest place in the queue; older places are void."""
    busy: bool = False
    steady: int = 0
    """Batches since it last had nothing to send."""
    forgotten: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, AWAY_SECONDS))
    drained: threading.Event = field(default_factory=threading.Event)


class LogShipper:
    """Gives each followed container its turn, on a few threads; a container has one turn at a time."""

    def __init__(self, portal: LogPortal, threads: int = 4) -> None:
        self._portal = portal
        self._changed = threading.Condition()
        self._turns: dict[str, _Turn] = {}
        self._queue: list[tuple[float, int, _Turn]] = []
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
        """Starts sending a container's log. May be repeated."""
        with self._changed:
            if name not in self._turns:
                self._turns[name] = _Turn(ContainerLog(name, scribe, ranks, known_to_portal=known_to_portal))
                self._enqueue(self._turns[name], 0.0)

    def finish(self, name: str, seconds: float) -> bool:
        """Nobody writes any more: send the rest and close it. True when that was done within the time given."""
        with self._changed:
            turn = self._turns.get(name)
            if turn is None:
                return True
            turn.log.ended = True
            self._enqueue(turn, 0.0)
        return turn.drained.wait(seconds)

    def drained(self, name: str) -> bool:
        with self._changed:
            turn = self._turns.get(name)
        return turn is None or turn.drained.is_set()

    def refusal(self, name: str) -> str:
        with self._changed:
            turn = self._turns.get(name)
        return turn.log.refusal if turn else ""

    def forget(self, name: str) -> None:
        with self._changed:
            turn = self._turns.pop(name, None)
            if turn is not None:
                turn.forgotten = True
                turn.drained.set()

    def hurry(self) -> None:
        """The portal is back: whoever rests for its absence goes on now."""
        with self._changed:
            for turn in self._turns.values():
                if turn.backoff.failures:
                    turn.backoff.worked()
                    self._enqueue(turn, 0.0)

    def _enqueue(self, turn: _Turn, rest_seconds: float) -> None:
        turn.due = time.monotonic() + rest_seconds
        turn.number = next(self._numbers)
        if not turn.busy:
            heapq.heappush(self._queue, (turn.due, turn.number, turn))
            self._changed.notify()

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            number = turn.number
            rest: float | None = AWAY_SECONDS
            try:
                rest = self._take(turn)
            except Exception:
                # Whatever a container's files did to us must not end everybody's log.
                logger.exception("Sending the log of %s went wrong; it is tried again.", turn.log.name)
            with self._changed:
                turn.busy = False
                if turn.forgotten:
                    continue
                if turn.number != number:  # something happened meanwhile: look again at once
                    self._enqueue(turn, 0.0)
                elif rest is not None:
                    self._enqueue(turn, rest)

    def _next(self) -> _Turn | None:
        with self._changed:
            while not self._stopping:
                while self._queue and (self._queue[0][2].number != self._queue[0][1] or self._queue[0][2].forgotten):
                    heapq.heappop(self._queue)
                left = self._queue[0][0] - time.monotonic() if self._queue else None
                if left is not None and left <= 0:
                    turn = heapq.heappop(self._queue)[2]
                    turn.busy = True
                    return turn
                self._changed.wait(left)
            return None

    def _take(self, turn: _Turn) -> float | None:
        """One turn; the rest it earned, None when there is nothing left to do."""
        began = time.monotonic()
        try:
            sent = turn.log.send_batch(self._portal)
        except PortalError as error:
            if not turn.backoff.failures:
                logger.info("The log of %s waits: %s", turn.log.name, error)
            return turn.backoff.failed()
        turn.backoff.worked()
        if turn.log.ended:
            if sent is None and turn.log.drained:
                turn.drained.set()
                return None
            return 0.0 if sent is not None else LOOK_SECONDS
        if sent is None:
            turn.steady = 0
            return LOOK_SECONDS
        turn.steady += 1
        if sent >= FULL:
            return 0.0
        took = time.monotonic() - began
        return min(MOST_REST_SECONDS, max(LOOK_SECONDS, REST_PER_SEND * took, _lull(turn)))


def _lull(turn: _Turn) -> float:
    """How long a steady writer may be let alone while nobody looks: longer and longer, shared among its streams."""
    if turn.log.watched:
        return 0.0
    whole = min(UNWATCHED_SECONDS, LOOK_SECONDS * 2 ** min(turn.steady, 8))
    return whole / max(1, turn.log.open_streams)


def read_marks(folder: int, name: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The times noted for offsets from ``start`` up to ``end``, evenly thinned to 200.

    The index is sorted when our supervisor wrote it; the search ends whatever else wrote it.
    """
    if end <= start:
        return ()
    try:
        with open_beneath(folder, name) as file:
            handle = file.fileno()
            count = os.fstat(handle).st_size // MARK.size
            first, last = _position(handle, count, start), _position(handle, count, end)
            wanted = max(0, last - first)
            step = max(1, -(-wanted // MOST_MARKS))
            found = [_mark(handle, index) for index in range(first, last, step)][:MOST_MARKS]
    except (OSError, struct.error, OverflowError):
        return ()
    marks: list[tuple[int, int]] = []
    before = start - 1
    for at, milliseconds in found:
        if before < at < end and milliseconds < MOST_MILLISECONDS:
            marks.append((at, milliseconds))
            before = at
    return tuple(marks)


def _position(handle: int, count: int, offset: int) -> int:
    """The first record at or behind an offset, by halving."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if _mark(handle, middle)[0] < offset:
            low = middle + 1
        else:
            high = middle
    return low


def _mark(handle: int, index: int) -> tuple[int, int]:
    at, milliseconds = MARK.unpack(os.pread(handle, MARK.size, index * MARK.size))
    return at, milliseconds


def _sizes(folder: int, ranks: int) -> dict[str, int]:
    """Stream name -> size of its log, for the regular files there that a supervisor with so many ranks can have."""
    sizes = {}
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MOST_NAMES):
            found = STREAM_NAME.fullmatch(entry.name)
            if found is None or (found[1].isdecimal() and int(found[1]) >= ranks):
                continue
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    sizes[found[1]] = min(info.st_size, MOST_STREAM)
    return sizes


def _read(folder: int, stream: str, offset: int, length: int) -> bytes | None:
    """Bytes of a log; None when it is no file to be read. None at all (a negative length) is an empty answer."""
    try:
        with open_beneath(folder, f"{stream}.log") as file:
            return os.pread(file.fileno(), max(0, length), offset) if length > 0 else b""
    except (OSError, OverflowError):
        return None


def _label(scribe: Path, stream: str) -> str:
    entry = read_json_beneath(scribe, "log/streams.json").get(stream)
    label = entry.get("label") if isinstance(entry, dict) else None
    if not isinstance(label, str):
        return ""
    return "".join(character for character in label if character.isprintable())[:MOST_LABEL]
