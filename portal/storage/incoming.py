"""The bytes of uploads until their version is checked: a file each, appended piece by piece.

The row has the offset that survives a loss of power. A process that is killed in the middle of a piece leaves a file that is
longer than that: the next piece begins at the offset and overwrites it. No transaction is open while bytes are written; a lock
on the file, which ends with the process that holds it, lets one piece at a time in.
"""

import fcntl
import hashlib
import hmac
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.conf import settings
from django.db.models import F, Sum
from django.utils import timezone

from portal.refused import Refused
from portal.storage.blobs import DISK_IS_FULL, FILE_MODE, FOLDER_MODE, data_folder, refused_if_full
from portal.storage.models import DatasetVersion, Upload

MAX_PIECE_BYTES = 16 << 20
"""A piece that breaks off is sent again; the portal has each one whole on its disk before it looks at it."""
READ_BYTES = 1 << 20
MARGIN_BYTES = 2 << 30
"""The space that uploads leave on the disk: logs, outputs and the database of a small lab are on the same one."""
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 5.0, 0.05
"""How long a piece waits for another one of its upload: a sender tries again while the portal still writes its last piece."""
ALGORITHMS = ("sha256", "sha1")
"""For checksums of pieces; SHA-1 is the one that tus requires, and finds damage on the way, no attacks."""


class UploadGoneError(Exception):
    """The upload was deleted meanwhile."""


class UploadBusyError(Exception):
    """Another piece of this upload is being written."""


class OffsetMismatchError(Exception):
    """The piece does not begin where the upload ends, at ``offset``."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"The upload is at {offset}.")
        self.offset = offset


class WrongChecksumError(Exception):
    """The piece was damaged on the way. Nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum of a piece: one of ``ALGORITHMS``, and its digest."""

    algorithm: str
    digest: bytes


def path_of(upload: uuid.UUID) -> Path:
    return data_folder() / "incoming" / f"{upload}.upload"


def offset_of(upload: Upload) -> int:
    """Return how many bytes the portal has: not more than the file, should that have been lost."""
    try:
        return min(upload.offset, path_of(upload.pk).stat().st_size)
    except FileNotFoundError:
        return 0


def append(upload: Upload, offset: int, piece: IO[bytes], length: int, checksum: Checksum | None = None) -> int:
    """Append a piece of ``length`` bytes, make it durable, and return the new offset.

    Raises UploadGoneError, UploadBusyError, OffsetMismatchError, WrongChecksumError, or Refused.
    """
    if length > MAX_PIECE_BYTES:
        raise Refused(
            f"A piece has at most {MAX_PIECE_BYTES >> 20} MiB. Set the chunk size of your client.", "too_large"
        )
    require_space(length)
    with _locked(upload.pk) as handle:
        row = Upload.objects.filter(pk=upload.pk, version__state=DatasetVersion.State.UPLOADING).first()
        if row is None:
            raise UploadGoneError
        have = min(row.offset, os.fstat(handle).st_size)
        if offset != have:
            raise OffsetMismatchError(have)
        if offset + length > row.length:
            raise Refused(
                f"The upload was announced with {row.length:,} bytes; this piece goes beyond that.", "too_large"
            )
        with refused_if_full():
            _write(handle, offset, piece, length, checksum)
        now = timezone.now()
        rows = Upload.objects.filter(pk=row.pk, offset=row.offset)
        if not rows.update(offset=offset + length, progressed_at=now):
            raise UploadGoneError
    upload.offset, upload.progressed_at = offset + length, now
    return upload.offset


def _write(handle: int, offset: int, piece: IO[bytes], length: int, checksum: Checksum | None) -> None:
    digest = hashlib.new(checksum.algorithm, usedforsecurity=False) if checksum else None
    os.ftruncate(handle, offset)
    os.lseek(handle, offset, os.SEEK_SET)
    left = length
    while left:
        data = piece.read(min(left, READ_BYTES))
        if not data:
            raise Refused("The body ends before its announced length. Send the piece again.")
        left -= len(data)
        if digest is not None:
            digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    if checksum and digest and not hmac.compare_digest(digest.digest(), checksum.digest):
        os.ftruncate(handle, offset)
        raise WrongChecksumError
    os.fsync(handle)


@contextmanager
def _locked(upload: uuid.UUID) -> Iterator[int]:
    """Open the file of an upload for the only writer. Raises UploadBusyError."""
    path = path_of(upload)
    path.parent.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    with refused_if_full():
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UploadBusyError from None
                time.sleep(LOCK_PAUSE_SECONDS)
        yield handle
    except UploadGoneError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def delete(upload: uuid.UUID) -> None:
    """Delete the bytes of an upload whose row is gone."""
    path_of(upload).unlink(missing_ok=True)


def require_space(more: int) -> None:
    """Refuse when the disk has no room for so many bytes more."""
    folder = next(path for path in (data_folder(), *data_folder().parents) if path.is_dir())
    if shutil.disk_usage(folder).free < more + MARGIN_BYTES:
        raise Refused(DISK_IS_FULL, "full")


def require_room(more: int) -> None:
    """Refuse when the disk has no room for so many bytes beside what all uploads under way still need."""
    announced = Upload.objects.aggregate(left=Sum(F("length") - F("offset")))["left"] or 0
    require_space(more + announced)


def max_bytes() -> int:
    """Return how large one version may be."""
    return int(settings.MAX_DATASET_GIB) << 30


def require_size(total: int) -> None:
    """Refuse a version that is too large."""
    if total > max_bytes():
        raise Refused(
            f"A version of a dataset has at most {settings.MAX_DATASET_GIB:,} GiB. Split it, or ask an admin for a higher limit.",
            "too_large",
        )
