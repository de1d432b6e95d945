"""Archives that must be accepted, to the byte."""

import gzip
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial

from tests.corpus.making import (
    MIB,
    Case,
    Part,
    in_pieces,
    info,
    mode,
    named_gzip,
    notebook,
    pax,
    raw_header,
    raw_zip,
    streamed_zip,
    tar_of,
    tree,
    with_global,
    zip64,
    zip_tree,
)

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
        {"try.py": b"# %%\nprint(1)\n\n# %%\nx = 1\n"},
    )
