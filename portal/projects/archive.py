"""Takes an upload: judged, unpacked and packed again as one canonical tar, kept once by its hash."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from portal.projects import sandbox, store
from portal.projects.errors import BadArchive

Upload = tuple[str, IO[bytes]]
"""A name (of an archive, or a file's path within a folder) and the open file."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What is in the store now."""

    sha256: str
    size: int
    files: list[dict[str, Any]]
    notes: list[str]


def take(uploads: Sequence[Upload]) -> Unpacked:
    """One archive, script or notebook; or the files of a folder under their relative paths. Raises BadArchive."""
    if not uploads:
        raise BadArchive("Choose a file or a folder first.")
    one = len(uploads) == 1 and "/" not in uploads[0][0]
    with tempfile.TemporaryFile(dir=store.folder()) as packed, tempfile.TemporaryFile("w+") as listing:
        sizes = _gather(uploads, packed)
        # by a file, as a name may hold what no argument of a command can: NUL, half a character, a megabyte
        json.dump(uploads[0][0] if one else sizes, listing)
        listing.seek(0)
        with store.incoming() as out:
            fds = [out.fileno(), listing.fileno()]
            try:
                answer = sandbox.run("unpacking.program", [str(fd) for fd in fds], packed, fds)
            except sandbox.NoAnswerError as error:
                raise BadArchive(
                    "It could not be unpacked within the limits of time and memory. Leave data out and pack it again."
                ) from error
            if "refused" in answer:
                raise BadArchive(answer["refused"])
            store.keep(out, answer["sha256"])
    return Unpacked(answer["sha256"], answer["size"], answer["files"], answer["notes"])


def _gather(uploads: Sequence[Upload], packed: IO[bytes]) -> list[tuple[str, int]]:
    """All files one after the other, at most as much as an upload may have; their names and sizes."""
    most = settings.MAX_UPLOAD_MIB * 1024 * 1024
    total = 0
    sizes = []
    for name, file in uploads:
        size = 0
        while piece := file.read(1024 * 1024):
            size += len(piece)
            if total + size > most:
                raise BadArchive(
                    f"It is larger than {settings.MAX_UPLOAD_MIB} MiB. Leave data out: datasets belong on the nodes, under /data."
                )
            packed.write(piece)
        total += size
        sizes.append((name, size))
    packed.seek(0)
    return sizes
