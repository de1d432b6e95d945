"""Archives made by the tests: hostile ones that must be refused, honest ones that must be taken to the byte.

``hostile()`` and ``honest()`` yield cases; big ones are made only when asked for their bytes.
"""

import gzip
import io
import json
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True)
class Case:
    """An upload's name and bytes; ``files`` is what an honest one must give."""

    id: str
    name: str
    make: Callable[[], bytes]
    files: dict[str, bytes] = field(default_factory=dict)


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


BAD_NAMES = {
    "parent": "../evil.py",
    "parent-inside": "a/../../evil.py",
    "parent-that-stays-inside": "a/../b.py",
    "parent-at-the-end": "a/..",
    "absolute": "/etc/evil.py",
    "two-slashes-first": "//server/share/evil.py",
    "two-slashes-inside": "a//b.py",
    "dot-inside": "a/./b.py",
    "drive": "C:/evil.py",
    "drive-relative": "c:evil.py",
    "backslash": "a\\..\\..\\evil.py",
    "unc": "\\\\server\\share\\evil.py",
    "newline": "a\nb.py",
    "escape": "a\x1b[31m.py",
    "delete": "a\x7f.py",
    "c1-control": "a\x9b31m.py",
    "right-to-left": "a\u202eyp.exe",
    "isolate": "a\u2066b.py",
    "zero-width": "a\u200bb.py",
    "byte-order-mark": "\ufeffa.py",
    "soft-hyphen": "a\u00adb.py",
    "hangul-filler": "a\u3164.py",
    "line-separator": "a\u2028b.py",
    "private-use": "a\ue000b.py",
    "noncharacter": "a\uffffb.py",
    "trailing-dot": "a./b.py",
    "trailing-space": "b.py ",
    "only-dots": "a/.../b.py",
    "windows-con": "con",
    "windows-aux-with-ending": "lib/AUX.py",
    "windows-com1": "com1.tar.gz",
    "windows-superscript": "LPT\u00b9.txt",
    "windows-conin": "CONIN$",
    "windows-space-before-ending": "nul .txt",
    "long-part": "a" * 256 + ".py",
    "long-part-in-bytes": "\u00e9" * 130 + ".py",
    "long-path": "/".join(["a" * 100] * 11) + "/b.py",
    "deep": "/".join("abcdefghijklmnopqrstuvwxyz0123456") + "/b.py",
}

BAD_PAIRS = {
    "same-name-twice": ("a.py", "a.py"),
    "letter-case": ("Train.py", "train.py"),
    "letter-case-of-a-folder": ("Data/a.py", "data/b.py"),
    "sharp-s": ("stra\u00dfe.py", "STRASSE.py"),
    "composed-and-decomposed": ("caf\u00e9.py", "cafe\u0301.py"),
    "file-then-folder": ("a", "a/b.py"),
    "folder-then-file": ("a/b.py", "a"),
    "file-then-folder-in-another-case": ("A", "a/b.py"),
    "dot-slash-twin": ("a.py", "./a.py"),
}


