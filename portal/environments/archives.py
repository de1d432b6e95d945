"""The archives of layers, from which nodes get what another one built: ``HOME/layers/<digest>.tar``.

A node sends an archive in pieces, each at the offset that the portal has reached, so that a broken connection costs one
piece. It counts only once its hash is right.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings

from portal import incoming
from portal.refused import Refused

MAX_ARCHIVE_BYTES = 24 * 2**30


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
    return incoming.append(_incoming(build), offset, pieces, MAX_ARCHIVE_BYTES)


def keep(build: int, digest: str, sha256: str, tick: Callable[[], None] = lambda: None) -> int:
    """Give the archive of a build its name, and return its size. Raises Refused if it is not what the node announced.

    ``tick`` is called every few hundred MiB: a large archive takes a slow disk minutes.
    """
    file = _incoming(build)
    if not file.exists():
        raise Refused("The archive of this layer has not arrived.", "conflict")
    if incoming.sha256_of(file, tick) != sha256:
        file.unlink(missing_ok=True)
        raise Refused("The archive of this layer arrived damaged.", "conflict")
    size = file.stat().st_size
    file.replace(path_of(digest))
    return size


def drop_incoming(build: int) -> None:
    _incoming(build).unlink(missing_ok=True)


def delete(digest: str) -> None:
    path_of(digest).unlink(missing_ok=True)
