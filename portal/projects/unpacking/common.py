"""Shared by the readers: limits, the entries that they return, bounded reading."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

MIB = 1024 * 1024
CHUNK = MIB
MAX_RATIO = 100
MAX_PROBLEMS = 8
"""Maximum number of problems that a refusal lists."""
RATIO_CHECK_BYTES = 64 * MIB
"""The ratio is checked only above this size: a harmless file of zeros can be compressed to a thousandth."""


class BadUploadError(Exception):
    """The upload cannot be accepted; the text is for the user who sent it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an upload may have, and what to do when it has more."""

    entries: int
    """Maximum number of files and folders that are kept."""
    read_entries: int
    """Maximum number that is read: some are left out."""
    total_bytes: int
    """Of all files, unpacked."""
    directory_bytes: int
    """Of the central directory of a zip."""
    header_seconds: float
    """For reading the headers of a tar."""
    fewer_entries: str
    less_data: str

    def too_many_entries(self) -> str:
        return f"It has more than {self.entries:,} files and folders. {self.fewer_entries}"

    def too_large(self) -> str:
        return f"It unpacks to more than {self.total_bytes // MIB} MiB. {self.less_data}"


CODE = Limits(
    entries=10_000,
    read_entries=200_000,  # an upload with a virtual environment or the objects of Git has many that are left out
    total_bytes=1024 * MIB,
    directory_bytes=64 * MIB,  # 200,000 entries with long names fit
    header_seconds=15,  # 10,000 normal headers take a third of a second; malicious ones can take seconds each
    fewer_entries="Leave out data and installed packages.",
    less_data="Leave data out, and put it into a dataset.",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link of an upload. Its content is read only after all entries have been judged."""

    path: str
    """As the upload has it, until ``names`` has read it."""
    is_dir: bool
    size: int = 0
    pieces: Callable[[], Iterable[bytes]] = tuple
    executable: bool | None = None
    """None where the upload does not state it: then a file that begins with ``#!`` is executable."""
    link: str | None = None
    """The path to which a link leads, from the folder that it is in; None for what is no link."""
    from_top: bool = False
    """The path of the link is from the top of the upload: a hard link of a tar."""
    special: bool = False
    """It is a device, a pipe or a socket."""
    problem: str = ""
    """Why it cannot be accepted: a sentence. An entry that is left out has none."""


class Budget:
    """Counts unpacked bytes as they are read, whatever the headers announce."""

    def __init__(self, packed: int, limits: Limits = CODE) -> None:
        self.packed, self.limits = packed, limits
        self.unpacked = 0

    def spend(self, count: int) -> None:
        self.unpacked += count
        if self.unpacked > self.limits.total_bytes:
            raise BadUploadError(self.limits.too_large())
        if self.unpacked > RATIO_CHECK_BYTES and self.unpacked > MAX_RATIO * self.packed:
            raise BadUploadError(
                f"It unpacks to more than {MAX_RATIO} times its size, which only malicious or empty data does. Leave that out."
            )


def printable(name: str) -> str:
    """Quote a name in a form that is safe within a sentence."""
    text = name if len(name) <= 80 else f"{name[:60]}...{name[-15:]}"
    return "“" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + "”"


def refuse(problems: Sequence[str]) -> None:
    """Raise BadUploadError with the first problems, if there are any."""
    if problems:
        more = len(problems) - MAX_PROBLEMS
        rest = [f"And {more} more problem{'s' * (more > 1)} of this kind."] if more > 0 else []
        raise BadUploadError(" ".join([*problems[:MAX_PROBLEMS], *rest]))


def inflate(read: Callable[[], bytes], inflater: Any) -> Iterator[bytes]:
    """Yield the decompressed stream in pieces of at most CHUNK bytes."""
    tail = b""
    while not inflater.eof:
        fed = tail or read()
        piece = inflater.decompress(fed, CHUNK)
        tail = inflater.unconsumed_tail
        if not fed and not piece:
            raise BadUploadError("It ends too early. Pack it again, or send it again.")
        if piece:
            yield piece


def read_range(file: IO[bytes], offset: int, size: int) -> Iterator[bytes]:
    file.seek(offset)
    while size > 0:
        piece = file.read(min(size, CHUNK))
        if not piece:
            raise BadUploadError("It ends too early. Pack it again, or send it again.")
        size -= len(piece)
        yield piece


def file_size(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)
