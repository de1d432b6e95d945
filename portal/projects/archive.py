"""Stores an upload: it is checked, unpacked and packed again as one canonical tar, stored once under its hash."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from portal.projects import sandbox, store
from portal.projects.errors import BadArchiveError

Upload = tuple[str, IO[bytes]]
"""The name of an archive, or the path of a file within a folder, with the open file."""


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """An upload that is in the store now."""

    sha256: str
    size: int
    files: list[dict[str, Any]]
    notes: list[str]


def store_upload(uploads: Sequence[Upload]) -> StoredUpload:
    """Store one archive, script or notebook, or the files of a folder with their relative paths. Raises BadArchiveError."""
    if not uploads:
        raise BadArchiveError("Choose a file or a folder first.")
    one = len(uploads) == 1 and "/" not in uploads[0][0]
    with tempfile.TemporaryFile(dir=store.folder()) as packed, tempfile.TemporaryFile("w+") as listing:
        sizes = _concatenate(uploads, packed)
        # in a file: a name may have what no command argument can, such as NUL, half a character or a megabyte
        json.dump(uploads[0][0] if one else sizes, listing)
        listing.seek(0)
        with store.incoming() as out:
            fds = [out.fileno(), listing.fileno()]
            try:
                answer = sandbox.run("unpacking.program", [str(fd) for fd in fds], packed, fds)
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
                    f"It is larger than {settings.MAX_UPLOAD_MIB} MiB. Leave data out: datasets belong on the nodes, under /data."
                )
            packed.write(piece)
        total += size
        sizes.append((name, size))
    packed.seek(0)
    return sizes
