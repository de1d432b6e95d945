"""Makes archives, by hand where every field may lie."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True)
class Case:
    """An upload's name and bytes; ``files`` is what an accepted one must give, ``note`` what the note on it must have."""

    id: str
    name: str
    make: Callable[[], bytes]
    files: dict[str, bytes] = field(default_factory=dict)
    note: str = ""


# Zips by hand: every field may lie


@dataclass
class Part:
    """One entry. ``local_name``, ``local_method``, ``crc``, ``size``, ``packed_size`` and ``offset`` default to the truth."""

    name: str | bytes
    data: bytes = b"x"
    deflate: bool = True
    flags: int = 0
    attributes: int = 0
    system: int = 3
    method: int | None = None
    local_method: int | None = None
    local_name: bytes | None = None
    crc: int | None = None
    size: int | None = None
    packed: bytes | None = None
    packed_size: int | None = None
    offset: int | None = None
    extra: bytes = b""


def raw_zip(
    *parts: Part,
    prefix: bytes = b"",
    suffix: bytes = b"",
    count: int | None = None,
    comment: bytes = b"",
    directory_shift: int = 0,
) -> bytes:
    out, directory = io.BytesIO(prefix), b""
    out.seek(len(prefix))
    for part in parts:
        name = part.name.encode() if isinstance(part.name, str) else part.name
        flags = part.flags | (0x800 if isinstance(part.name, str) and not part.name.isascii() else 0)
        method = part.method if part.method is not None else 8 if part.deflate else 0
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = (
            part.packed
            if part.packed is not None
            else packer.compress(part.data) + packer.flush()
            if part.deflate
            else part.data
        )
        crc = zlib.crc32(part.data) if part.crc is None else part.crc
        size = len(part.data) if part.size is None else part.size
        packed_size = len(packed) if part.packed_size is None else part.packed_size
        offset = out.tell() if part.offset is None else part.offset
        local = name if part.local_name is None else part.local_name
        local_method = method if part.local_method is None else part.local_method
        sizes = (crc, packed_size, size, len(local), len(part.extra))
        out.write(struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, local_method, 0, 33, *sizes))
        out.write(local + part.extra + packed)
        directory += struct.pack(
            "<4sBB5H3L5H2L", b"PK\1\2", 20, part.system, 20, flags, method, 0, 33, crc, packed_size, size,
            len(name), len(part.extra), 0, 0, 0, part.attributes, offset,
        ) + name + part.extra  # fmt: skip
    start = out.tell() + directory_shift
    number = len(parts) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), start, len(comment))
    return out.getvalue() + directory + end + comment + suffix


def mode(kind: int, bits: int = 0o644) -> int:
    return (kind | bits) << 16


def quoted_overlap(copies: int, inner: int) -> bytes:
    """Many entries that all inflate the same bytes (as in CVE-2024-0450)."""
    kernel = Part("kernel", b"\0" * inner)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(kernel.data) + packer.flush()
    whole = raw_zip(kernel)
    local = whole[: 30 + len("kernel") + len(packed)]
    crc = zlib.crc32(kernel.data)
    directory = b"".join(
        struct.pack(
            "<4sBB5H3L5H2L", b"PK\1\2", 20, 3, 20, 0, 8, 0, 33, crc, len(packed), inner, 6, 0, 0, 0, 0, 0, 0
        ) + b"kernel"
        for _ in range(copies)
    )  # fmt: skip
    return local + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, copies, copies, len(directory), len(local), 0)


def entry_within_an_entry() -> bytes:
    """The second entry lies in the bytes of the first; sizes, checksums and headers of both are true."""
    inner = Part("inner.py", b"print(1)\n", deflate=False)
    header_and_data = raw_zip(inner)[: 30 + len("inner.py") + len(inner.data)]
    outer = Part("outer.bin", header_and_data, deflate=False)
    return raw_zip(outer, replace(inner, offset=30 + len("outer.bin")))


# Tars


def tar_of(*members: tuple[tarfile.TarInfo, bytes], gz: bool = False, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if gz else "w", format=form, errors="surrogateescape") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "", bits: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, bits
    made.size = len(data) if kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) else 0
    return made, data if made.size else b""


def pax(records: dict[str, str], name: str = "a.py", data: bytes = b"x") -> bytes:
    made, data = info(name, data)
    made.pax_headers = records
    return tar_of((made, data))


def raw_header(name: bytes, size: bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    """A tar header with any bytes as its size, and a right checksum."""
    head = (
        name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0") + b"00000000000\0" + b" " * 8
    )
    head += kind + b"\0" * 100 + magic + b"\0" * (512 - 265)
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def tree(files: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [info(name, data) for name, data in files.items()]


def zip_tree(
    files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, comment: bytes = b"", folders: tuple[str, ...] = ()
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.comment = comment
        for folder in folders:
            archive.writestr(zipfile.ZipInfo(folder), b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def notebook(*sources: str, language: str = "python") -> bytes:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": s} for s in sources
    ]
    kernel = {"name": "k", "display_name": "k", "language": language}
    return json.dumps(
        {
            "cells": cells,
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    ).encode()


def streamed_zip(files: dict[str, bytes]) -> bytes:
    """Written to a pipe: sizes follow the data."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += bytes(data)
            return len(data)

    out = Pipe()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.data


def zip64(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    whole = out.getvalue()
    at = whole.rindex(b"PK\5\6")
    count, length, start = struct.unpack_from("<H2L", whole, at + 10)
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return whole[:at] + record + locator + end


def with_global(files: dict[str, bytes]) -> bytes:
    record = b"52 comment=" + b"a" * 40 + b"\n"
    return (
        raw_header(b"pax_global_header", b"%011o" % len(record), b"g") + record.ljust(512, b"\0") + tar_of(*tree(files))
    )


def in_pieces(data: bytes, pack: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    return b"".join(pack(data[at : at + 700]) for at in range(0, len(data), 700))


def named_gzip(data: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("code.tar", "wb", fileobj=out) as packed:
        packed.write(data)
    return out.getvalue()
