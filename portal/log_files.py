"""The log of a build on the disk. Of a long one, its beginning and its end are kept, with a line between them.

Offsets count the bytes that the node has sent, with those that are left out: agents expect that, and whoever follows a log asks
for what comes after an offset.
"""

import os
import re
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 4 * 1024 * 1024
"""A longer log is shortened."""
HEAD_BYTES = 1024 * 1024
"""Where the line stands in a shortened log. Files of an earlier release would not be understood after a change."""
TAIL_BYTES = 2 * 1024 * 1024
_LINE = "\n\n[{:>15,} bytes of this log are left out here]\n\n"
_WRITTEN_LINE = re.compile(rb"\n\n\[ *([0-9,]+) bytes of this log are left out here\]\n\n")
LINE_BYTES = len(_LINE.format(0))


def append(path: Path, offset: int, log: bytes) -> int:
    """Append to a log if the piece follows what there is. Return how many bytes there are."""
    size = size_of(path)
    if offset != size or not log:
        return size
    path.parent.mkdir(mode=0o750, exist_ok=True)
    with path.open("ab") as file:
        file.write(log)
    if path.stat().st_size > MAX_BYTES:
        _shorten(path)
    return size + len(log)


def size_of(path: Path) -> int:
    """Return how many bytes of a log there are, with those that are left out."""
    try:
        with path.open("rb") as file:
            left_out = _left_out(file)
            return os.fstat(file.fileno()).st_size + (left_out - LINE_BYTES if left_out else 0)
    except FileNotFoundError:
        return 0


def read_from(path: Path, offset: int, limit: int) -> tuple[bytes, int]:
    """Return at most ``limit`` bytes that follow an offset, and the offset after them. For bytes that are left out, the line
    in their place is returned."""
    try:
        with path.open("rb") as file:
            left_out = _left_out(file)
            if left_out and offset < HEAD_BYTES:
                limit = min(limit, HEAD_BYTES - offset)
            moved = left_out - LINE_BYTES if left_out and offset >= HEAD_BYTES else 0
            place = offset - moved if offset >= HEAD_BYTES + left_out else min(offset, HEAD_BYTES)
            file.seek(place)
            content = file.read(limit)
            return content, place + len(content) + moved
    except FileNotFoundError:
        return b"", offset


def _left_out(file: BinaryIO) -> int:
    """Return how many bytes are left out of a log; 0 if it is whole."""
    file.seek(HEAD_BYTES)
    match = _WRITTEN_LINE.fullmatch(file.read(LINE_BYTES))
    return int(match[1].replace(b",", b"")) if match else 0


def _shorten(path: Path) -> None:
    """Leave out the middle of a log. Whoever reads the file now reads it to its end as it was."""
    with path.open("rb") as file:
        left_out = _left_out(file)
    content = path.read_bytes()
    head, rest = content[:HEAD_BYTES], content[HEAD_BYTES + (LINE_BYTES if left_out else 0) :]
    head = _whole_characters(head).ljust(HEAD_BYTES, b"\n")
    tail = _whole_characters(rest[-TAIL_BYTES:])
    left_out += len(rest) - len(tail)
    shorter = path.with_suffix(".new")
    shorter.write_bytes(head + _LINE.format(left_out).encode() + tail)
    shorter.replace(path)


def _whole_characters(text: bytes) -> bytes:
    return text.decode(errors="ignore").encode()
