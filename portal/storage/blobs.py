"""Contents that are stored once, under the SHA-256 of their bytes, and never changed: files and manifests of datasets.

``BlobStore`` is all that the portal knows of where they are. It asks for nothing that an object store cannot do: put a whole
object, read one from an offset, delete, list by prefix.
"""

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Protocol, Self

from django.conf import settings

from portal.refused import Refused

FILE_MODE = 0o640
FOLDER_MODE = 0o750
SYNCS_AT_ONCE = 32
"""Files that are written to the disk at the same time: it then needs one flush for several. Measured, 9,000 files a second
instead of 250."""
BATCH_FILES, BATCH_BYTES = 500, 256 << 20
"""How much a ``BlobWriter`` collects until it is stored."""
PREFIX_DIGITS = 2
"""Digits of the hash that name the folder of a blob: a million files are in 256 folders."""
DISK_IS_FULL = "The disk of the portal is full. Nothing is lost: ask an admin to make room, then continue."


class MissingBlobError(Exception):
    """A blob that a row names is not in the store. Not the user's error."""


LocalFile = tuple[Path, str]
"""A file on this machine, and the SHA-256 of its bytes."""


class BlobStore(Protocol):
    """A store of immutable contents. Several processes use it at the same time. Methods raise Refused if the disk is full."""

    def incoming(self) -> AbstractContextManager[IO[bytes]]:
        """Open a local temporary file for a content that is written now; it is deleted unless ``put`` takes it."""

    def put(self, files: Sequence[LocalFile]) -> set[str]:
        """Store local files under the hashes of their bytes, and remove them. Return the hashes that are new.

        Afterwards they survive a loss of power; before, no reader sees any of them. Many at once are much faster than one
        after another.
        """

    def open(self, sha256: str, offset: int = 0) -> BinaryIO:
        """Open a content for reading, at an offset; it can be sought. Raises MissingBlobError."""

    def size(self, sha256: str) -> int | None:
        """Return the size of a content in bytes; None if the store does not have it."""

    def delete(self, sha256: str) -> None:
        """Delete a content; one that is gone already counts as deleted."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the hashes that begin with these hexadecimal digits, in order."""


class FolderStore:
    """Blobs as files of a folder: ``blobs/<two digits>/<sha256>``, and ``incoming/`` on the same disk."""

    def __init__(self, folder: Path) -> None:
        self._blobs, self._incoming = folder / "blobs", folder / "incoming"
        for path in (folder, self._blobs, self._incoming):
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)

    def path_of(self, sha256: str) -> Path:
        """Return the path of a content, whether it exists or not."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError("A blob is named by 64 hexadecimal digits.")
        return self._blobs / sha256[:PREFIX_DIGITS] / sha256

    @contextmanager
    def incoming(self) -> Iterator[IO[bytes]]:
        with (
            refused_if_full(),
            tempfile.NamedTemporaryFile(dir=self._incoming, prefix=".incoming-", delete=False) as file,
        ):
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def put(self, files: Sequence[LocalFile]) -> set[str]:
        new: dict[str, Path] = {}
        for file, sha256 in files:
            if sha256 in new or self.path_of(sha256).exists():
                file.unlink()
            else:
                new[sha256] = file
        folders = {self.path_of(sha256).parent for sha256 in new}
        with refused_if_full(), ThreadPoolExecutor(min(SYNCS_AT_ONCE, len(new) or 1)) as pool:
            _finish(pool.map(_make_durable, new.values()))
            if missing := [folder for folder in folders if not folder.is_dir()]:
                for folder in missing:
                    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                sync_folder(self._blobs)
            for sha256, file in new.items():
                file.rename(self.path_of(sha256))
            _finish(pool.map(sync_folder, folders))
        return set(new)

    def open(self, sha256: str, offset: int = 0) -> BinaryIO:
        try:
            file = self.path_of(sha256).open("rb")
        except FileNotFoundError as error:
            raise MissingBlobError(f"The content {sha256} is missing in {self._blobs}.") from error
        file.seek(offset)
        return file

    def size(self, sha256: str) -> int | None:
        try:
            return self.path_of(sha256).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, sha256: str) -> None:
        self.path_of(sha256).unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[str]:
        for folder in sorted(self._blobs.iterdir()):
            if prefix.startswith(folder.name) or folder.name.startswith(prefix):
                yield from sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))


def store() -> BlobStore:
    """Return the store of this installation."""
    return FolderStore(data_folder())


def data_folder() -> Path:
    """Return the folder of datasets: an admin may replace it by a link to a larger disk."""
    path: Path = settings.HOME / "datasets"
    return path


class _Putter(Protocol):
    """The part of a store that adds to it."""

    def incoming(self) -> AbstractContextManager[IO[bytes]]: ...

    def put(self, files: Sequence[LocalFile]) -> set[str]: ...


class BlobWriter:
    """Stores contents that come piece by piece, in batches. What it stored is complete when its block has ended."""

    def __init__(self, blobs: _Putter) -> None:
        self._blobs = blobs
        self._stack = ExitStack()
        self._waiting: list[LocalFile] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._flush()

    def add(self, pieces: Iterable[bytes]) -> tuple[str, int]:
        """Store a content; return its hash and its size in bytes."""
        digest, size = new_sha256(), 0
        file = self._stack.enter_context(self._blobs.incoming())
        with refused_if_full():
            for piece in pieces:
                digest.update(piece)
                size += file.write(piece)
            file.close()  # else a batch would need as many open files
        self._waiting.append((Path(file.name), digest.hexdigest()))
        self._bytes += size
        if len(self._waiting) >= BATCH_FILES or self._bytes >= BATCH_BYTES:
            self._flush()
        return digest.hexdigest(), size

    def _flush(self) -> None:
        self._blobs.put(self._waiting)
        self._stack.close()
        self._waiting, self._bytes = [], 0


def put_pieces(blobs: BlobStore, pieces: Iterable[bytes]) -> tuple[str, int]:
    """Store a content that comes piece by piece. Return its hash and its size in bytes."""
    with BlobWriter(blobs) as writer:
        return writer.add(pieces)


@contextmanager
def refused_if_full() -> Iterator[None]:
    """Turn the error of a full disk, or of a used-up quota of the file system, into a refusal."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refused(DISK_IS_FULL, "full") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _finish(results: Iterator[None]) -> None:
    """Wait for the threads, and raise what one of them raised."""
    for _ in results:
        pass


def _make_durable(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fchmod(handle, FILE_MODE)
        os.fsync(handle)
    finally:
        os.close(handle)
