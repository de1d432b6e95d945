"""Reads a zip. Python's reader parses the central directory; this module checks what the reader does not.

These are the number of entries before objects are created for them, overlapping entries, data before the first entry,
headers that contradict each other, types of files and, during decompression, sizes and checksums.
"""

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO

from .codepages import ZIP_ENCODING, decode_names
from .common import (
    CODE,
    BadUploadError,
    Entry,
    Limits,
    file_size,
    inflate,
    printable,
    read_range,
)

MAX_LINK_BYTES = 4096
UTF8_FLAG = 0x800


def zip_directory(file: IO[bytes], limits: Limits) -> tuple[int, int]:
    """Return the offset of the central directory and its number of entries, counted before objects are created."""
    size = file_size(file)
    file.seek(max(0, size - 65_557))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise BadUploadError("This zip has no end. Pack it again, or send it again.")
    disk, first_disk, _, count, length, offset, comment = struct.unpack_from("<4H2LH", tail, at + 4)
    end = size - len(tail) + at
    if at + 22 + comment != len(tail):
        raise BadUploadError("There is data after the end of this zip. Pack it again.")
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        _, record, _ = struct.unpack_from("<LQL", tail, at - 16)
        file.seek(record)
        fields = file.read(56)
        if record + 56 != end - 20 or fields[:4] != b"PK\x06\x06":
            raise BadUploadError("This zip's end is damaged. Pack it again.")
        disk, first_disk, _, count, length, offset = struct.unpack_from("<2L4Q", fields, 16)
        end = record
    if disk or first_disk:
        raise BadUploadError("This is a part of a split zip. Pack it as one file.")
    if length > limits.directory_bytes or count > limits.read_entries:
        raise BadUploadError(limits.too_many_entries())
    if offset + length != end:
        raise BadUploadError("This zip's central directory is not where it should be. Pack it again.")
    file.seek(offset)
    directory = file.read(length)
    found = at = 0
    while at < length:
        if directory[at : at + 4] != b"PK\x01\x02" or at + 46 > length:
            raise BadUploadError("This zip's central directory is damaged. Pack it again.")
        at += 46 + sum(struct.unpack_from("<3H", directory, at + 28))
        found += 1
        if found > limits.read_entries:
            raise BadUploadError(limits.too_many_entries())
    if found != count or at != length:
        raise BadUploadError("The number of entries in this zip is wrong. Pack it again.")
    return offset, found


def read_zip(file: IO[bytes], limits: Limits = CODE) -> tuple[list[Entry], list[str]]:
    """Return the entries, and a note if the encoding of their names was guessed."""
    directory_at, count = zip_directory(file, limits)
    entries: list[Entry] = []
    ranges: list[tuple[int, int, str]] = []
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
    if len(infos) != count:
        raise BadUploadError("The number of entries in this zip is wrong. Pack it again.")
    names, notes = zip_names(infos)
    for info, name in zip(infos, names, strict=True):
        is_dir = name.endswith("/")
        start = zip_data_start(file, info, name, directory_at)
        ranges.append((info.header_offset, start + info.compress_size, name))
        entries.append(zip_entry(info, name, is_dir, zip_pieces(file, start, info, name)))
    check_ranges(ranges, directory_at)
    return entries, notes


def zip_names(infos: Sequence[zipfile.ZipInfo]) -> tuple[list[str], list[str]]:
    """Return the names of all entries, with slashes between folders, and notes on how they were read.

    ``orig_filename`` is the complete name: ``filename`` was already cut at a NUL.
    """
    names = [info.orig_filename for info in infos]
    unstated = [number for number, info in enumerate(infos) if not info.flag_bits & UTF8_FLAG]
    decoded, code_page = decode_names([names[number].encode(ZIP_ENCODING) for number in unstated])
    for number, name in zip(unstated, decoded, strict=True):
        names[number] = name
    notes = []
    if code_page:
        notes.append(
            f"The names in this zip were read as {code_page}. If they look wrong, pack it again with names in UTF-8."
        )
    if any("\\" in name for name in names) and not any("/" in name for name in names):
        names = [name.replace("\\", "/") for name in names]  # as old versions of Windows write them
    return names, notes


def zip_entry(info: zipfile.ZipInfo, name: str, is_dir: bool, pieces: Callable[[], Iterator[bytes]]) -> Entry:
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    entry = Entry(
        name,
        is_dir,
        info.file_size,
        pieces,
        executable=bool(mode & stat.S_IXUSR) if kind else None,
        special=kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK),
        problem=zip_problem(info, name, kind, is_dir),
    )
    if kind != stat.S_IFLNK or entry.problem:
        return entry
    if info.file_size > MAX_LINK_BYTES:
        return replace(entry, problem=f"{printable(name)} is a link, but has the content of a file. Pack it again.")
    return replace(entry, link=b"".join(pieces()).decode(errors="surrogateescape"))


def zip_problem(info: zipfile.ZipInfo, name: str, kind: int, is_dir: bool) -> str:
    """Return why an entry cannot be accepted; empty if it can."""
    if (kind == stat.S_IFDIR) != is_dir and kind != 0:
        return f"{printable(name)} is marked both as a file and as a folder. Pack it again."
    if is_dir and (info.file_size or info.compress_size > 2):
        return f"The folder {printable(name)} has content. Pack it again."
    if info.flag_bits & (0x1 | 0x40 | 0x2000) or info.compress_type == 99:
        return f"{printable(name)} is encrypted. Pack it again without a password."
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 0x20:
        return f"{printable(name)} is compressed with an unusual method. Pack it again with deflate."
    return ""


def zip_data_start(file: IO[bytes], info: zipfile.ZipInfo, name: str, directory_at: int) -> int:
    """Return the offset of an entry's data, after checking that its own header agrees with the central directory."""
    if info.header_offset >= directory_at:
        raise BadUploadError(f"{printable(name)} is not at its offset in this zip. Pack it again.")
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise BadUploadError(f"{printable(name)} is not at its offset in this zip. Pack it again.")
    flags, method = struct.unpack_from("<2H", header, 6)
    name_length, extra_length = struct.unpack_from("<2H", header, 26)
    raw = info.orig_filename.encode("utf-8" if info.flag_bits & UTF8_FLAG else ZIP_ENCODING, "surrogatepass")
    if file.read(name_length) != raw or method != info.compress_type or (flags ^ info.flag_bits) & 0x1:
        raise BadUploadError(f"{printable(name)} has contradictory headers in this zip. Pack it again.")
    start: int = info.header_offset + 30 + name_length + extra_length
    return start


def check_ranges(ranges: list[tuple[int, int, str]], directory_at: int) -> None:
    """Refuse entries that share bytes (an overlapping zip bomb), and data before the first entry (a disguised file)."""
    end = 0
    for number, (start, stop, name) in enumerate(sorted(ranges)):
        if start < end or stop > directory_at:
            raise BadUploadError(f"{printable(name)} shares data with another entry of this zip. Pack it again.")
        if number == 0 and start != 0:
            raise BadUploadError("There is data before the beginning of this zip. Pack it again.")
        end = stop


def zip_pieces(file: IO[bytes], start: int, info: zipfile.ZipInfo, name: str) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        source = read_range(file, start, info.compress_size)
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        size = checksum = 0
        for piece in inflate(lambda: next(source, b""), inflater) if deflated else source:
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
            if size > info.file_size:
                break
            yield piece
        if size != info.file_size or checksum != info.CRC or next(source, b"") or inflater.unused_data:
            raise BadUploadError(f"{printable(name)} does not match its size or checksum in this zip. Pack it again.")

    return pieces
