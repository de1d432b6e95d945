"""Curves from the event files that a script writes for TensorBoard anyway, without TensorBoard.

A file is a sequence of records: length (uint64), its checksum, that many bytes, their checksum. A record is a protocol
buffer ``Event`` of which we read time, step and the scalars of its summary: a ``simple_value``, or a tensor with one
number. Files are written by the job: whatever is not what it should be ends our interest in that file.
"""

import json
import math
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 5.0
NAMED = "tfevents"
MOST_FILES, MOST_ENTRIES, MOST_DEPTH = 64, 4000, 5
MOST_RECORD = 1 << 32
LONG_RECORD = 64 * 1024
"""Histograms and pictures are records too: these are passed over unread."""
MOST_AT_ONCE = 20_000
"""Records in one look: this thread must not keep its process from more important things."""
LAST_LOOKS = 10
DENSE = 500
"""Of each curve the first so many points are told, then as many of every second one, of every fourth, and so on."""
MOST_CURVES = 200
MOST_TAG = 100
HEAD, TAIL = 12, 4
"""Bytes around a record: its length and that one's checksum; its own checksum."""
FLOAT, DOUBLE = 1, 2
"""TensorFlow's numbers for these types."""
Field = tuple[int, int, bytes]
"""Number, wire type and content of a field; a number is there as its eight bytes."""


class Scalar(NamedTuple):
    tag: str
    step: int
    at: float
    value: float


@dataclass
class _File:
    read: int = 0
    """Bytes of whole records."""
    broken: bool = False

    def records(self, handle: int, size: int, most: int) -> Iterator[bytes]:
        """At most so many of those that are whole and new."""
        while most > 0 and self.read + HEAD + TAIL <= size:
            (length,) = struct.unpack_from("<Q", os.pread(handle, HEAD, self.read))
            if length > MOST_RECORD:
                self.broken = True
                return
            if self.read + HEAD + length + TAIL > size:
                return
            if length <= LONG_RECORD:
                most -= 1
                yield os.pread(handle, length, self.read + HEAD)
            self.read += HEAD + length + TAIL


@dataclass
class _Curve:
    """Which of its points are told."""

    seen: int = 0
    told: int = 0
    every: int = 1

    def wants_next(self) -> bool:
        self.seen += 1
        if (self.seen - 1) % self.every:
            return False
        self.told += 1
        if self.told % DENSE == 0:
            self.every *= 2
        return True


@dataclass
class EventFiles:
    """Event files below some folders; ``tell`` gets each new scalar as a line for the metrics stream."""

    folders: Sequence[Path]
    tell: Callable[[bytes], None]
    _files: dict[str, _File] = field(default_factory=dict)
    _curves: dict[str, _Curve] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _looking: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """In a thread of its own, until ``end``."""
        while not self._ended.wait(LOOK_SECONDS):
            self.look()

    def end(self) -> None:
        """With a last look, after all that wrote have ended."""
        self._ended.set()
        for _ in range(LAST_LOOKS):
            if not self.look():
                return

    def look(self) -> int:
        """How many records were read."""
        count = 0
        with self._looking:
            for path in self._found():
                for record in self._new(path, MOST_AT_ONCE - count):
                    count += 1
                    for scalar in scalars(record):
                        if self._wanted(scalar.tag):
                            self.tell(line_of(scalar))
        return count

    def _wanted(self, tag: str) -> bool:
        if tag not in self._curves and len(self._curves) >= MOST_CURVES:
            return False
        return self._curves.setdefault(tag, _Curve()).wants_next()

    def _found(self) -> list[str]:
        found: list[str] = []
        entries = 0
        for folder in self.folders:
            base = len(folder.parts)
            for place, below, names in os.walk(folder):
                entries += len(below) + len(names)
                if entries > MOST_ENTRIES or len(Path(place).parts) - base >= MOST_DEPTH:
                    below.clear()
                found += [os.path.join(place, name) for name in sorted(names) if NAMED in name]  # noqa: PTH118
        return list(dict.fromkeys([*self._files, *found]))[:MOST_FILES]

    def _new(self, path: str, most: int) -> Iterator[bytes]:
        file = self._files.setdefault(path, _File())
        if file.broken:
            return
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            about = os.fstat(handle)
            if stat.S_ISREG(about.st_mode):
                yield from file.records(handle, about.st_size, most)
        except OSError:
            return
        finally:
            os.close(handle)


def line_of(scalar: Scalar) -> bytes:
    about = {"kind": "metric", "at": scalar.at, "step": scalar.step, "name": scalar.tag, "value": scalar.value}
    return json.dumps(about, separators=(",", ":")).encode() + b"\n"


def scalars(event: bytes) -> list[Scalar]:
    """None of what is no ``Event``."""
    try:
        return list(_scalars(event))
    except (ValueError, struct.error):
        return []


def _scalars(event: bytes) -> Iterator[Scalar]:
    at, step, summaries = time.time(), 0, list[bytes]()
    for number, wire, content in fields(event):
        if (number, wire) == (1, 1):
            (at,) = struct.unpack("<d", content)
        elif (number, wire) == (2, 0):
            step = int.from_bytes(content, "little")
        elif (number, wire) == (5, 2):
            summaries.append(content)
    for summary in summaries:
        for number, wire, content in fields(summary):
            if (number, wire) != (1, 2):
                continue
            tag, value = _named_value(content)
            if tag and value is not None and math.isfinite(value) and math.isfinite(at) and step < 1 << 53:
                yield Scalar(tag[:MOST_TAG], step, at, value)


def _named_value(content: bytes) -> tuple[str, float | None]:
    tag, value = "", None
    for number, wire, part in fields(content):
        if (number, wire) == (1, 2):
            tag = part.decode(errors="replace")
        elif (number, wire) == (2, 5):
            (value,) = struct.unpack("<f", part)
        elif (number, wire) == (8, 2):
            value = _of_tensor(part)
    return tag, value


def _of_tensor(tensor: bytes) -> float | None:
    """Its only number, if it has one and that is a float or a double."""
    kind, numbers = 0, b""
    for number, wire, part in fields(tensor):
        if (number, wire) == (1, 0):
            kind = part[0]
        elif number in (4, 5, 6) and wire in (1, 2, 5):
            numbers = part
    form = {FLOAT: "<f", DOUBLE: "<d"}.get(kind)
    if form is None or len(numbers) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, numbers)[0])


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a protocol buffer, in their order. Raises ValueError where the bytes are none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value.to_bytes(8, "little")
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError("no protocol buffer")
        if at + length > len(data):
            raise ValueError("no protocol buffer")
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise ValueError("no protocol buffer")
