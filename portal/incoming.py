"""Files that nodes send in pieces, each at the offset that the portal has reached, so that a broken connection costs one piece."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from portal.refused import Refused

FILE_MODE = 0o640
READ_BYTES = 1024 * 1024
TICK_BYTES = 256 * READ_BYTES
MARGIN_BYTES = 2**30
"""The space that they leave on the disk of the portal, which needs it for logs, code and the database."""


class OffsetMismatchError(Exception):
    """The portal has another number of bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"The portal has {size} bytes.")
        self.size = size


def append(file: Path, offset: int, pieces: Iterable[bytes], max_bytes: int) -> int:
    """Append to a file, and return how many bytes it has now. Raises OffsetMismatchError, or Refused when it would be too
    large for the disk."""
    size = file.stat().st_size if file.exists() else 0
    if offset == 0 and size:  # the node began again
        file.unlink()
        size = 0
    if size != offset:
        raise OffsetMismatchError(size)
    # Not at the end: a node that asks again after a timeout, while its first request goes on, writes the same bytes twice.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE), "wb") as incoming:
        os.fchmod(incoming.fileno(), FILE_MODE)
        incoming.seek(offset)
        for piece in pieces:
            _require_space(file.parent, size + len(piece), max_bytes)
            incoming.write(piece)
            size += len(piece)
    return size


def _require_space(folder: Path, size: int, max_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > max_bytes:
        raise Refused(f"The archive takes more than {max_bytes >> 20:,} MiB.", "limit")
    if free < MARGIN_BYTES:
        raise Refused(
            f"The disk of the portal is full ({free >> 20} MiB are free). Ask an admin to make room.", "limit"
        )


def sha256_of(file: Path, tick: Callable[[], None] = lambda: None) -> str:
    """Return the hash of a file, which is on the disk then. ``tick`` is called every few hundred MiB: a large one takes a
    slow disk minutes."""
    found = hashlib.sha256()
    with file.open("rb") as archive:
        while piece := archive.read(READ_BYTES):
            found.update(piece)
            if archive.tell() % TICK_BYTES == 0:
                tick()
        os.fsync(archive.fileno())
    return found.hexdigest()
