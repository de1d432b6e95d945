"""The store of code versions: one tar for each content, named by its hash, never changed."""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from django.conf import settings

from portal.disks import require_room
from portal.projects.models import CodeVersion

FILE_MODE = 0o640
PIECE_BYTES = 256 * 1024
SETTLED_SECONDS = 3600.0
"""An upload names its content in the database long before this: younger files are not deleted."""


class MissingError(Exception):
    """The tar of a code version is missing, or a path is not among its files. Not the user's error."""


def folder() -> Path:
    path: Path = settings.HOME / "code"
    path.mkdir(mode=0o750, exist_ok=True)
    return path


def path_of(sha256: str) -> Path:
    """Return the path of the tar with this hash, whether it exists or not."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError("A code version is named by 64 hexadecimal digits.")
    return folder() / f"{sha256}.tar"


@contextmanager
def incoming() -> Iterator[IO[bytes]]:
    """Create a temporary file in the store, which is deleted afterwards unless ``keep`` has named it.

    Raises Refused when the disk is full.
    """
    require_room(folder())
    with tempfile.NamedTemporaryFile(dir=folder(), prefix=".incoming-", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def keep(file: IO[bytes], sha256: str) -> None:
    """Give an incoming file its final name. The same content may be stored again, also at the same time."""
    os.fchmod(file.fileno(), FILE_MODE)
    os.fsync(file.fileno())
    with _names_locked():
        Path(file.name).replace(path_of(sha256))
    handle = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(sha256: str) -> bool:
    """Delete a tar that no version names, and return whether it is gone. One that was stored within the last hour stays: the
    version of an upload may be on its way."""
    path = path_of(sha256)
    with _names_locked():
        try:
            if path.stat().st_mtime > time.time() - SETTLED_SECONDS:
                return False
            path.unlink()
        except FileNotFoundError:
            pass
    return True


@contextmanager
def _names_locked() -> Iterator[None]:
    """Let files get and lose their names one after the other, in whichever process."""
    with (folder() / ".names").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def entry_of(version: CodeVersion, path: str) -> dict[str, Any]:
    """Return the entry of a path in the version's file list. Raises MissingError."""
    for entry in version.files:
        if entry["path"] == path and "offset" in entry:
            return dict(entry)
    raise MissingError(f"{version} has no file {path!r}.")


def read_file(version: CodeVersion, path: str, max_bytes: int) -> bytes:
    """Return the first bytes of a file, read directly from the tar at the offset in the file list."""
    entry = entry_of(version, path)
    with _open(version) as tar:
        tar.seek(entry["offset"])
        return tar.read(min(entry["size"], max_bytes))


def open_file(version: CodeVersion, path: str) -> Iterator[bytes]:
    """Return a file in pieces, for a download."""
    entry = entry_of(version, path)
    return _pieces(_open(version), entry["offset"], entry["size"])


def open_tar(version: CodeVersion) -> Iterator[bytes]:
    """Return the tar with all files, in pieces."""
    tar = _open(version)
    return _pieces(tar, 0, os.fstat(tar.fileno()).st_size)


def open_tar_file(sha256: str) -> BinaryIO:
    """Open the tar with this hash, in which files begin at their offsets. Raises FileNotFoundError."""
    return path_of(sha256).open("rb")


def _open(version: CodeVersion) -> IO[bytes]:
    try:
        return path_of(version.sha256).open("rb")
    except FileNotFoundError as error:
        raise MissingError(f"The tar of {version} is missing in {folder()}.") from error


def _pieces(tar: IO[bytes], offset: int, left: int) -> Iterator[bytes]:
    with tar:
        tar.seek(offset)
        while left and (piece := tar.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
