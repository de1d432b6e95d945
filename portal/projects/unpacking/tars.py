"""Reads a tar, with or without gzip. Python's reader parses the headers; each is checked before the reader uses it."""

import lzma
import re
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import IO, Any

from .common import (
    CHUNK,
    CODE,
    BadUploadError,
    Budget,
    Entry,
    Limits,
    file_size,
    inflate,
    printable,
    read_range,
)

MAX_EXTENDED_HEADER = 64 * 1024
"""Maximum bytes of one extended header, which Python would read into memory at any size."""
KINDS = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE),
)
LONG_NUMBER = re.compile(rb"\d{301}")
"""Such a number in an extended header is refused: before Python 3.11.10, its reader needs time quadratic in the length of a
number. Names of files are shorter."""
MAX_MEMBERS = 20_000
MIN_MEMBER_BYTES = 32 * 1024
"""How many members a compressed stream may have: so many, and in a larger one as many as have this size. Parallel compressors
write one per 64 KiB or more, which they pack to less."""


def read_tar(file: IO[bytes], limits: Limits = CODE) -> list[Entry]:
    size = file_size(file)
    headers = 0
    deadline = time.monotonic() + limits.header_seconds

    class CheckedHeader(tarfile.TarInfo):
        """A header that is checked before tarfile uses it: tarfile would read extended headers of any size."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "CheckedHeader":
            nonlocal headers
            info = super().frombuf(buf, encoding, errors)
            headers += 1
            if time.monotonic() > deadline:
                raise BadUploadError("Its headers take too long to read. Pack it again.")
            if headers > 2 * limits.read_entries:  # each entry may have an extended header
                raise BadUploadError(limits.too_many_entries())
            check_tar_kind(info)
            return info

        def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            begin = file.tell()
            if LONG_NUMBER.search(b"".join(read_range(file, begin, self.size))):
                raise BadUploadError(
                    f"The header of {printable(self.name)} is not one that an archiving tool writes. Pack it again."
                )
            file.seek(begin)
            info: tarfile.TarInfo = super()._proc_pax(archive)  # type: ignore[misc]
            return info

    file.seek(0)
    entries: list[Entry] = []
    with tarfile.TarFile(
        fileobj=file, mode="r", tarinfo=CheckedHeader, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        while (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else it would keep the headers of a million files
            if info.size < 0 or info.offset_data + info.size > size:
                raise BadUploadError(f"{printable(info.name)} ends too early. Pack it again, or send it again.")
            if info.sparse is not None or any(key.startswith("GNU.sparse") for key in info.pax_headers):
                raise BadUploadError(f"{printable(info.name)} is stored as a sparse file. Pack again without --sparse.")
            if info.isdir() and info.size:
                raise BadUploadError(f"The folder {printable(info.name)} has content. Pack it again.")
            entries.append(
                Entry(
                    info.name,
                    info.isdir(),
                    info.size,
                    partial(read_range, file, info.offset_data, info.size),
                    executable=bool(info.mode & stat.S_IXUSR),
                    link=info.linkname if info.issym() or info.islnk() else None,
                    from_top=info.islnk(),
                    special=info.isdev(),
                )
            )
            if len(entries) > limits.read_entries:
                raise BadUploadError(limits.too_many_entries())
        end = archive.offset
    # tarfile treats a damaged header as the end of the archive; only zeros may follow it
    if any(piece.count(0) != len(piece) for piece in read_range(file, end, size - end)):
        last = f" after {printable(entries[-1].path)}" if entries else ""
        raise BadUploadError(f"This tar is damaged{last}. Pack it again, or send it again.")
    return entries


def check_tar_kind(info: tarfile.TarInfo) -> None:
    extended = (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )
    if info.size < 0 or (info.type in extended and info.size > MAX_EXTENDED_HEADER):
        raise BadUploadError(
            f"The header of {printable(info.name)} is not one that an archiving tool writes. Pack it again."
        )
    if info.type not in (*KINDS, *extended):
        raise BadUploadError(f"{printable(info.name)} is neither a file nor a folder. Leave it out.")


def max_members(packed: int) -> int:
    return max(MAX_MEMBERS, packed // MIN_MEMBER_BYTES)


def gunzip(file: IO[bytes], limits: Limits = CODE) -> IO[bytes]:
    """Decompress a gzip stream, which may have several members, to a temporary file."""
    budget = Budget(file_size(file), limits)
    out = tempfile.TemporaryFile()  # noqa: SIM115  # read until the program ends
    file.seek(0)
    pending = file.read(CHUNK)
    members = 0
    while pending.strip(b"\0"):
        members += 1
        if members > max_members(budget.packed):
            raise BadUploadError("It has too many gzip members. Pack it again.")
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        feed = chain([pending], iter(lambda: file.read(CHUNK), b""))
        for piece in inflate(partial(next, feed, b""), inflater):
            budget.spend(len(piece))
            out.write(piece)
        pending = inflater.unused_data or file.read(CHUNK)
    while rest := file.read(CHUNK):
        if rest.strip(b"\0"):
            raise BadUploadError("There is data after the end of this archive. Pack it again.")
    return out


def expand(file: IO[bytes], decompressor: Callable[[], Any], limits: Limits = CODE) -> IO[bytes]:
    """Decompress a bzip2 or xz stream, which may have several members, to a temporary file."""
    budget = Budget(file_size(file), limits)
    out = tempfile.TemporaryFile()  # noqa: SIM115  # read until the program ends
    file.seek(0)
    pending, members = file.read(CHUNK), 0
    while pending.strip(b"\0"):
        members += 1
        if members > max_members(budget.packed):
            raise BadUploadError("It has too many parts. Pack it again.")
        current = decompressor()
        while not current.eof:
            if current.needs_input:
                pending = pending or file.read(CHUNK)
                if not pending:
                    raise BadUploadError("It ends too early. Pack it again, or send it again.")
            try:
                piece = current.decompress(pending, CHUNK)
            except (OSError, lzma.LZMAError) as error:
                raise BadUploadError("It is damaged. Pack it again, or send it again.") from error
            pending = b""
            budget.spend(len(piece))
            out.write(piece)
        pending = current.unused_data or file.read(CHUNK)
    while rest := file.read(CHUNK):
        if rest.strip(b"\0"):
            raise BadUploadError("There is data after the end of this archive. Pack it again.")
    return out
