"""The log of a job for one viewer: pieces of its streams from the cursors of the viewer, oldest first.

It is independent of sockets. Rows have the sizes of streams, files their bytes.
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from portal.jobs import logs
from portal.jobs.models import LogStream

PIECE_BYTES = 64 * 1024
PIECE_MARKS = 500
"""The maximum number of marks in a frame, whose header stays small: a rank may make a mark for each line."""
KEPT_BYTES = 256 * 1024
"""Of the newest output of a job, for its other viewers."""
HEADER = struct.Struct(">I")


@dataclass(frozen=True)
class Piece:
    """Bytes of one stream from ``offset``, with their times: the mark before their beginning, then those within them."""

    stream: int
    offset: int
    data: bytes
    marks: list[tuple[int, int]]

    @cached_property
    def frame(self) -> bytes:
        """Return the frame: the length of the header, the header as JSON, the bytes."""
        header = json.dumps({"s": self.stream, "o": self.offset, "m": self.marks}, separators=(",", ":")).encode()
        return HEADER.pack(len(header)) + header + self.data


class RecentPieces:
    """The pieces of a job that its viewers read last, by stream and offset, as many as ``KEPT_BYTES`` have room for."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], Piece] = {}
        self._size = 0

    def get(self, stream: int, offset: int) -> Piece | None:
        return self._pieces.get((stream, offset))

    def add(self, piece: Piece) -> None:
        key = piece.stream, piece.offset
        self._size += len(piece.data)
        if key in self._pieces:
            self._size -= len(self._pieces.pop(key).data)
        self._pieces[key] = piece
        while self._size > KEPT_BYTES and len(self._pieces) > 1:
            oldest = next(iter(self._pieces))
            self._size -= len(self._pieces.pop(oldest).data)


@dataclass(slots=True)
class _Position:
    row: LogStream
    cursor: int
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Marks that were read ahead; the first applies at the cursor."""
    read: int = 0
    """The number of marks of the stream that were read."""

    @property
    def is_behind(self) -> bool:
        return self.cursor < self.row.size

    @property
    def place(self) -> tuple[int, int]:
        return self.row.pk, self.cursor

    def time(self) -> int:
        return self.marks[0][1] if self.marks else 0


class Feed:
    """The positions of one viewer in the streams of a job."""

    def __init__(self) -> None:
        self._rows: dict[int, LogStream] = {}
        self._positions: dict[int, _Position] = {}

    def update(self, rows: Sequence[LogStream]) -> bool:
        """Update the streams; return whether there are new ones to report to the viewer."""
        fresh = any(row.pk not in self._rows for row in rows)
        self._rows = {row.pk: row for row in rows}
        for pk, position in self._positions.items():
            if pk in self._rows:
                position.row = self._rows[pk]
        return fresh

    def has(self, stream: int) -> bool:
        return stream in self._rows

    def start(self, cursors: dict[int, int]) -> None:
        """Set the cursors of the viewer. Streams that were started keep their position, which is newer.

        A cursor may be beyond the size of the row: another process, which read a newer one, sent what is before it.
        """
        for pk, row in self._rows.items():
            if pk not in self._positions:
                self._positions[pk] = _Position(row, max(cursors.get(pk, 0), 0))

    @property
    def is_caught_up(self) -> bool:
        return len(self._positions) == len(self._rows) and not any(each.is_behind for each in self._positions.values())

    @property
    def is_closed(self) -> bool:
        return all(row.closed for row in self._rows.values())

    def describe(self) -> list[dict[str, Any]]:
        """Return the streams for the list of the viewer: oldest attempt first, set-up before ranks, ranks by number."""
        rows = sorted(self._rows.values(), key=_sort_key)
        hosts = {row.container_id for row in rows if row.name == "setup"}
        return [
            {
                "id": row.pk,
                "label": _label(row, len(hosts) > 1),
                "attempt": row.container.attempt.number,
                "size": row.size,
            }
            for row in rows
        ]

    def find(self, recent: RecentPieces) -> dict[int, Piece | None]:
        """Return what comes next of each stream that is behind; None where it has to be read from the file."""
        return {each.row.pk: recent.get(*each.place) for each in self._positions.values() if each.is_behind}

    def next(self, found: dict[int, Piece | None]) -> Piece | None:
        """Return the oldest piece that was not sent yet; None if the viewer has everything. Reads what was not found."""
        times: list[tuple[int, int]] = []
        for stream, piece in found.items():
            if piece is None:
                _read_marks(self._positions[stream])
            times.append((piece.marks[0][1] if piece else self._positions[stream].time(), stream))
        if not times:
            return None
        _, stream = min(times, key=lambda each: each[0])
        position, piece = self._positions[stream], found[stream]
        if piece is None:
            return _take_piece(position)
        position.cursor += len(piece.data)  # its marks are read once it needs them
        return piece


def _read_marks(position: _Position) -> None:
    """Read the mark that applies at the cursor, and enough after it."""
    _drop_past_marks(position)  # pieces that others had read may have moved the cursor past them
    while position.read < position.row.marks and (
        len(position.marks) <= PIECE_MARKS or position.marks[-1][0] <= position.cursor
    ):
        more = logs.read_marks(position.row, position.read, 4 * PIECE_MARKS)
        if not more:
            break
        position.read += len(more)
        position.marks += more
        _drop_past_marks(position)
    if not position.marks or position.marks[0][0] > position.cursor:
        # bytes before the first mark: not later than it, and not earlier than the container
        began = position.row.container.running_at or position.row.container.assigned_at
        position.marks.insert(0, (position.cursor, int(began.timestamp() * 1000)))


def _drop_past_marks(position: _Position) -> None:
    """Drop the marks that ended before the cursor."""
    keep = bisect_right(position.marks, position.cursor, key=lambda mark: mark[0])
    del position.marks[: max(0, keep - 1)]


def _take_piece(position: _Position) -> Piece:
    start = position.cursor
    end = min(position.row.size, start + PIECE_BYTES)
    inside = [mark for mark in position.marks[1 : PIECE_MARKS + 1] if mark[0] < end]
    if len(inside) == PIECE_MARKS:
        end = min(end, inside[-1][0] + 1)
    data = logs.read(position.row, start, end - start)
    if not data:
        raise OSError(f"{logs.path_of(position.row)} is shorter than the {position.row.size} bytes it should have")
    position.cursor = start + len(data)
    marks = [(start, position.marks[0][1]), *inside]
    _drop_past_marks(position)
    return Piece(position.row.pk, start, data, marks)


def _sort_key(row: LogStream) -> tuple[int, bool, bool, int, int, str]:
    part = row.container
    return part.attempt.number, row.name != "setup", part.role != "driver", part.index, len(row.name), row.name


def _label(row: LogStream, several_hosts: bool) -> str:
    label = logs.label_of(row)
    if row.name != "setup" or not several_hosts:
        return label
    return (
        f"{label} {row.container.get_role_display() if row.container.role == 'driver' else f'h{row.container.index}'}"
    )