def hostile_zips() -> Iterator[Case]:
    def case(name: str, make: Callable[[], bytes]) -> Case:
        return Case(f"zip-{name}", "code.zip", make)

    good = Part("ok.py")
    for name, text in BAD_NAMES.items():
        yield case(name, partial(raw_zip, good, Part(text)))
    for name, (one, two) in BAD_PAIRS.items():
        yield case(name, partial(raw_zip, Part(one), Part(two)))
    kinds = {
        "symlink": stat.S_IFLNK, "fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "character-device": stat.S_IFCHR,
        "block-device": stat.S_IFBLK, "unknown-kind": 0o150000,
    }  # fmt: skip
    for name, kind in kinds.items():
        yield case(name, partial(raw_zip, good, Part("link", b"/etc/passwd", attributes=mode(kind, 0o777))))
    link = Part("link", b"/etc", attributes=mode(stat.S_IFLNK, 0o777), system=0)
    yield case("symlink-declared-as-from-dos", lambda: raw_zip(good, link))
    yield case(
        "symlink-then-through-it", lambda: raw_zip(Part("d", b"/tmp", attributes=mode(stat.S_IFLNK)), Part("d/evil"))
    )
    yield case("setuid", lambda: raw_zip(good, Part("su", attributes=mode(stat.S_IFREG, 0o4755))))
    yield case("setgid", lambda: raw_zip(good, Part("su", attributes=mode(stat.S_IFREG, 0o2755))))
    yield case("folder-mode-on-a-file", lambda: raw_zip(good, Part("a", attributes=mode(stat.S_IFDIR))))
    yield case("file-mode-on-a-folder", lambda: raw_zip(good, Part("a/", b"", attributes=mode(stat.S_IFREG))))
    yield case("folder-with-contents", lambda: raw_zip(good, Part("a/", b"contents")))
    yield case("nul-in-a-name", lambda: raw_zip(good, Part(b"ok2.py\0.txt")))
    yield case("nul-hides-parent", lambda: raw_zip(good, Part(b"a.py\0/../../evil")))
    yield case("utf-8-that-is-not", lambda: raw_zip(good, Part(b"a\xff.py", flags=0x800)))
    yield case("encrypted", lambda: raw_zip(good, Part("a.py", flags=0x1)))
    yield case("strong-encryption", lambda: raw_zip(good, Part("a.py", flags=0x41)))
    yield case("aes", lambda: raw_zip(good, Part("a.py", method=99)))
    yield case("patch-data", lambda: raw_zip(good, Part("a.py", flags=0x20)))
    for number, what in {12: "bzip2", 14: "lzma", 95: "xz", 1: "shrink", 9: "deflate64"}.items():
        yield case(f"method-{what}", partial(raw_zip, good, Part("a.py", method=number)))
    yield case("two-names", lambda: raw_zip(good, Part("a.py", local_name=b"../a")))
    yield case("two-names-of-one-length", lambda: raw_zip(good, Part("a.py", local_name=b"b.py")))
    yield case("two-methods", lambda: raw_zip(good, Part("a.py", local_method=0)))
    yield case("size-too-small", lambda: raw_zip(good, Part("a.py", b"x" * 5000, size=10)))
    yield case(
        "size-too-small-with-fitting-checksum",
        lambda: raw_zip(Part("a.py", b"x" * 5000, size=10, crc=zlib.crc32(b"x" * 10))),
    )
    yield case("size-too-large", lambda: raw_zip(good, Part("a.py", size=10_000)))
    yield case("wrong-checksum", lambda: raw_zip(good, Part("a.py", crc=1)))
    yield case(
        "stored-sizes-differ",
        lambda: raw_zip(good, Part("a.py", b"x" * 50, deflate=False, size=20, crc=zlib.crc32(b"x" * 20))),
    )
    yield case("not-deflate", lambda: raw_zip(good, Part("a.py", packed=b"\xff" * 40)))
    yield case("data-behind-the-stream", lambda: raw_zip(good, Part("a.py", packed=b"\x03\0hidden", data=b"")))
    yield case("stream-without-end", lambda: raw_zip(good, Part("a.py", packed=b"\0\1\0\xfe\xffx")))
    yield case("entry-elsewhere", lambda: raw_zip(good, Part("a.py", offset=7)))
    yield case("entry-beyond-the-end", lambda: raw_zip(good, Part("a.py", offset=0x7FFFFFFF)))
    yield case("entries-share-a-header", lambda: raw_zip(Part("a.py"), Part("a.py", offset=0)))
    yield case("overlap-by-length", lambda: raw_zip(Part("a.py", packed_size=60, size=60, deflate=False), Part("b.py")))
    yield case("quoted-overlap-bomb", lambda: quoted_overlap(1000, MIB))
    yield case("entry-within-an-entry", entry_within_an_entry)
    yield case("prefix", lambda: raw_zip(good, prefix=b"#!/bin/sh\n"))
    yield case("hidden-first-entry", hidden_first)
    yield case("suffix", lambda: raw_zip(good, suffix=b"PK\3\4more"))
    yield case("comment-longer-than-it-is", lambda: raw_zip(good, comment=b"abc")[:-2])
    yield case("comment-with-an-end-in-it", lambda: raw_zip(good, comment=raw_zip(Part("other.py"))))
    yield case("no-end", lambda: raw_zip(good)[:-22])
    yield case("cut-in-the-middle", lambda: raw_zip(Part("a.py", bytes(range(256)) * 300, deflate=False))[:-30_000])
    yield case("count-too-small", lambda: raw_zip(good, Part("b.py"), count=1))
    yield case("count-too-large", lambda: raw_zip(good, count=7))
    yield case("directory-elsewhere", lambda: raw_zip(good, directory_shift=-1))
    yield case("part-of-several", lambda: split_part(raw_zip(good)))
    yield case("nothing-in-it", lambda: raw_zip())
    yield case("only-folders", lambda: raw_zip(Part("a/", b""), Part("a/b/", b"")))
    yield case("only-rubbish", lambda: raw_zip(Part("__MACOSX/._a.py"), Part(".DS_Store")))
    yield case("evil-in-what-is-left-out", lambda: raw_zip(good, Part("__MACOSX/../../evil")))
    yield case("too-many-entries", lambda: raw_zip(*[Part(f"d/{n}", b"", deflate=False) for n in range(10_001)]))
    yield case("a-million-entries", lambda: million_entries())
    yield case("bomb-of-one-file", lambda: raw_zip(Part("zeros.bin", b"\0" * 300 * MIB)))
    yield case("bomb-declared-as-small", lambda: raw_zip(Part("zeros.bin", b"\0" * 300 * MIB, size=100)))
    yield case("bomb-of-many-files", lambda: raw_zip(*[Part(f"{n}.bin", b"\0" * 3 * MIB) for n in range(100)]))
    yield case("declared-as-2-gib", lambda: raw_zip(good, Part("a.bin", size=2 * 1024 * MIB)))
    yield case(
        "zip64-declared-as-an-exabyte",
        lambda: raw_zip(good, Part("a.bin", size=0xFFFFFFFF, extra=struct.pack("<2HQ", 1, 8, 1 << 60))),
    )
    yield case(
        "zip64-extra-too-short",
        lambda: raw_zip(good, Part("a.bin", size=0xFFFFFFFF, extra=struct.pack("<2HL", 1, 4, 5))),
    )
    yield case("really-a-tar", lambda: tar_of(info("a.py")))
    yield case("really-html", lambda: b"<html><script>alert(1)</script>")


