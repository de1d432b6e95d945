"""What the readers share: limits, the entry they return, bounded reading."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

MIB = 1024 * 1024
CHUNK = MIB
MAX_ENTRIES = 10_000
MAX_TOTAL = 1024 * MIB
MAX_RATIO = 100
RATIO_FROM = 64 * MIB
"""Below this much unpacked data the ratio does not matter: an honest file of zeros packs a thousandfold."""


class Bad(Exception):  # noqa: N818  # a verdict, not a fault
    """The upload cannot be taken; the text is for the person who sent it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder that an upload holds. Its bytes are read only when everything was judged."""

    path: str
    is_dir: bool
    size: int = 0
    pieces: Callable[[], Iterable[bytes]] = tuple


class Budget:
    """Counts unpacked bytes while they come, whatever the headers promised."""

    def __init__(self, packed: int) -> None:
        self.packed = packed
        self.unpacked = 0

    def spend(self, count: int) -> None:
        self.unpacked += count
        if self.unpacked > MAX_TOTAL:
            raise Bad(too_large())
        if self.unpacked > RATIO_FROM and self.unpacked > MAX_RATIO * self.packed:
            raise Bad(
                f"It unpacks to more than {MAX_RATIO} times its size, as only a trap or empty data does. Leave that out."
            )


def shown(name: str) -> str:
    """A hostile name, made fit to be shown within a sentence."""
    text = name if len(name) <= 80 else f"{name[:60]}...{name[-15:]}"
    return "“" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + "”"


def too_many_entries() -> str:
    return f"There are more than {MAX_ENTRIES:,} files and folders in it. Leave out data and installed packages."


def too_large() -> str:
    return f"It unpacks to more than {MAX_TOTAL // MIB} MiB. Leave data out: datasets belong on the nodes."


def inflated(read: Callable[[], bytes], inflater: Any) -> Iterator[bytes]:
    """Pieces of at most CHUNK bytes, up to the stream's own end."""
    tail = b""
    while not inflater.eof:
        fed = tail or read()
        piece = inflater.decompress(fed, CHUNK)
        tail = inflater.unconsumed_tail
        if not fed and not piece:
            raise Bad("It ends too early. Pack it again, or send it again.")
        if piece:
            yield piece


def plain(file: IO[bytes], offset: int, size: int) -> Iterator[bytes]:
    file.seek(offset)
    while size > 0:
        piece = file.read(min(size, CHUNK))
        if not piece:
            raise Bad("It ends too early. Pack it again, or send it again.")
        size -= len(piece)
        yield piece


def length_of(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)
