"""Archives that are accepted with a note: odd names, links, what no run needs."""

import bz2
import lzma
import stat
import tarfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.making import Case, Part, in_pieces, info, mode, pax, raw_zip, tar_of

ODD_NAMES = {
    "newline": ("a\nb.py", "a_b.py", "Renamed"),
    "escape": ("a\x1b[31m.py", "a_[31m.py", "Renamed"),
    "delete": ("a\x7f.py", "a_.py", "Renamed"),
    "c1-control": ("a\x9b31m.py", "a_31m.py", "Renamed"),
    "right-to-left": ("a\u202eyp.exe", "a_yp.exe", "Renamed"),
    "isolate": ("a\u2066b.py", "a_b.py", "Renamed"),
    "zero-width": ("a\u200bb.py", "a_b.py", "Renamed"),
    "byte-order-mark": ("\ufeffa.py", "_a.py", "Renamed"),
    "soft-hyphen": ("a\u00adb.py", "a_b.py", "Renamed"),
    "hangul-filler": ("a\u3164.py", "a_.py", "Renamed"),
    "line-separator": ("a\u2028b.py", "a_b.py", "Renamed"),
    "private-use": ("a\ue000b.py", "a_b.py", "Renamed"),
    "noncharacter": ("a\uffffb.py", "a_b.py", "Renamed"),
    "joined-emoji": ("\U0001f469\u200d\U0001f4bb.md", "\U0001f469\u200d\U0001f4bb.md", ""),
    "two-slashes-inside": ("a//b.py", "a/b.py", ""),
    "dot-inside": ("a/./b.py", "a/b.py", ""),
    "trailing-dot": ("a./b.py", "a./b.py", ""),
    "trailing-space": ("b.py ", "b.py ", ""),
    "space-before-a-slash": ("my notes /a.txt", "my notes /a.txt", ""),
    "only-dots": ("a/.../b.py", "a/.../b.py", ""),
    "windows-con": ("con", "con", ""),
    "windows-aux-with-ending": ("lib/AUX.py", "lib/AUX.py", ""),
    "windows-com1": ("com1.tar.gz", "com1.tar.gz", ""),
    "windows-superscript": ("LPT\u00b9.txt", "LPT\u00b9.txt", ""),
}
"""Names in an upload, and what becomes of them: the name in the code version, and the beginning of a note."""


SIMILAR_PAIRS = {
    "letter-case": ("Train.py", "train.py"),
    "letter-case-of-a-folder": ("Data/a.py", "data/b.py"),
    "sharp-s": ("stra\u00dfe.py", "STRASSE.py"),
    "file-then-folder-in-another-case": ("A", "a/b.py"),
}


def odd() -> Iterator[Case]:
    """Uploads with something that no run needs, or an odd name: they are accepted, with a note."""
    ok, good = Part("ok.py"), {"ok.py": b"x"}
    for name, (raw, path, note) in ODD_NAMES.items():
        files = good | {path: b"x"}
        yield Case(f"zip-{name}", "code.zip", partial(raw_zip, ok, Part(raw)), files, note)
        yield Case(f"tar-{name}", "code.tar", partial(tar_of, info("ok.py"), info(raw)), files, note)
    for name, pair in SIMILAR_PAIRS.items():
        files = dict.fromkeys(pair, b"x")
        yield Case(f"zip-{name}", "code.zip", partial(raw_zip, *map(Part, pair)), files, "would be the same on Windows")
        yield Case(f"tar-{name}", "code.tar", partial(tar_of, *map(info, pair)), files, "would be the same on Windows")
    yield from odd_zips()
    yield from odd_tars()
    yield Case("script-of-windows-device", "con.py", lambda: b"x", {"con.py": b"x"})
    yield Case("script-with-direction-in-its-name", "a\u202eyp.py", lambda: b"x", {"a_yp.py": b"x"}, "Renamed")
    yield Case("shell-script", "run.sh", lambda: b"echo 1\n", {"run.sh": b"echo 1\n"})
    yield Case("tar-called-zip", "code.zip", lambda: tar_of(info("ok.py")), good)
    yield Case("zip-called-tar-gz", "code.tar.gz", lambda: raw_zip(ok), good)
    yield Case("bz2", "code.tar.bz2", lambda: bz2.compress(tar_of(info("ok.py"))), good)
    yield Case("bz2-in-pieces", "code.tbz2", lambda: in_pieces(tar_of(info("ok.py")), bz2.compress), good)
    yield Case("xz", "code.tar.xz", lambda: lzma.compress(tar_of(info("ok.py"))), good)
    yield Case("xz-in-pieces", "code.txz", lambda: in_pieces(tar_of(info("ok.py")), lzma.compress), good)


