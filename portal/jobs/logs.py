"""The store of logs: bytes at offsets, in files beside the database.

``HOME/logs/<container's name>/<stream>.log`` has the bytes and ``.idx`` the time marks; the LogStream row has the valid
number of both. The row is written last, so bytes that a crash leaves in a file are beyond the size in the row, and the
next append cuts them off. Readers never read beyond the size in the row.
"""

import heapq
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from portal.jobs import metrics
from portal.jobs.models import METRICS_STREAM, Attempt, Container, LogStream
from portal.wake import wake_log_viewers

MARK = struct.Struct("<QQ")
"""Offset in the log, Unix milliseconds: from this byte on, the output was written at this time or later."""
READ_BYTES = 64 * 1024
TAIL_BYTES = 16 * 1024
TAIL_LINE_BYTES = 1000
LAST_LINE_BYTES = 4096
LAST_LINE_CHARACTERS = 200
STREAM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,19}")
MAX_STREAMS = 100
"""The maximum number of streams of a container. Each rank has one, so this is more than a machine has GPUs."""
MAX_MERGED_STREAMS = 400
"""The maximum number of streams in one text: each keeps a position and a line in memory."""
LATEST_MS = 253_402_300_799_000
"""The end of the year 9999, the latest date."""
CUT_MARKER = b"\n[Schedulearn: this log is full (%d MiB). The rest was dropped.]\n"
CONTROL_SEQUENCES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
"""Colours, cursor movements, titles and other control bytes that do not belong in a text file."""


class OffsetMismatchError(Exception):
    """The bytes do not continue the stored ones; ``size`` is the offset from which to continue."""

    def __init__(self, size: int) -> None:
        super().__init__(f"continue at {size}")
        self.size = size


def path_of(stream: LogStream, suffix: str = "log") -> Path:
    folder = stream.folder or str(stream.container_id)
    return Path(settings.HOME) / "logs" / folder / f"{stream.name}.{suffix}"


# --- write -------------------------------------------------------------------------------------------------------


def open_stream(container: Container, name: str, label: str = "") -> LogStream:
    """Return the row of a stream, created with its first bytes. Raises ValueError for a bad name or too many streams."""
    if not STREAM_NAME.fullmatch(name):
        raise ValueError("A stream's name has at most 20 small letters, digits, - or _.")
    stream = LogStream.objects.filter(container=container, name=name).first()
    if stream is None:
        if container.streams.count() >= MAX_STREAMS:
            raise ValueError(f"A container has at most {MAX_STREAMS} streams.")
        fields = {"label": label[:40], "folder": container.name}
        stream, _ = LogStream.objects.get_or_create(container=container, name=name, defaults=fields)
    elif label and stream.label != label[:40]:
        LogStream.objects.filter(pk=stream.pk).update(label=label[:40])
    return stream


def append(
    stream: LogStream, offset: int, data: bytes, marks: Sequence[tuple[int, int]] = (), *, final: bool = False
) -> int:
    """Append to a stream at ``offset``; return the offset up to which the source is stored.

    Bytes that are stored already are skipped, so that sending again is harmless; a gap raises OffsetMismatchError. Once
    the log of the container is full, a marker is stored, and everything after it is accepted and dropped.
    """
    with transaction.atomic():
        # The streams of a container share one limit, so they are locked together, in a fixed order.
        rows = LogStream.objects.select_for_update(no_key=True).filter(container_id=stream.container_id).order_by("id")
        row = next(row for row in rows if row.pk == stream.pk)
        if row.cut:
            if data:  # the log is full, but the container is not silent
                LogStream.objects.filter(pk=row.pk).update(last_at=timezone.now())
            return offset + len(data)
        if offset > row.size:
            raise OffsetMismatchError(row.size)
        data = data[row.size - offset :]
        end = row.size + len(data)
        if not data and (row.closed or not final):
            return row.size
        data, cut = _cut_to_limit(row, data)
        times = _valid_marks(marks, row.size, row.size + len(data))
        _write(row, data, times)
        row.size += len(data)
        row.marks += len(times)
        row.cut = cut
        row.closed = row.closed or final or cut
        now = timezone.now()
        row.first_at = row.first_at or now
        if data:
            _record_output_time(row, now)
        row.save(update_fields=["size", "marks", "first_at", "last_at", "longest_gap_seconds", "closed", "cut"])
        if row.name == METRICS_STREAM:
            metrics.store_reports(row.container, _new_lines(row, row.size - len(data)))
        job_id = Container.objects.values_list("attempt__job_id", flat=True).get(pk=row.container_id)
        wake_log_viewers(job_id)
    return end


