"""A file to be shown: an output of a job, or a file within the tar of a code version."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``open`` returns what holds the file, from ``offset`` on. It raises FileNotFoundError if that is gone."""

    path: str
    size: int
    sha256: str
    open: Callable[[], BinaryIO]
    offset: int = 0

    def head(self, max_bytes: int) -> bytes:
        """Return the first bytes."""
        with self.open() as file:
            file.seek(self.offset)
            return file.read(min(self.size, max_bytes))

    def pieces(self, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Return a part of the file piece by piece. It is opened at once, so that a missing one is noticed here."""
        return _read(self.open(), self.offset + start, self.size - start if length is None else length)


def _read(file: BinaryIO, position: int, left: int) -> Iterator[bytes]:
    with file:
        file.seek(position)
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
