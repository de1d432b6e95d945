"""The archives of layers, from which nodes get what another one built: ``HOME/layers/<digest>.tar``.

A node sends an archive in pieces, each at the offset that the portal has reached, so that a broken connection costs one
piece. It counts only once its hash is right.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from django.conf import settings

from portal.refused import Refused

FILE_MODE = 0o640
READ_BYTES = 1024 * 1024
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
    with file.open("ab") as incoming:
        os.fchmod(incoming.fileno(), FILE_MODE)
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


def keep(build: int, digest: str, sha256: str) -> int:
    """Give the archive of a build its name, and return its size. Raises Refused if it is not what the node announced."""
    file = _incoming(build)
    if not file.exists():
        raise Refused("The archive of this layer has not arrived.", "conflict")
    found = hashlib.sha256()
    with file.open("rb") as archive:
        while piece := archive.read(READ_BYTES):
            found.update(piece)
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