def hidden_first() -> bytes:
    """The table of contents leaves the first entry out: other tools would unpack it."""
    whole = raw_zip(Part("hidden.py"), Part("ok.py"))
    start = whole.index(b"PK\1\2")
    second = whole.index(b"PK\1\2", start + 4)
    end = whole.index(b"PK\5\6")
    directory = whole[second:end]
    return whole[:start] + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), start, 0)


def split_part(whole: bytes) -> bytes:
    at = whole.rindex(b"PK\5\6")
    return whole[: at + 4] + struct.pack("<2H", 1, 0) + whole[at + 8 :]


def million_entries() -> bytes:
    local = raw_zip(Part("a", b"", deflate=False))[:31]
    entry = struct.pack("<4sBB5H3L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 1_000_000
    return local + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0x40, 0x40, len(directory), len(local), 0)


def hostile_tars() -> Iterator[Case]:
    def case(name: str, make: Callable[[], bytes], gz: bool = False) -> Case:
        if gz:
            return Case(f"targz-{name}", "code.tar.gz", make)
        return Case(f"tar-{name}", "code.tar", make)

    ok = info("ok.py")
    for name, text in BAD_NAMES.items():
        yield case(name, partial(tar_of, ok, info(text)))
        yield case(name, partial(tar_of, ok, info(text), gz=True, form=tarfile.GNU_FORMAT), gz=True)
    for name, (one, two) in BAD_PAIRS.items():
        yield case(name, partial(tar_of, info(one), info(two)))
    kinds = {
        "symlink": tarfile.SYMTYPE, "hard-link": tarfile.LNKTYPE, "character-device": tarfile.CHRTYPE,
        "block-device": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE, "contiguous": tarfile.CONTTYPE,
        "gnu-sparse": tarfile.GNUTYPE_SPARSE, "unknown-type": b"Z", "multi-volume": b"M", "volume-label": b"V",
    }  # fmt: skip
    for name, kind in kinds.items():
        yield case(name, partial(tar_of, ok, info("odd", kind=kind, link="/etc/passwd")))
        yield case(name, partial(tar_of, ok, info("odd", kind=kind, link="ok.py"), gz=True), gz=True)
    yield case("symlink-then-through-it", lambda: tar_of(info("d", kind=tarfile.SYMTYPE, link="/tmp"), info("d/evil")))
    yield case("hard-link-then-write", lambda: tar_of(info("d", kind=tarfile.LNKTYPE, link="/etc/passwd"), info("d")))
    yield case("setuid", lambda: tar_of(ok, info("su", bits=0o4755)))
    yield case("setgid", lambda: tar_of(ok, info("su", bits=0o2755)))
    yield case("pax-path-leaves", lambda: pax({"path": "../../evil"}))
    yield case("pax-path-absolute", lambda: pax({"path": "/etc/evil"}))
    yield case("pax-path-with-newline", lambda: pax({"path": "a\nb"}))
    yield case(
        "pax-sparse",
        lambda: pax(
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "9"},
            data=b"1\n0\n9\n".ljust(512, b"\0"),
        ),
    )
    yield case("pax-negative-size", lambda: pax({"size": "-512"}))
    yield case("pax-size-beyond-the-end", lambda: pax({"size": "99999999"}))
    yield case("pax-slow-to-read", lambda: slow_pax())
    yield case("pax-of-digits", lambda: pax({"comment": "7" * 60_000}), gz=True)
    yield case("pax-of-many-digits", lambda: pax({f"a{n}": "7" * 500 for n in range(100)}))
    yield case("global-path-for-all", lambda: global_path())
    yield case("huge-extended-header", lambda: raw_header(b"x", b"%011o" % (300 * MIB), b"x") + b"\0" * 1024)
    yield case("huge-long-name", lambda: raw_header(b"././@LongLink", b"%011o" % (200 * MIB), b"L") + b"a" * 4096)
    yield case("negative-size", lambda: tar_of(ok)[:1024] + raw_header(b"a.py", b"\xff" * 12) + b"\0" * 1024)
    yield case(
        "exabyte-size",
        lambda: tar_of(ok)[:1024] + raw_header(b"a.py", b"\x80" + b"\0" * 3 + b"\x10" + b"\0" * 7) + b"\0" * 1024,
    )
    yield case("size-that-is-no-number", lambda: tar_of(ok)[:1024] + raw_header(b"a.py", b"zzzz") + b"\0" * 1024)
    yield case("wrong-checksum", lambda: tar_of(ok)[:1024] + b"evil".ljust(512, b"\1") + b"\0" * 1024)
    yield case("cut-in-a-file", lambda: tar_of(info("a.bin", b"x" * 5000))[:2000])
    yield case("cut-in-a-header", lambda: tar_of(ok)[:1024] + tar_of(ok)[:300])
    yield case("second-tar-behind-the-end", lambda: tar_of(ok) + tar_of(info("hidden.py")))
    yield case("text-behind-the-end", lambda: tar_of(ok) + b"hidden")
    yield case(
        "folder-with-contents", lambda: raw_header(b"a", b"%011o" % 5, b"5") + b"x".ljust(512, b"\0") + tar_of(ok)
    )
    yield case("not-utf-8", lambda: tar_of(ok, info("a\udcff.py"), form=tarfile.GNU_FORMAT))
    yield case("nothing-in-it", lambda: tar_of())
    yield case("nothing-at-all", lambda: b"")
    yield case("zeros", lambda: b"\0" * 10_240)
    yield case("random", lambda: bytes(range(256)) * 40)
    yield case("only-rubbish", lambda: tar_of(info("p/.git/config"), info("p/._a.py")))
    yield case("too-many-entries", lambda: tar_of(*[info(f"d/{n}", b"") for n in range(10_001)]))
    yield case("too-many-headers", lambda: raw_header(b"x", b"%011o" % 0, b"x") * 30_000)
    yield case("bomb", lambda: gzip.compress(tar_of(info("zeros.bin", b"\0" * 300 * MIB)), 9), gz=True)
    yield case("bomb-in-its-tail", lambda: gzip.compress(tar_of(ok)) + gzip.compress(b"\0" * 300 * MIB, 9), gz=True)
    yield case("bomb-of-members", lambda: gzip.compress(b"\0" * MIB, 9) * 1200, gz=True)
    yield case("a-million-members", lambda: gzip.compress(b"") * 1_000_000, gz=True)
    yield case("larger-than-allowed", lambda: over_a_gib(), gz=True)
    yield case("text-behind-the-gzip", lambda: tar_of(ok, gz=True) + b"hidden", gz=True)
    yield case("zip-behind-the-gzip", lambda: tar_of(ok, gz=True) + raw_zip(Part("hidden.py")), gz=True)
    yield case("gzip-cut", lambda: tar_of(info("a.bin", bytes(range(256)) * 99), gz=True)[:-9], gz=True)
    yield case("gzip-wrong-checksum", lambda: tar_of(ok, gz=True)[:-8] + b"\0" * 8, gz=True)
    yield case("gzip-of-a-zip", lambda: gzip.compress(raw_zip(Part("ok.py"))), gz=True)
    yield case("gzip-of-gzip", lambda: gzip.compress(tar_of(ok, gz=True)), gz=True)
    yield case("really-a-zip", lambda: raw_zip(Part("ok.py")), gz=True)


