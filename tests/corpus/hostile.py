"""Archives that must be refused. Big ones are made only when asked for their bytes."""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from tests.corpus.making import (
    MIB,
    Case,
    Part,
    entry_within_an_entry,
    info,
    mode,
    notebook,
    pax,
    quoted_overlap,
    raw_header,
    raw_zip,
    tar_of,
)

BAD_NAMES = {
    "parent": "../evil.py",
    "parent-inside": "a/../../evil.py",
    "parent-that-stays-inside": "a/../b.py",
    "parent-at-the-end": "a/..",
    "absolute": "/etc/evil.py",
    "two-slashes-first": "//server/share/evil.py",
    "drive": "C:/evil.py",
    "drive-relative": "c:evil.py",
    "long-part": "a" * 256 + ".py",
    "long-part-in-bytes": "\u00e9" * 130 + ".py",
    "long-path": "/".join(["a" * 100] * 11) + "/b.py",
    "deep": "/".join("abcdefghijklmnopqrstuvwxyz0123456") + "/b.py",
}


BAD_PAIRS = {
    "same-name-twice": ("a.py", "a.py"),
    "composed-and-decomposed": ("caf\u00e9.py", "cafe\u0301.py"),
    "file-then-folder": ("a", "a/b.py"),
    "folder-then-file": ("a/b.py", "a"),
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
    yield case("folder-mode-on-a-file", lambda: raw_zip(good, Part("a", attributes=mode(stat.S_IFDIR))))
    yield case("file-mode-on-a-folder", lambda: raw_zip(good, Part("a/", b"", attributes=mode(stat.S_IFREG))))
    yield case("folder-with-contents", lambda: raw_zip(good, Part("a/", b"contents")))
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
    yield case("backslashes-that-lead-out", lambda: raw_zip(good, Part("a\\..\\..\\evil.py")))
    yield case("backslashes-to-a-server", lambda: raw_zip(good, Part("\\\\server\\share\\evil.py")))
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
        "contiguous": tarfile.CONTTYPE, "gnu-sparse": tarfile.GNUTYPE_SPARSE, "unknown-type": b"Z", "multi-volume": b"M",
        "volume-label": b"V",
    }  # fmt: skip
    for name, kind in kinds.items():
        yield case(name, partial(tar_of, ok, info("odd", kind=kind, link="/etc/passwd")))
        yield case(name, partial(tar_of, ok, info("odd", kind=kind, link="ok.py"), gz=True), gz=True)
    yield case("link-over-a-folder", lambda: tar_of(ok, info("d", kind=tarfile.SYMTYPE, link="ok.py"), info("d/evil")))
    yield case("pax-path-leaves", lambda: pax({"path": "../../evil"}))
    yield case("pax-path-absolute", lambda: pax({"path": "/etc/evil"}))
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
    yield case("gzip-damaged", lambda: tar_of(ok, gz=True)[:40] + b"\0" * 40, gz=True)
    for ending, packer in {"bz2": bz2.compress, "xz": lzma.compress}.items():
        named = partial(Case, name=f"code.tar.{ending}")
        yield named(id=f"{ending}-cut", make=partial(lambda pack: pack(tar_of(ok))[:-9], packer))
        yield named(id=f"{ending}-damaged", make=partial(lambda pack: pack(tar_of(ok))[:20] + b"\1" * 90, packer))
        yield named(id=f"{ending}-text-behind", make=partial(lambda pack: pack(tar_of(ok)) + b"hidden", packer))
        yield named(
            id=f"{ending}-bomb", make=partial(lambda pack: pack(tar_of(info("zeros.bin", b"\0" * 300 * MIB))), packer)
        )


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
        "shell-script-with-binary": ("a.sh", b"#!/bin/sh\n\0"),
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
