"""The hashes of the blobs that a check adds, noted on the disk before the store has them.

A check that ends deletes its journal. The journal of one that was killed stays, and ``collecting`` deletes of its blobs what no
version names. That must not meet a check, which may find such a blob in the store and use it: ``checks_may_run`` and
``no_check_runs`` exclude each other.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from portal.storage.blobs import FILE_MODE, FOLDER_MODE, BlobStore, LocalFile, data_folder, refused_if_full, sync_folder

ENDING = ".added"


class BlobJournal:
    """Puts blobs into a store, and notes those that are new first. Each check has a journal of its own."""

    def __init__(self, store: BlobStore, version: int) -> None:
        self._store, self._path = store, folder() / f"{version}-{uuid.uuid4()}{ENDING}"

    def __enter__(self) -> Self:
        _make_folder()
        with refused_if_full():
            self._file = self._path.open("xb+")
            self._path.chmod(FILE_MODE)
            sync_folder(self._path.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def incoming(self) -> AbstractContextManager[IO[bytes]]:
        """Open a temporary file as ``BlobStore.incoming`` does."""
        return self._store.incoming()

    def put(self, files: Sequence[LocalFile]) -> set[str]:
        """Store files as ``BlobStore.put`` does."""
        new = {sha256 for _, sha256 in files if self._store.size(sha256) is None}
        with refused_if_full():
            self._file.writelines(f"{sha256}\n".encode() for sha256 in sorted(new))
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._store.put(files)

    def undo(self) -> None:
        """Delete the blobs that this check has added. No other check runs that could have found them in the store."""
        self._file.seek(0)
        for line in self._file:
            self._store.delete(line.decode().strip())
        self.forget()

    def forget(self) -> None:
        """Delete the journal: a version names its blobs, or they are deleted."""
        self._path.unlink(missing_ok=True)


def folder() -> Path:
    """Return the folder of journals, whether it exists or not."""
    return data_folder() / "journals"


def _make_folder() -> None:
    for path in (data_folder(), folder()):
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def checks_may_run() -> AbstractContextManager[bool]:
    """Keep ``no_check_runs`` away; yield False, at once, where that is under way. Checks do not exclude each other here."""
    return _locked(fcntl.LOCK_SH)


def no_check_runs() -> AbstractContextManager[bool]:
    """Keep checks away; yield False, at once, where one runs, also one that others take for dead."""
    return _locked(fcntl.LOCK_EX)


@contextmanager
def _locked(kind: int) -> Iterator[bool]:
    _make_folder()
    handle = os.open(data_folder() / "checks.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        yield _try_lock(handle, kind)
    finally:
        os.close(handle)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