def slow_pax() -> bytes:
    """Digits that Python searches through in squared time, in every header."""
    body = b"1" * 65_500
    header = raw_header(b"x", b"%011o" % len(body), b"x") + body.ljust(66_048, b"\0")
    return header * 20 + tar_of(info("a.py"))


def global_path() -> bytes:
    record = b"15 path=evil.py"
    record = b"%d path=evil.py\n" % (len(record) + 1)
    header = raw_header(b"g", b"%011o" % len(record), b"g") + record.ljust(512, b"\0")
    return header + tar_of(info("a.py"), info("b.py"))


def over_a_gib() -> bytes:
    """Within the allowed ratio (each piece is a random 64 KiB, repeated), but 1,040 MiB."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as packed:
        packed.write(raw_header(b"big.bin", b"%011o" % (1040 * MIB)))
        block = zlib.compress(bytes(range(256)) * 4)[:2] + bytes((n * n * 31 + n // 7) % 256 for n in range(1022))
        for number in range(1040):
            packed.write(
                (block * 30 + number.to_bytes(1024, "big") + bytes((n * number) % 251 for n in range(1024))) * 32
            )
    return out.getvalue()


def hostile_others() -> Iterator[Case]:
    others = {
        "script-with-binary": ("a.py", b"print(1)\0\0"),
        "script-that-is-a-zip": ("a.py", raw_zip(Part("a.py"))),
        "script-with-a-bad-name": ("con.py", b"x"),
        "script-with-direction-in-its-name": ("a\u202eyp.py", b"x"),
        "notebook-that-is-not": ("a.ipynb", b"{"),
        "notebook-that-is-a-list": ("a.ipynb", b"[]"),
        "notebook-in-r": ("a.ipynb", notebook(language="R")),
        "notebook-nested-deeply": ("a.ipynb", b"[" * 200_000),
        "rar": ("a.rar", b"Rar!\x1a\x07\0"),
        "seven-zip": ("a.7z", b"7z\xbc\xaf\x27\x1c"),
        "executable": ("train", b"\x7fELF"),
        "xz": ("a.tar.xz", b"\xfd7zXZ\0"),
        "no-ending": ("train", b"print(1)"),
        "image": ("a.png", b"\x89PNG\r\n"),
    }
    for name, (upload, data) in others.items():
        yield Case(name, upload, partial(bytes, data))


def hostile() -> Iterator[Case]:
    yield from hostile_zips()
    yield from hostile_tars()
    yield from hostile_others()


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


HONEST_TREES: dict[str, dict[str, bytes]] = {
    "one-script": {"train.py": b"print(1)\n"},
    "a-few": {"train.py": b"import data\n", "data.py": b"x = 1\n", "README.md": b"# Hi\n"},
    "folders": {"train.py": b"1", "lib/__init__.py": b"", "lib/nets/resnet.py": b"2", "configs/base.yaml": b"a: 1\n"},
    "empty-files": {"a.py": b"", "b/c.py": b""},
    "binary": {"train.py": b"1", "weights.bin": bytes(range(256)) * 1000},
    "other-scripts": {"\u8bad\u7ec3.py": b"1", "donn\u00e9es/caf\u00e9.txt": b"2", "\u043c\u043e\u0434\u0435\u043b\u044c.py": b"3"},
    "emoji": {"train.py": b"1", "notes \U0001f680\ufe0f.md": b"2"},
    "spaces-and-signs": {"my train (1).py": b"1", "a+b=c,d;e'f@g#h%i.txt": b"2", "[x]{y}~.txt": b"3"},
    "times-in-names": {"train.py": b"1", "runs/2026-11-21T12:00:00.log": b"2"},
    "hidden-files": {"train.py": b"1", ".gitignore": b"*.pyc\n", ".config/x.toml": b"2"},
    "many-dots": {"a.b.c.tar.gz.txt": b"1", "..hidden": b"2", "...three": b"3"},
    "longest-name": {"a" * 252 + ".py": b"1"},
    "long-path": {"/".join(["folder" * 10] * 8) + "/train.py": b"1", "b.py": b"2"},
    "deepest": {"/".join("abcdefghijklmnopqrstuvwxyz01234") + "/b.py": b"1", "a.py": b"2"},
    "nearly-reserved": {"console.py": b"1", "auxiliary/com10.py": b"2", "nul_model.py": b"3"},
    "archives-inside": {"train.py": b"1", "data.zip": raw_zip(Part("../evil.py")), "data.tgz": gzip.compress(b"x")},
    "html-and-svg": {"train.py": b"1", "report.html": b"<script>alert(1)</script>", "a.svg": b"<svg onload=alert(1)/>"},
    "zeros": {"train.py": b"1", "zeros.npy": b"\0" * 8 * MIB},
    "a-thousand-files": {f"data/{n:04}.txt": b"%d" % n for n in range(1000)} | {"train.py": b"1"},
    "some-megabytes": {"train.py": b"1", "big.bin": bytes((n * 7 + n // 251) % 256 for n in range(MIB)) * 5},
}  # fmt: skip


def honest() -> Iterator[Case]:
    for name, files in HONEST_TREES.items():
        yield Case(f"zip-{name}", "code.zip", partial(zip_tree, files), files)
        yield Case(f"tar-{name}", "code.tar", partial(tar_of, *tree(files)), files)
        yield Case(
            f"targz-{name}",
            "code.tar.gz",
            partial(tar_of, *tree(files), gz=True, form=tarfile.GNU_FORMAT),
            files,
        )
    few = HONEST_TREES["a-few"]
    folders = HONEST_TREES["folders"]
    topped = {f"my project/{name}": data for name, data in few.items()}
    yield Case("zip-stored", "code.zip", lambda: zip_tree(few, zipfile.ZIP_STORED), few)
    yield Case("zip-with-a-comment", "code.zip", lambda: zip_tree(few, comment=b"a1b2c3" * 9), few)
    yield Case("zip-with-folders", "code.zip", lambda: zip_tree(folders, folders=("lib/", "lib/nets/")), folders)
    yield Case("zip-in-a-folder", "CODE.ZIP", lambda: zip_tree(topped, folders=("my project/",)), few)
    yield Case("zip-streamed", "code.zip", lambda: streamed_zip(few), few)
    yield Case("zip-64", "code.zip", lambda: zip64(few), few)
    yield Case(
        "zip-of-macos",
        "code.zip",
        lambda: zip_tree(topped | {"__MACOSX/my project/._train.py": b"m", "my project/.DS_Store": b"d"}),
        few,
    )
    yield Case(
        "zip-utf-8-without-saying-so",
        "code.zip",
        lambda: raw_zip(Part("\u00e9.py".encode()), Part("b.py")),
        {"\u00e9.py": b"x", "b.py": b"x"},
    )
    yield Case(
        "zip-old-code-page",
        "code.zip",
        lambda: raw_zip(Part(b"\x82t\x82.py"), Part("b.py")),
        {"\u00e9t\u00e9.py": b"x", "b.py": b"x"},
    )
    yield Case(
        "zip-decomposed-names",
        "code.zip",
        lambda: raw_zip(Part("cafe\u0301.py"), Part("b.py")),
        {"caf\u00e9.py": b"x", "b.py": b"x"},
    )
    yield Case(
        "zip-unix-modes",
        "code.zip",
        lambda: raw_zip(
            Part("run.sh", attributes=mode(stat.S_IFREG, 0o755)),
            Part("d/", b"", attributes=mode(stat.S_IFDIR, 0o2755) | 16),
        ),
        {"run.sh": b"x"},
    )
    yield Case(
        "zip-dot-slash",
        "code.zip",
        lambda: raw_zip(Part("./", b""), Part("./a.py"), Part("./b/c.py")),
        {"a.py": b"x", "b/c.py": b"x"},
    )
    yield Case(
        "zip-of-a-package",
        "code.zip",
        lambda: zip_tree({"net/__init__.py": b"", "net/train.py": b"1"}),
        {"net/__init__.py": b"", "net/train.py": b"1"},
    )
    yield Case(
        "zip-with-git-and-caches",
        "code.zip",
        lambda: zip_tree(few | {".git/HEAD": b"r", "__pycache__/train.cpython-311.pyc": b"p"}),
        few,
    )
    yield Case(
        "tar-dot-slash",
        "code.tar",
        lambda: tar_of(info("./", kind=tarfile.DIRTYPE), *tree({f"./{n}": d for n, d in few.items()})),
        few,
    )
    yield Case(
        "tar-in-a-folder",
        "code.tgz",
        lambda: tar_of(info("my project", kind=tarfile.DIRTYPE), *tree(topped), gz=True),
        few,
    )
    yield Case("tar-ustar", "code.tar", lambda: tar_of(*tree(few), form=tarfile.USTAR_FORMAT), few)
    yield Case("tar-of-git-archive", "code.tar.gz", lambda: gzip.compress(with_global(few)), few)
    yield Case(
        "tar-folders-twice",
        "code.tar",
        lambda: tar_of(info("a", kind=tarfile.DIRTYPE), info("a/b.py"), info("a", kind=tarfile.DIRTYPE), info("c.py")),
        {"a/b.py": b"x", "c.py": b"x"},
    )
    yield Case(
        "tar-setgid-folder",
        "code.tar",
        lambda: tar_of(info("a", kind=tarfile.DIRTYPE, bits=0o2775), info("a/b.py"), info("c.py")),
        {"a/b.py": b"x", "c.py": b"x"},
    )
    yield Case(
        "tar-old-style",
        "code.tar",
        lambda: raw_header(b"a.py", b"%011o" % 1, b"\0", b"\0" * 8) + b"x".ljust(512, b"\0") + b"\0" * 1024,
        {"a.py": b"x"},
    )
    yield Case("tar-without-its-end", "code.tar", lambda: tar_of(*tree(few))[: 512 * 6], few)
    yield Case(
        "tar-pax-times-and-attributes",
        "code.tar",
        lambda: pax({"mtime": "1.5", "LIBARCHIVE.xattr.com.apple.provenance": "AQ", "SCHILY.xattr.user.x": "y"}),
        {"a.py": b"x"},
    )
    yield Case("targz-in-pieces", "code.tar.gz", lambda: in_pieces(tar_of(*tree(few))), few)
    yield Case("targz-padded", "code.tar.gz", lambda: tar_of(*tree(few), gz=True) + b"\0" * 600, few)
    yield Case("targz-with-its-name", "code.tar.gz", lambda: named_gzip(tar_of(*tree(few))), few)
    yield Case(
        "tar-of-macos", "code.tar.gz", lambda: tar_of(*tree(topped | {"my project/._train.py": b"m"}), gz=True), few
    )
    yield Case("script", "train.py", lambda: b"print('h\xc3\xa9')\n", {"train.py": b"print('h\xc3\xa9')\n"})
    yield Case(
        "script-in-latin-1",
        "my train.py",
        lambda: b"# coding: latin-1\nx = '\xe9'\n",
        {"my train.py": b"# coding: latin-1\nx = '\xe9'\n"},
    )
    yield Case("script-that-is-empty", "a.py", lambda: b"", {"a.py": b""})
    yield Case(
        "notebook",
        "try.ipynb",
        lambda: notebook("print(1)", "%time x = 1"),
        {"try.py": b"# %%\nprint(1)\n\n# %%\n# %time x = 1\n"},
    )


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


def in_pieces(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 700]) for at in range(0, len(data), 700))


def named_gzip(data: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("code.tar", "wb", fileobj=out) as packed:
        packed.write(data)
    return out.getvalue()