def odd_zips() -> Iterator[Case]:
    ok, good = Part("ok.py"), {"ok.py": b"x"}

    def case(name: str, *parts: Part, files: dict[str, bytes] | None = None, note: str = "") -> Case:
        return Case(f"zip-{name}", "code.zip", partial(raw_zip, ok, *parts), good | (files or {}), note)

    def link(name: str, target: bytes, **more: Any) -> Part:
        return Part(name, target, attributes=mode(stat.S_IFLNK, 0o777), **more)

    yield case("link-outside", link("link", b"/etc/passwd"), note="lead out of the upload: “link”")
    yield case("link-up", link("link", b"../../etc/passwd"), note="lead out of the upload")
    yield case("link-declared-as-from-dos", link("link", b"/etc", system=0), note="lead out of the upload")
    yield case("link-to-nothing", link("link", b"nowhere.py"), note="lead to nothing")
    yield case("links-in-a-circle", link("a", b"b"), link("b", b"a"), note="lead to themselves")
    yield case("link-to-a-file", link("d/link.py", b"../ok.py"), files={"d/link.py": b"x"}, note="became a copy")
    yield case("link-to-a-link", link("a", b"b"), link("b", b"ok.py"), files={"a": b"x", "b": b"x"}, note="2 links")
    yield case(
        "link-to-a-folder", Part("d/e/f.py"), link("l", b"d"), files={"d/e/f.py": b"x", "l/e/f.py": b"x"}, note="copy"
    )
    yield case(
        "link-through-a-link",
        *(Part("d/f.py"), link("l", b"d"), link("m", b"l/f.py")),
        files={"d/f.py": b"x", "l/f.py": b"x", "m": b"x"},
        note="2 links",
    )
    yield case(
        "link-to-its-own-folder",
        Part("d/f.py"),
        link("d/l", b"../d"),
        files={"d/f.py": b"x"},
        note="a folder that they are in",
    )
    yield case("file-beneath-a-link", link("d", b"/tmp"), Part("d/evil"), files={"d/evil": b"x"}, note="lead out")
    kinds = {
        "fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "character-device": stat.S_IFCHR, "block-device": stat.S_IFBLK,
        "unknown-kind": 0o150000,
    }  # fmt: skip
    for name, kind in kinds.items():
        yield case(name, Part("odd", attributes=mode(kind, 0o777)), note="Left out, since they are no files: “odd”")
    yield case("setuid", Part("su", attributes=mode(stat.S_IFREG, 0o4755)), files={"su": b"x"})
    yield case("setgid", Part("su", attributes=mode(stat.S_IFREG, 0o2755)), files={"su": b"x"})
    yield case("nul-in-a-name", Part(b"ok2.py\0.txt"), files={"ok2.py_.txt": b"x"}, note="Renamed")
    yield case("evil-in-what-is-left-out", Part("__MACOSX/../../evil"), note="Left out: __MACOSX (1 file ")
    yield case("encrypted-where-it-is-left-out", Part(".git/a", flags=0x1), note="Left out: .git (1 file ")
    yield Case(
        "zip-backslashes-of-windows",
        "code.zip",
        lambda: raw_zip(Part("a\\b.py", system=0), Part("c.py", system=0), Part("d\\e\\f.py", system=0)),
        {"a/b.py": b"x", "c.py": b"x", "d/e/f.py": b"x"},
    )
    for encoding, text, title in (
        ("gbk", "\u8bad\u7ec3.py", "GBK"),
        ("shift_jis", "\u5b66\u7fd2\u30c7\u30fc\u30bf.py", "Shift-JIS"),
        ("cp1251", "\u043c\u043e\u0434\u0435\u043b\u044c.py", "Cyrillic"),
    ):
        yield case(f"names-in-{encoding}", Part(text.encode(encoding)), files={text: b"x"}, note=title)
    rest = {
        ".git/objects/aa/bb": "2 files", "p/.venv/bin/python": ".venv", "env/pyvenv.cfg": "env", "Icon\r": "Icon",
        "wandb/run-1/config.yaml": "wandb", ".ipynb_checkpoints/a.ipynb": ".ipynb_checkpoints", "lib/a.pyc": "*.pyc",
        ".mypy_cache/a.json": ".mypy_cache", ".idea/a.xml": ".idea",
    }  # fmt: skip
    for name, note in rest.items():
        beside = [Part(".git/HEAD")] if name.startswith(".git") else []
        yield case(f"left-out-{name.strip()}", Part(name), *beside, note=note)
    yield case("folder-called-wandb", Part("wandb/model.py"), files={"wandb/model.py": b"x"})
    yield Case(
        "zip-many-objects-of-git",
        "code.zip",
        lambda: raw_zip(ok, *[Part(f".git/objects/{n % 256:02x}/{n:038x}", b"", deflate=False) for n in range(10_752)]),
        good,
        "Left out: .git (10,752 files that no run needs).",
    )


