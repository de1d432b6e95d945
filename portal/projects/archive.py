"""Stores an upload: it is checked, unpacked and packed again as one canonical tar, stored once under its hash."""

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from portal import sandbox
from portal.projects import store
from portal.projects.errors import BadArchiveError
from portal.projects.models import CodeVersion

Upload = tuple[str, IO[bytes]]
"""The name of an archive, or the path of a file within a folder, with the open file."""


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """An upload that is in the store now."""

    sha256: str
    size: int
    files: list[dict[str, Any]]
    notes: list[str]


ARCHIVE_ENDINGS = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".tbz2", ".xz", ".txz")


def are_single_files(uploads: Sequence[Upload]) -> bool:
    """Return whether these are files by themselves: no archive, and no folder."""
    return all("/" not in name and not name.lower().endswith(ARCHIVE_ENDINGS) for name, _ in uploads)


def store_upload(
    uploads: Sequence[Upload],
    base: CodeVersion | None = None,
    *,
    gitignore: bool = False,
    keep_top: bool = False,
) -> StoredUpload:
    """Store one archive, script or notebook, or the files of a folder with their relative paths. Raises BadArchiveError.

    With a ``base``, the files are put into it: they replace its files of the same name, and its other files are kept. With
    ``gitignore``, what its ``.gitignore`` names is left out. With ``keep_top``, a single folder around everything stays.
    """
    if not uploads:
        raise BadArchiveError("Choose a file or a folder first.")
    name = uploads[0][0]
    alone = len(uploads) == 1 and "/" not in name and (base is None or name.lower().endswith(".ipynb"))
    with contextlib.ExitStack() as stack:
        packed = stack.enter_context(tempfile.TemporaryFile(dir=store.folder()))
        listing = stack.enter_context(tempfile.TemporaryFile("w+"))
        sent: dict[str, Any] = {"name": name if alone else "", "listing": None, "base": None}
        sent |= {"gitignore": gitignore, "keep_top": keep_top}
        sizes = _concatenate(uploads, packed)
        if not alone:
            sent["listing"] = sizes
        if base is not None:
            sent["base"] = {"number": base.number, "files": base.files}
        # in a file: a name may have what no command argument can, such as NUL, half a character or a megabyte
        json.dump(sent, listing)
        listing.seek(0)
        with store.incoming() as out:
            fds = [out.fileno(), listing.fileno()]
            if base is not None:
                fds.append(stack.enter_context(store.path_of(base.sha256).open("rb")).fileno())
            try:
                answer = sandbox.run("projects.unpacking.program", [str(fd) for fd in fds], packed, fds)
            except sandbox.NoAnswerError as error:
                raise BadArchiveError(
                    "It could not be unpacked within the limits of time and memory. Leave data out and pack it again."
                ) from error
            if "refused" in answer:
                raise BadArchiveError(answer["refused"])
            store.keep(out, answer["sha256"])
    return StoredUpload(answer["sha256"], answer["size"], answer["files"], answer["notes"])


def _concatenate(uploads: Sequence[Upload], packed: IO[bytes]) -> list[tuple[str, int]]:
    """Write all files one after another, up to the size limit of an upload. Return their names and sizes."""
    max_bytes = settings.MAX_UPLOAD_MIB * 1024 * 1024
    total = 0
    sizes = []
    for name, file in uploads:
        size = 0
        while piece := file.read(1024 * 1024):
            size += len(piece)
            if total + size > max_bytes:
                raise BadArchiveError(
                    f"It is larger than {settings.MAX_UPLOAD_MIB} MiB. Leave data out, and put it into a dataset."
                )
            packed.write(piece)
        total += size
        sizes.append((name, size))
    packed.seek(0)
    return sizes
