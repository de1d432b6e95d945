"""The program: recognise the type of the upload, read it, check it, write the tar."""

import bz2
import hashlib
import json
import lzma
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import IO, Any

from .base import BaseVersion
from .common import (
    CODE,
    MIB,
    BadUploadError,
    Budget,
    Entry,
    Limits,
    file_size,
    printable,
    read_range,
)
from .ignored import leave_out_ignored
from .links import follow_links
from .names import check_tree, clean_names, keep_top_folder, leave_out, leave_out_special, remove_top_folder, split
from .notebooks import to_script
from .tars import expand, gunzip, read_tar
from .zips import read_zip

READ_ERRORS = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, NotImplementedError, ValueError, OverflowError, EOFError, RecursionError,
)  # fmt: skip
"""The exceptions of Python's readers for data that is not a valid archive."""


def read_folder(file: IO[bytes], listing: list[tuple[str, int]]) -> list[Entry]:
    """Read files that follow one another, as the browser sent them; ``listing`` has their names and sizes."""
    entries = []
    offset = 0
    for name, size in listing:
        no_file = not split(name) or name.endswith("/")
        problem = f"{printable(name)} is not the name of a file. Rename it and send it again." if no_file else ""
        entries.append(Entry(name, False, size, partial(read_range, file, offset, size), problem=problem))
        offset += size
    return entries


def read_script(file: IO[bytes], name: str) -> list[Entry]:
    size = file_size(file)
    if any(b"\0" in piece for piece in read_range(file, 0, size)):
        raise BadUploadError(f"{printable(name)} is not a script: it has binary data.")
    return [Entry(PurePosixPath(name).name, False, size, lambda: read_range(file, 0, size))]


def read_notebook(file: IO[bytes], name: str) -> tuple[list[Entry], list[str]]:
    """Return a notebook as a script, with the files that it writes, and notes on what only Jupyter can do."""
    file.seek(0)
    try:
        script = to_script(file.read().decode("utf-8-sig"), name)
    except (BadUploadError, MemoryError):
        raise
    except Exception as error:
        raise BadUploadError(
            f"{printable(name)} is not a valid notebook. Open it in Jupyter, save it and send it again."
        ) from error
    stem = PurePosixPath(name).stem
    contents = {
        path: text.encode(errors="replace") for path, text in {**script.files, f"{stem}.py": script.text}.items()
    }
    return [Entry(path, False, len(content), partial(_whole, content)) for path, content in contents.items()], [
        f"The notebook {printable(name)} became the script {printable(f'{stem}.py')}.",
        *script.notes,
    ]


def _whole(content: bytes) -> list[bytes]:
    return [content]


def add_scripts(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Add a script beside each notebook, so that it can be run with the files that it needs; not beside many notebooks."""
    paths = {entry.path for entry in entries}
    notebooks = [entry for entry in entries if entry.path.endswith(".ipynb") and not entry.is_dir]
    if len(notebooks) > MAX_NOTEBOOKS:
        return entries, [f"{len(notebooks)} notebooks stay as they are. To run one of them, upload it by itself."]
    added, notes = [], []
    for notebook in notebooks:
        path = PurePosixPath(notebook.path)
        beside = str(path.with_suffix(".py"))
        if beside in paths or notebook.size > MAX_NOTEBOOK_BYTES:
            continue
        try:
            script = to_script(b"".join(notebook.pieces()).decode("utf-8-sig"), notebook.path)
        except Exception:  # noqa: BLE001, S112  what is no notebook stays a file like any other
            continue
        contents = {str(path.parent / name): text for name, text in script.files.items()} | {beside: script.text}
        added += [
            Entry(name, False, len(text.encode()), partial(_whole, text.encode()))
            for name, text in contents.items()
            if name not in paths
        ]
        paths |= contents.keys()
        notes += [f"The notebook {printable(notebook.path)} also became the script {printable(beside)}.", *script.notes]
    return entries + added, notes


COMPRESSED = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""Kinds of compressed tars, with the bytes with which they begin."""
ENDINGS = {
    ".zip": "zip", ".tar": "tar", ".tar.gz": "gzip", ".tgz": "gzip", ".tar.bz2": "bzip2", ".tbz2": "bzip2", ".tbz": "bzip2",
    ".tar.xz": "xz", ".txz": "xz", ".py": "script", ".sh": "script", ".ipynb": "notebook",
}  # fmt: skip
MAX_XZ_MEMORY = 256 * MIB
MAX_NOTEBOOKS, MAX_NOTEBOOK_BYTES = 5, 32 * MIB
"""How many notebooks of an upload also become scripts, and of which size."""


def kind_of(head: bytes, name: str) -> str:
    """Return the type of an upload, by its content; of a script or notebook, by its name.

    Raises BadUploadError if it has none of these, or its content is of another type.
    """
    found = (
        "zip" if head[:4] in (b"PK\x03\x04", b"PK\x05\x06")
        else next((kind for kind, magic in COMPRESSED.items() if head.startswith(magic)), "")
        or ("tar" if head[257:262] == b"ustar" else "")
    )  # fmt: skip
    lower = name.lower()
    named = next((kind for ending, kind in ENDINGS.items() if lower.endswith(ending)), "")
    if named == "tar" and not found:
        return "tar"  # old tars have no magic number; tarfile checks their checksum
    if named in ("script", "notebook") and not found:
        return named
    if not named and not found:
        raise BadUploadError(
            f"{printable(name)} is none of .zip, .tar, .tar.gz, .tar.bz2, .tar.xz, .py, .ipynb and .sh. "
            "Pack the folder as .zip and send that."
        )
    if not found or named in ("script", "notebook"):
        raise BadUploadError(
            f"{printable(name)} is not of the type that its name has. Pack it again as .zip or .tar.gz."
        )
    return found


def read_upload(file: IO[bytes], name: str, limits: Limits = CODE) -> tuple[list[Entry], list[str]]:
    """Return the entries of an archive, script or notebook, and notes on how it was read."""
    file.seek(0)
    match kind_of(file.read(512), name):
        case "zip":
            return read_zip(file, limits)
        case "gzip":
            return read_tar(gunzip(file, limits), limits), []
        case "bzip2":
            return read_tar(expand(file, bz2.BZ2Decompressor, limits), limits), []
        case "xz":
            return read_tar(expand(file, partial(lzma.LZMADecompressor, memlimit=MAX_XZ_MEMORY), limits), limits), []
        case "tar":
            return read_tar(file, limits), []
        case "script":
            return read_script(file, name), []
        case _:
            return read_notebook(file, name)


def write_tar(entries: list[Entry], out: IO[bytes], packed: int) -> dict[str, Any]:
    """Write the tar and return its files. ``offset`` is the position of a file's content in the tar."""
    contents = {entry.path: entry for entry in entries if not entry.is_dir}
    folders = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents} - {"."}
    folders |= {entry.path for entry in entries if entry.is_dir}
    budget = Budget(packed)
    whole = hashlib.sha256()
    written = 0
    files = []

    def write(data: bytes) -> None:
        nonlocal written
        whole.update(data)
        written += out.write(data)

    for path in sorted(folders | contents.keys()):
        info = tarfile.TarInfo(path)
        if path in folders:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
            continue
        pieces = iter(contents[path].pieces())
        first = next(pieces, b"")
        executable = contents[path].executable
        runs = first.startswith(b"#!") if executable is None else executable
        info.mode, info.size = 0o755 if runs else 0o644, contents[path].size
        write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        offset, digest = written, hashlib.sha256()
        for piece in chain([first], pieces):
            budget.spend(len(piece))
            digest.update(piece)
            write(piece)
        if written - offset != info.size:
            raise BadUploadError(
                f"{printable(path)} does not have the length that the archive announces. Pack it again."
            )
        write(b"\0" * (-info.size % tarfile.BLOCKSIZE))
        about = {"path": path, "size": info.size, "sha256": digest.hexdigest(), "offset": offset}
        files.append(about | {"executable": runs})
    write(b"\0" * 2 * tarfile.BLOCKSIZE)
    return {"sha256": whole.hexdigest(), "size": sum(entry.size for entry in contents.values()), "files": files}


