"""Reads a tar, packed by gzip or not. Python's reader parses the headers, each judged before it acts on it."""

import re
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import IO

from .common import CHUNK, MAX_ENTRIES, Bad, Budget, Entry, inflated, length_of, plain, shown, too_many_entries
from .names import clean_path

MAX_EXTENDED_HEADER = 64 * 1024
"""Of one extended header, which Python would read into memory whatever its size."""
MAX_HEADER_SECONDS = 5
"""10,000 honest headers take a third of a second; some crafted ones take seconds each."""
LONG_NUMBER = re.compile(rb"\d{301}")
"""In an extended header: before Python 3.11.10 its reader takes the square of a number's length to look for a word behind it.
Names of files are shorter."""
MAX_GZIP_MEMBERS = 20_000
"""Parallel compressors write one per 64 KiB or more."""


def read_tar(file: IO[bytes]) -> list[Entry]:
    size = length_of(file)
    headers = 0
    deadline = time.monotonic() + MAX_HEADER_SECONDS

    class Judged(tarfile.TarInfo):
        """Refuses what we take from nobody before tarfile acts on it: it reads extended headers of any size."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Judged":
            nonlocal headers
            info = super().frombuf(buf, encoding, errors)
            headers += 1
            if time.monotonic() > deadline:
                raise Bad("Its headers take too long to read. Pack it again.")
            if headers > 2 * MAX_ENTRIES:  # each entry may have an extended header
                raise Bad(too_many_entries())
            check_tar_kind(info)
            return info

        def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            begin = file.tell()
            if LONG_NUMBER.search(b"".join(plain(file, begin, self.size))):
                raise Bad(f"The header of {shown(self.name)} is not one that a tool would write. Pack it again.")
            file.seek(begin)
            return super()._proc_pax(archive)  # type: ignore[misc]

    file.seek(0)
    entries: list[Entry] = []
    with tarfile.TarFile(fileobj=file, mode="r", tarinfo=Judged, encoding="utf-8", errors="surrogateescape") as archive:
        for info in archive:
            path = clean_path(info.name)
            if info.size < 0 or info.offset_data + info.size > size:
                raise Bad(f"{shown(info.name)} ends too early. Pack it again, or send it again.")
            if info.sparse is not None or any(key.startswith("GNU.sparse") for key in info.pax_headers):
                raise Bad(f"{shown(info.name)} is stored with holes. Pack again without --sparse.")
            if info.isdir() and info.size:
                raise Bad(f"The folder {shown(info.name)} has contents of its own. Pack it again.")
            if path:
                entries.append(Entry(path, info.isdir(), info.size, tar_pieces(file, info)))
            if len(entries) > MAX_ENTRIES:
                raise Bad(too_many_entries())
        end = archive.offset
    # tarfile takes a damaged header for the end; only zeros may follow it
    if any(piece.count(0) != len(piece) for piece in plain(file, end, size - end)):
        last = f" after {shown(entries[-1].path)}" if entries else ""
        raise Bad(f"This tar is damaged{last}. Pack it again, or send it again.")
    return entries


def check_tar_kind(info: tarfile.TarInfo) -> None:
    extended = (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )
    if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        raise Bad(f"{shown(info.name)} is a link. Put the file itself in its place (tar does with -h).")
    if info.size < 0 or (info.type in extended and info.size > MAX_EXTENDED_HEADER):
        raise Bad(f"The header of {shown(info.name)} is not one that a tool would write. Pack it again.")
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, *extended):
        raise Bad(f"{shown(info.name)} is neither a file nor a folder. Leave it out.")
    if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and info.mode & (stat.S_ISUID | stat.S_ISGID):
        raise Bad(f"{shown(info.name)} asks for another user's rights (setuid). Leave it out.")


def tar_pieces(file: IO[bytes], info: tarfile.TarInfo) -> Callable[[], Iterator[bytes]]:
    return lambda: plain(file, info.offset_data, info.size)


def gunzipped(file: IO[bytes]) -> IO[bytes]:
    """The whole stream in a nameless file; several gzip members in a row are one stream."""
    budget = Budget(length_of(file))
    out = tempfile.TemporaryFile()  # noqa: SIM115  # read until the program ends
    file.seek(0)
    pending = file.read(CHUNK)
    members = 0
    while pending.strip(b"\0"):
        members += 1
        if members > MAX_GZIP_MEMBERS:
            raise Bad("It is made of too many gzip pieces. Pack it again.")
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        feed = chain([pending], iter(lambda: file.read(CHUNK), b""))
        for piece in inflated(partial(next, feed, b""), inflater):
            budget.spend(len(piece))
            out.write(piece)
        pending = inflater.unused_data or file.read(CHUNK)
    while rest := file.read(CHUNK):
        if rest.strip(b"\0"):
            raise Bad("There is something behind the end of this archive. Pack it again.")
    return out
