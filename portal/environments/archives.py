"""The archives of layers, from which nodes get what another one built: ``HOME/layers/<digest>.tar``.

A node sends an archive in pieces, each at the offset that the portal has reached, so that a broken connection costs one
piece. It counts only once its hash is right.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings

from portal.refused import Refused

FILE_MODE = 0o640
READ_BYTES = 1024 * 1024
TICK_BYTES = 256 * READ_BYTES
MAX_ARCHIVE_BYTES = 24 * 2**30
MARGIN_BYTES = 2**30
"""The space that archives leave on the disk of the portal, which needs it for logs, code and the database."""


class OffsetMismatchError(Exception):
    """The portal has another number of bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"The portal has {size} bytes.")
        self.size = size


def folder() -> Path:
    path: Path = settings.HOME / "layers"
    path.mkdir(mode=0o750, exist_ok=True)
    return path


def path_of(digest: str) -> Path:
    """Return the path of the archive of a layer, whether it exists or not."""
    if not re.fullmatch(r"[0-9a-f]{24,64}", digest):
        raise ValueError("A layer is named by hexadecimal digits.")
    return folder() / f"{digest}.tar"


def _incoming(build: int) -> Path:
    return folder() / f".incoming-{build}"


def append(build: int, offset: int, pieces: Iterable[bytes]) -> int:
    """Append to the archive of a build, and return how many bytes it has now. Raises OffsetMismatchError, or Refused when
    it would be too large for the disk."""
    file = _incoming(build)
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
            _require_space(size + len(piece))
            incoming.write(piece)
            size += len(piece)
    return size


def _require_space(size: int) -> None:
    free = shutil.disk_usage(folder()).free
    if size > MAX_ARCHIVE_BYTES:
        raise Refused(f"The archive takes more than {MAX_ARCHIVE_BYTES >> 30} GiB.", "limit")
    if free < MARGIN_BYTES:
        raise Refused(
            f"The disk of the portal is full ({free >> 20} MiB are free). Ask an admin to make room.", "limit"
        )


def keep(build: int, digest: str, sha256: str, tick: Callable[[], None] = lambda: None) -> int:
    """Give the archive of a build its name, and return its size. Raises Refused if it is not what the node announced.

    ``tick`` is called every few hundred MiB: a large archive takes a slow disk minutes.
    """
    file = _incoming(build)
    if not file.exists():
        raise Refused("The archive of this layer has not arrived.", "conflict")
    found = hashlib.sha256()
    with file.open("rb") as archive:
        while piece := archive.read(READ_BYTES):
            found.update(piece)
            if archive.tell() % TICK_BYTES == 0:
                tick()
        os.fsync(archive.fileno())
    if found.hexdigest() != sha256:
        file.unlink(missing_ok=True)
        raise Refused("The archive of this layer arrived damaged.", "conflict")
    size = file.stat().st_size
    file.replace(path_of(digest))
    return size


def drop_incoming(build: int) -> None:
    _incoming(build).unlink(missing_ok=True)


def delete(digest: str) -> None:
    path_of(digest).unlink(missing_ok=True)