def _record_output_time(row: LogStream, now: datetime) -> None:
    if row.last_at is not None:
        row.longest_gap_seconds = max(row.longest_gap_seconds or 0.0, (now - row.last_at).total_seconds())
    row.last_at = now


def _cut_to_limit(row: LogStream, data: bytes) -> tuple[bytes, bool]:
    total = LogStream.objects.filter(container_id=row.container_id).aggregate(total=Sum("size"))["total"] or 0
    room = max(0, settings.MAX_LOG_MIB * 1024 * 1024 - total)
    if len(data) <= room:
        return data, False
    return data[:room] + CUT_MARKER % settings.MAX_LOG_MIB, True


def _new_lines(row: LogStream, before: int) -> bytes:
    """Return the lines that were incomplete while the stream had only ``before`` bytes."""
    start = max(0, before - metrics.MAX_LINE_BYTES)
    text = read(row, start, row.size - start)
    first = text.rfind(b"\n", 0, before - start) + 1
    return text[first : text.rfind(b"\n") + 1]


def _valid_marks(marks: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the marks of the new bytes that rise in both numbers; invalid marks of a node are left out."""
    kept: list[tuple[int, int]] = []
    for offset, ms in marks:
        if (
            start <= offset < end
            and 0 <= ms <= LATEST_MS
            and (not kept or (offset > kept[-1][0] and ms >= kept[-1][1]))
        ):
            kept.append((offset, ms))
    return kept


def _write(row: LogStream, data: bytes, marks: Iterable[tuple[int, int]]) -> None:
    path_of(row).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    packed = b"".join(MARK.pack(offset, ms) for offset, ms in marks)
    for suffix, size, more in (("log", row.size, data), ("idx", row.marks * MARK.size, packed)):
        handle = os.open(path_of(row, suffix), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)
            _write_all(handle, more, size)
            os.fdatasync(handle)  # before the row is written
        finally:
            os.close(handle)


def _write_all(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


# --- read --------------------------------------------------------------------------------------------------------


@contextmanager
def _open_for_reading(path: Path) -> Iterator[int | None]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None  # nothing is stored yet
        return
    try:
        yield handle
    finally:
        os.close(handle)


def read(stream: LogStream, start: int, limit: int) -> bytes:
    """Return at most ``limit`` bytes from ``start``, never beyond the size in ``stream``."""
    wanted = min(limit, stream.size - start)
    if start < 0 or wanted <= 0:
        return b""
    with _open_for_reading(path_of(stream)) as handle:
        return b"" if handle is None else os.pread(handle, wanted, start)


def read_marks(stream: LogStream, start: int = 0, limit: int | None = None) -> list[tuple[int, int]]:
    """Return the time marks from number ``start``: (offset, Unix milliseconds)."""
    wanted = stream.marks - start if limit is None else min(limit, stream.marks - start)
    if start < 0 or wanted <= 0:
        return []
    with _open_for_reading(path_of(stream, "idx")) as handle:
        packed = b"" if handle is None else os.pread(handle, wanted * MARK.size, start * MARK.size)
    return list(MARK.iter_unpack(packed[: len(packed) // MARK.size * MARK.size]))


def streams_of(attempt: Attempt) -> list[LogStream]:
    """Return the streams of an attempt, those of the driver first, then by host and rank."""
    streams = LogStream.printed.filter(container__attempt=attempt).select_related("container")
    return sorted(
        streams, key=lambda s: (s.container.role != "driver", s.container.index, s.name != "setup", len(s.name), s.name)
    )


def label_of(stream: LogStream) -> str:
    return stream.label or ("set-up" if stream.name == "setup" else f"rank {stream.name}")


# --- as text -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A line with its line feed, or a piece of a very long line."""

    ms: int
    offset: int
    data: bytes


def lines(stream: LogStream) -> Iterator[Line]:
    """Yield the lines of a stream with their start times, which never decrease, in bounded memory."""
    marks = iter(_all_marks(stream))
    coming = next(marks, None)
    ms, offset = 0, 0
    for data in _split_lines(pieces(stream)):
        while coming and coming[0] <= offset:
            ms, coming = max(ms, coming[1]), next(marks, None)
        yield Line(ms, offset, data)
        offset += len(data)


def _split_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Split at line feeds only: a carriage return belongs to the line of a progress bar."""
    rest = b""
    for piece in source:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) >= READ_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def pieces(stream: LogStream, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """Yield at most ``length`` bytes from ``start``, or all, as they were written."""
    left = stream.size if length is None else length
    while piece := read(stream, start, min(left, READ_BYTES)):
        yield piece
        start, left = start + len(piece), left - len(piece)


def _all_marks(stream: LogStream) -> Iterator[tuple[int, int]]:
    start = 0
    while marks := read_marks(stream, start, 4096):
        yield from marks
        start += len(marks)


def merged_text(streams: Sequence[LogStream], *, plain: bool = True, times: bool = False) -> Iterator[bytes]:
    """Yield several streams as one text, merged by time, each line with its label; ``plain`` strips control sequences."""
    labels = {
        number: f"[{label_of(stream)}] ".encode() if len(streams) > 1 else b"" for number, stream in enumerate(streams)
    }

    def tagged(number: int, stream: LogStream) -> Iterator[tuple[int, int, int, bytes]]:
        for line in lines(stream):
            yield line.ms, number, line.offset, line.data

    for ms, number, _, data in heapq.merge(*(tagged(number, stream) for number, stream in enumerate(streams))):
        if plain:
            data = strip_controls(data)
        stamp = (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").encode() + b" " if times else b""
        )
        yield stamp + labels[number] + data + (b"" if data.endswith(b"\n") else b"\n")


def strip_controls(data: bytes) -> bytes:
    """Remove colours and cursor movements, and all but the last state of a progress bar."""
    body, end = (data[:-1], b"\n") if data.endswith(b"\n") else (data, b"")
    body = CONTROL_SEQUENCES.sub(b"", body)
    return body.rstrip(b"\r").rpartition(b"\r")[2] + end


def last_line(stream: LogStream) -> str:
    """Return the last line that is not blank, as plain text, cut at ``LAST_LINE_CHARACTERS``; empty without one."""
    data = read(stream, max(0, stream.size - LAST_LINE_BYTES), LAST_LINE_BYTES)
    texts = (strip_controls(line).decode(errors="replace").strip() for line in reversed(data.split(b"\n")))
    return next((text[:LAST_LINE_CHARACTERS] for text in texts if text), "")


def tail(attempt: Attempt, n: int = 60) -> str:
    """Return the last lines of each stream of an attempt, one stream after the other, as plain text of bounded size."""
    texts = []
    for stream in streams_of(attempt):
        data = read(stream, max(0, stream.size - TAIL_BYTES), TAIL_BYTES)
        last = b"\n".join(strip_controls(line)[:TAIL_LINE_BYTES] for line in data.split(b"\n")[-n - 1 :])
        texts.append(last.decode(errors="replace").strip("\n"))
    return "\n".join(text for text in texts if text)