def check_all(entries: list[Entry], limits: Limits) -> list[str]:
    """Refuse entries that are too many, too large or contradict each other. Return notes."""
    if len(entries) > limits.entries:
        raise BadUploadError(limits.too_many_entries())
    notes = check_tree(entries)
    if sum(entry.size for entry in entries) > limits.total_bytes:
        raise BadUploadError(limits.too_large())
    return notes


Step = Callable[[list[Entry]], tuple[list[Entry], list[str]]]
STEPS: tuple[Step, ...] = (leave_out, leave_out_special, clean_names, follow_links, add_scripts)
"""What turns the entries of an upload into the files of a code version, each with notes on what it changed."""


def unpack(
    upload: IO[bytes],
    out: IO[bytes],
    name: str,
    listing: list[tuple[str, int]] | None = None,
    base: BaseVersion | None = None,
    *,
    gitignore: bool = False,
    keep_top: bool = False,
) -> dict[str, Any]:
    """Write the canonical tar of the upload to ``out`` and return its content. Raises BadUploadError.

    With a ``listing``, the upload is the files of a folder, one after another; otherwise an archive, script or notebook.
    With a ``base``, its files are put into that version. With ``gitignore``, what its ``.gitignore`` names is left out. With
    ``keep_top``, a single folder around everything stays.
    """
    packed = file_size(upload)
    entries, notes = read_upload(upload, name) if listing is None else (read_folder(upload, listing), [])
    alone: Step = keep_top_folder if keep_top else remove_top_folder
    last: Step = alone if base is None else base.complete
    for step in (*STEPS, *([leave_out_ignored] if gitignore else []), last):
        entries, remarks = step(entries)
        notes += remarks
    notes += check_all(entries, CODE)
    return write_tar(entries, out, packed) | {"notes": notes}


def main() -> None:
    """Run the program. Its arguments are descriptors: one for the tar, one with JSON, and that of the base's tar, if any.

    The JSON has the name of the upload, or the listing of a folder, the number and files of the base, whether its
    ``.gitignore`` counts, and whether a folder around everything stays.
    """
    try:
        with os.fdopen(int(sys.argv[1]), "wb") as out, os.fdopen(int(sys.argv[2])) as file:
            sent = json.load(file)
            base = None
            if sent["base"]:
                base = BaseVersion(os.fdopen(int(sys.argv[3]), "rb"), **sent["base"])
            options = {"gitignore": sent["gitignore"], "keep_top": sent["keep_top"]}
            answer = unpack(sys.stdin.buffer, out, sent["name"], sent["listing"], base, **options)
    except BadUploadError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": "It needs too much memory to unpack. Leave out large data and pack it again."}
    except READ_ERRORS:
        answer = {"refused": "It is damaged, or not of the type that its name has. Pack it again, or send it again."}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
