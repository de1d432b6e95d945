"""Where the bytes of code versions lie: one tar per content, named by its hash, never changed."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from portal.projects.models import CodeVersion

MODE = 0o640
PIECE_BYTES = 256 * 1024


class MissingError(Exception):
    """Ours: a code version's bytes are not where they should be, or the path is not among its files."""


def folder() -> Path:
    path: Path = settings.HOME / "code"
    path.mkdir(mode=0o750, exist_ok=True)
    return path


def path_of(sha256: str) -> Path:
    """Where the tar with this hash lies, or would."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError("A code version is named by 64 hexadecimal digits.")
    return folder() / f"{sha256}.tar"


@contextmanager
def incoming() -> Iterator[IO[bytes]]:
    """A file beside the others; it is gone afterwards unless ``keep`` gave it a name."""
    with tempfile.NamedTemporaryFile(dir=folder(), prefix=".incoming-", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def keep(file: IO[bytes], sha256: str) -> None:
    """Gives an incoming file its name. The same bytes may come any number of times, also at once."""
    os.fchmod(file.fileno(), MODE)
    os.fsync(file.fileno())
    Path(file.name).replace(path_of(sha256))
    handle = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def entry_of(version: CodeVersion, path: str) -> dict[str, Any]:
    """The line of the version's file list, or MissingError."""
    for entry in version.files:
        if entry["path"] == path and "offset" in entry:
            return dict(entry)
    raise MissingError(f"{version} has no file {path!r}.")


def read_file(version: CodeVersion, path: str, at_most: int) -> bytes:
    """The first bytes of one file, straight from the tar: its place is in the file list."""
    entry = entry_of(version, path)
    with _open(version) as tar:
        tar.seek(entry["offset"])
        return tar.read(min(entry["size"], at_most))


def open_file(version: CodeVersion, path: str) -> Iterator[bytes]:
    """One file in pieces, for a download."""
    entry = entry_of(version, path)
    return _pieces(_open(version), entry["offset"], entry["size"])


def open_tar(version: CodeVersion) -> Iterator[bytes]:
    """All files as the tar they lie in, in pieces."""
    tar = _open(version)
    return _pieces(tar, 0, os.fstat(tar.fileno()).st_size)


def _open(version: CodeVersion) -> IO[bytes]:
    try:
        return path_of(version.sha256).open("rb")
    except FileNotFoundError as error:
        raise MissingError(f"The bytes of {version} are gone from {folder()}.") from error


def _pieces(tar: IO[bytes], offset: int, left: int) -> Iterator[bytes]:
    with tar:
        tar.seek(offset)
        while left and (piece := tar.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
