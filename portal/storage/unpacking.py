"""Reads what the unpacker sends, piece by piece, and trusts none of it: the program has read hostile data."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from portal import sandbox
from portal.projects.unpacking.common import MIB, BadUploadError
from portal.projects.unpacking.names import clean_path
from portal.refused import Refused
from portal.storage.blobs import DISK_IS_FULL, data_folder
from portal.storage.unpacker import DATA, END, FILE, FULL, HEAD, MAX_ENTRIES, MAX_FRAME_BYTES, NOTES, REFUSED, TOTAL

MAX_SECONDS = 6 * 3600.0
"""200 GiB of gzip take an hour on a slow machine."""
MAX_MEMORY_BYTES = 4 << 30
"""The entries of a million files take half of this."""
AT_ONCE = threading.BoundedSemaphore(1)
MAX_DIGITS = 19
MAX_NOTES, MAX_NOTE_CHARACTERS = 50, 1000


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """A file of an archive. Its pieces must be read before the next file."""

    path: str
    size: int
    executable: bool
    pieces: Iterator[bytes]


class Unpacked:
    """The files of an archive while it is unpacked; afterwards ``notes`` has sentences on what was left out or renamed."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        """Wait until all names are judged. Raises what reading the files raises."""
        self._stream, self._left = stream, max_bytes
        kind, data = self._frame()
        if kind != TOTAL or not (data.isdigit() and len(data) < MAX_DIGITS):
            raise sandbox.NoAnswerError("the unpacker did not keep to the format")
        self.total_bytes = int(data)
        """Of all files, as the archive announces."""
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[UnpackedFile]:
        """Yield the files. Raises BadUploadError with the sentence for a refusal, NoAnswerError, or Refused if the disk is full."""
        for _ in range(MAX_ENTRIES + 1):
            kind, data = self._frame()
            if kind == NOTES:
                self.notes = _notes(data)
                return
            if kind != FILE:
                break
            yield self._file(data)
        raise sandbox.NoAnswerError("the unpacker did not keep to the format")

    def _file(self, data: bytes) -> UnpackedFile:
        try:
            about: Any = json.loads(data)
            path, size, runs = str(about["path"]), int(about["size"]), bool(about["executable"])
            if clean_path(path) != path or not path or size < 0:
                raise ValueError(path)
        except (ValueError, KeyError, TypeError, RecursionError, BadUploadError) as error:
            raise sandbox.NoAnswerError("the unpacker announced a file that cannot be") from error
        return UnpackedFile(path, size, runs, self._pieces(size))

    def _pieces(self, size: int) -> Iterator[bytes]:
        while True:
            kind, data = self._frame()
            if kind == END and size == 0:
                return
            size -= len(data)
            self._left -= len(data)
            if kind != DATA or not data or size < 0 or self._left < 0:
                raise sandbox.NoAnswerError("the unpacker sent other bytes than it announced")
            yield data

    def _frame(self) -> tuple[bytes, bytes]:
        head = self._read(HEAD.size)
        kind, length = HEAD.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise sandbox.NoAnswerError("the unpacker sent a frame that is too long")
        data = self._read(length)
        if kind == FULL:
            raise Refused(DISK_IS_FULL, "full")
        if kind == REFUSED:
            raise BadUploadError(data.decode(errors="replace")[:MAX_NOTE_CHARACTERS])
        return kind, data

    def _read(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise sandbox.NoAnswerError("the unpacker ended too early")
        return data


def _notes(data: bytes) -> list[str]:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        found = []
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return [text[:MAX_NOTE_CHARACTERS].replace("\0", "") for text in texts[:MAX_NOTES]]


@contextmanager
def unpacked(archive: IO[bytes], name: str, max_bytes: int) -> Iterator[Unpacked]:
    """Unpack an archive, whose name decides nothing but what it should be. Raises BadUploadError and NoAnswerError.

    A compressed tar is expanded to a temporary file on the disk of datasets: its headers are judged before its contents.
    """
    limits = sandbox.Limits(MAX_SECONDS, MAX_MEMORY_BYTES, max_bytes + 4096 * MIB, AT_ONCE)
    archive.seek(0)
    with sandbox.piped(
        "storage.unpacker", [name, str(max_bytes)], archive, limits, data_folder() / "incoming"
    ) as stream:
        yield Unpacked(stream, max_bytes)
        stream.read(1)  # until the program has ended
