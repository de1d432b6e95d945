"""The program: recognise the type of the upload, read it, check it, write the tar."""

import hashlib
import json
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

from .common import (
    MAX_ENTRIES,
    MAX_TOTAL,
    BadUploadError,
    Budget,
    Entry,
    file_size,
    printable,
    read_range,
    too_large,
    too_many_entries,
)
from .names import check_tree, clean_path, tidy
from .tars import gunzip, read_tar
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
        path = clean_path(name)
        if not path or name.endswith("/"):
            raise BadUploadError(f"{printable(name)} is not the name of a file. Rename it and send it again.")
        entries.append(Entry(path, False, size, partial(read_range, file, offset, size)))
        offset += size
    return entries


def read_script(file: IO[bytes], name: str) -> list[Entry]:
    path = clean_path(PurePosixPath(name).name)
    size = file_size(file)
    if any(b"\0" in piece for piece in read_range(file, 0, size)):
        raise BadUploadError(f"{printable(name)} is not a Python file: it has binary data.")
    return [Entry(path, False, size, lambda: read_range(file, 0, size))]


def read_notebook(file: IO[bytes], name: str) -> list[Entry]:
    """Convert a notebook to a script. Text cells become comments, as do magics and shell lines, which only Jupyter runs."""
    import jupytext

    path = clean_path(PurePosixPath(name).stem + ".py")
    file.seek(0)
    try:
        notebook = jupytext.reads(file.read().decode("utf-8-sig"), fmt="ipynb")
        language = notebook.metadata.get("kernelspec", {}).get("language") or notebook.metadata.get(
            "language_info", {}
        ).get("name")
        if language and language.lower() not in ("python", "python3", "ipython"):
            raise BadUploadError(
                f"{printable(name)} is written in {printable(str(language))}. Only Python notebooks can be run."
            )
        notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "-all"}}
        text = jupytext.writes(notebook, fmt={"extension": ".py", "format_name": "percent", "comment_magics": True})
    except (BadUploadError, MemoryError):
        raise
    except Exception as error:
        raise BadUploadError(
            f"{printable(name)} is not a valid notebook. Open it in Jupyter, save it and send it again."
        ) from error
    content = text.encode()
    return [Entry(path, False, len(content), lambda: [content])]


def kind_of(head: bytes, name: str) -> str:
    """Return the type of an upload, by its content. Raises BadUploadError if the name has another one."""
    found = (
        "zip" if head[:4] in (b"PK\x03\x04", b"PK\x05\x06")
        else "gzip" if head[:2] == b"\x1f\x8b"
        else "tar" if head[257:262] == b"ustar"
        else ""
    )  # fmt: skip
    lower = name.lower()
    endings = {".zip": "zip", ".tar.gz": "gzip", ".tgz": "gzip", ".tar": "tar", ".py": "script", ".ipynb": "notebook"}
    named = next((kind for ending, kind in endings.items() if lower.endswith(ending)), "")
    if named == "tar" and not found:
        return "tar"  # old tars have no magic number; tarfile checks their checksum
    if named in ("script", "notebook") and not found:
        return named
    if not named and not found:
        raise BadUploadError(
            f"{printable(name)} is none of .zip, .tar.gz, .tar, .py and .ipynb. Pack the folder as .zip and send that."
        )
    if named and named != found:
        raise BadUploadError(
            f"{printable(name)} is not of the type that its name has. Pack it again as .zip or .tar.gz."
        )
    return found


def read_upload(file: IO[bytes], name: str) -> list[Entry]:
    file.seek(0)
    match kind_of(file.read(512), name):
        case "zip":
            return read_zip(file)
        case "gzip":
            return read_tar(gunzip(file))
        case "tar":
            return read_tar(file)
        case "script":
            return read_script(file, name)
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
        else:
            info.mode, info.size = 0o644, contents[path].size
        write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        if path in folders:
            continue
        offset, digest = written, hashlib.sha256()
        for piece in contents[path].pieces():
            budget.spend(len(piece))
            digest.update(piece)
            write(piece)
        if written - offset != info.size:
            raise BadUploadError(
                f"{printable(path)} does not have the length that the archive announces. Pack it again."
            )
        write(b"\0" * (-info.size % tarfile.BLOCKSIZE))
        files.append({"path": path, "size": info.size, "sha256": digest.hexdigest(), "offset": offset})
    write(b"\0" * 2 * tarfile.BLOCKSIZE)
    return {"sha256": whole.hexdigest(), "size": sum(entry.size for entry in contents.values()), "files": files}


def unpack(
    upload: IO[bytes], out: IO[bytes], name: str, listing: list[tuple[str, int]] | None = None
) -> dict[str, Any]:
    """Write the canonical tar of the upload to ``out`` and return its content. Raises BadUploadError.

    With a ``listing``, the upload is the files of a folder, one after another; otherwise an archive, script or notebook.
    """
    packed = file_size(upload)
    entries = read_upload(upload, name) if listing is None else read_folder(upload, listing)
    if len(entries) > MAX_ENTRIES:
        raise BadUploadError(too_many_entries())
    check_tree(entries)
    kept, notes = tidy(entries)
    if sum(entry.size for entry in kept) > MAX_TOTAL:
        raise BadUploadError(too_large())
    return write_tar(kept, out, packed) | {"notes": notes}


def main() -> None:
    """Run the program. Its arguments are two descriptors: one for the tar, one with JSON.

    The JSON is the name of the upload, or the listing of a folder.
    """
    try:
        with os.fdopen(int(sys.argv[1]), "wb") as out, os.fdopen(int(sys.argv[2])) as file:
            sent = json.load(file)
            name, listing = (sent, None) if isinstance(sent, str) else ("", sent)
            answer = unpack(sys.stdin.buffer, out, name, listing)
    except BadUploadError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": "It needs too much memory to unpack. Leave out large data and pack it again."}
    except READ_ERRORS:
        answer = {"refused": "It is damaged, or not of the type that its name has. Pack it again, or send it again."}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