def odd_tars() -> Iterator[Case]:
    good = {"ok.py": b"x"}

    def case(
        name: str, *members: tuple[tarfile.TarInfo, bytes], files: dict[str, bytes] | None = None, note: str
    ) -> Case:
        return Case(f"tar-{name}", "code.tar", partial(tar_of, info("ok.py"), *members), good | (files or {}), note)

    def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
        return info(name, kind=kind, link=target)

    hard = tarfile.LNKTYPE
    yield case("link-outside", link("link", "/etc/passwd"), note="lead out of the upload: “link”")
    yield case("hard-link-outside", link("link", "/etc/passwd", hard), note="lead out of the upload")
    yield case("hard-link-up", link("d/link", "../ok.py", hard), note="lead out of the upload")
    yield case("hard-link", link("d/link.py", "ok.py", hard), files={"d/link.py": b"x"}, note="became a copy")
    yield case("link-to-a-file", link("d/link.py", "../ok.py"), files={"d/link.py": b"x"}, note="became a copy")
    yield case("link-then-write", link("d", "/etc/passwd", hard), info("d"), files={"d": b"x"}, note="lead out")
    yield case("python-of-an-environment", link("p/.venv/bin/python3", "/usr/bin/python3"), note="Left out: .venv")
    kinds = {"character-device": tarfile.CHRTYPE, "block-device": tarfile.BLKTYPE, "fifo": tarfile.FIFOTYPE}
    for name, kind in kinds.items():
        yield case(name, info("odd", kind=kind), note="Left out, since they are no files: “odd”")
    yield case("setuid", info("su", bits=0o4755), files={"su": b"x"}, note="")
    yield case("backslash", info("a\\b.py"), files={"a_b.py": b"x"}, note="Renamed")
    yield Case("tar-pax-path-with-newline", "code.tar", lambda: pax({"path": "a\nb"}), {"a_b": b"x"}, "Renamed")
    yield Case(
        "tar-not-utf-8",
        "code.tar",
        lambda: tar_of(info("ok.py"), info("a\udcff.py"), form=tarfile.GNU_FORMAT),
        good | {"a_.py": b"x"},
        "Renamed",
    )
