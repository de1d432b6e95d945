"""Reads curves, without TensorBoard, from the event files that a script writes for it.

A file is a sequence of records: length (uint64), its checksum, that many bytes, their checksum. A record is a protocol
buffer ``Event`` of which we read time, step and the scalars of its summary: a ``simple_value``, or a tensor with one
number. The job writes the files: one with invalid content is not read further.
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

READ_SECONDS = 5.0
FILE_NAME_PART = "tfevents"
MAX_FILES, MAX_ENTRIES, MAX_DEPTH = 64, 4000, 5
MAX_RECORD_BYTES = 1 << 32
MAX_PARSED_BYTES = 64 * 1024
"""Longer records, such as histograms and pictures, are skipped."""
MAX_RECORDS_PER_READ = 20_000
"""Records that are read at once: this thread must not keep its process from more important work."""
FINAL_READS = 10
DENSE_POINTS = 500
"""So many points of each curve are reported from its start, then as many of every second one, of every fourth, and so on."""
MAX_CURVES = 200
MAX_TAG_CHARACTERS = 100
HEADER_BYTES, FOOTER_BYTES = 12, 4
"""Bytes before a record (its length and the checksum of that) and after it (the checksum of the record)."""
FLOAT, DOUBLE = 1, 2
"""TensorFlow's numbers for these types."""
Field = tuple[int, int, bytes]
"""Number, wire type and content of a field; a numeric value is given as its eight bytes."""


class Scalar(NamedTuple):
    tag: str
    step: int
    at: float
    value: float


@dataclass
class _EventFile:
    read: int = 0
    """How many bytes of complete records have been read."""
    broken: bool = False

    def records(self, handle: int, size: int, limit: int) -> Iterator[bytes]:
        """Yield new complete records, at most ``limit``."""
        while limit > 0 and self.read + HEADER_BYTES + FOOTER_BYTES <= size:
            (length,) = struct.unpack_from("<Q", os.pread(handle, HEADER_BYTES, self.read))
            if length > MAX_RECORD_BYTES:
                self.broken = True
                return
            if self.read + HEADER_BYTES + length + FOOTER_BYTES > size:
                return
            if length <= MAX_PARSED_BYTES:
                limit -= 1
                yield os.pread(handle, length, self.read + HEADER_BYTES)
            self.read += HEADER_BYTES + length + FOOTER_BYTES


@dataclass
class _Curve:
    """Decides which points of a curve are reported."""

    seen: int = 0
    reported: int = 0
    every: int = 1

    def wants_next(self) -> bool:
        self.seen += 1
        if (self.seen - 1) % self.every:
            return False
        self.reported += 1
        if self.reported % DENSE_POINTS == 0:
            self.every *= 2
        return True


@dataclass
class EventFiles:
    """The event files below some folders. ``report`` gets each new scalar as a line for the metrics stream."""

    folders: Sequence[Path]
    report: Callable[[bytes], None]
    _files: dict[str, _EventFile] = field(default_factory=dict)
    _curves: dict[str, _Curve] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def follow(self) -> None:
        """Read new records until ``end`` is called. Runs in its own thread."""
        while not self._ended.wait(READ_SECONDS):
            self.read_new()

    def end(self) -> None:
        """End ``follow`` and read what is left. Called after all writers have ended."""
        self._ended.set()
        for _ in range(FINAL_READS):
            if not self.read_new():
                return

    def read_new(self) -> int:
        """Read and report new records; return how many were read."""
        count = 0
        with self._reading:
            for path in self._find_files():
                for record in self._new_records(path, MAX_RECORDS_PER_READ - count):
                    count += 1
                    for scalar in scalars(record):
                        if self._should_report(scalar.tag):
                            self.report(metric_line(scalar))
        return count

    def _should_report(self, tag: str) -> bool:
        if tag not in self._curves and len(self._curves) >= MAX_CURVES:
            return False
        return self._curves.setdefault(tag, _Curve()).wants_next()

    def _find_files(self) -> list[str]:
        found: list[str] = []
        entries = 0
        for folder in self.folders:
            base = len(folder.parts)
            for place, below, names in os.walk(folder):
                entries += len(below) + len(names)
                if entries > MAX_ENTRIES or len(Path(place).parts) - base >= MAX_DEPTH:
                    below.clear()
                found += [os.path.join(place, name) for name in sorted(names) if FILE_NAME_PART in name]  # noqa: PTH118
        return list(dict.fromkeys([*self._files, *found]))[:MAX_FILES]

    def _new_records(self, path: str, limit: int) -> Iterator[bytes]:
        file = self._files.setdefault(path, _EventFile())
        if file.broken:
            return
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            about = os.fstat(handle)
            if stat.S_ISREG(about.st_mode):
                yield from file.records(handle, about.st_size, limit)
        except OSError:
            return
        finally:
            os.close(handle)


def metric_line(scalar: Scalar) -> bytes:
    about = {"kind": "metric", "at": scalar.at, "step": scalar.step, "name": scalar.tag, "value": scalar.value}
    return json.dumps(about, separators=(",", ":")).encode() + b"\n"


def scalars(event: bytes) -> list[Scalar]:
    """Return the scalars of an ``Event``; none if the bytes are not one."""
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
                yield Scalar(tag[:MAX_TAG_CHARACTERS], step, at, value)


def _named_value(content: bytes) -> tuple[str, float | None]:
    tag, value = "", None
    for number, wire, part in fields(content):
        if (number, wire) == (1, 2):
            tag = part.decode(errors="replace")
        elif (number, wire) == (2, 5):
            (value,) = struct.unpack("<f", part)
        elif (number, wire) == (8, 2):
            value = _tensor_value(part)
    return tag, value


def _tensor_value(tensor: bytes) -> float | None:
    """Return the only number of a tensor, None if there are others or it is neither float nor double."""
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
    """Yield the fields of a protocol buffer in order. Raises ValueError if the bytes are not one."""
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
