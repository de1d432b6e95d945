"""The program that unpacks archives of datasets: ``portal.sandbox`` runs it with limits, since archives can be hostile.

    archive on stdin, its name and the maximum of its bytes as arguments  ->  frames on stdout

It judges archives as those of code are judged (``portal/projects/unpacking``): all names and types first, then contents. A frame
is a letter, a length of four bytes, and as many bytes: ``T`` the bytes of all files; ``F`` a file, as JSON; ``D`` a piece of its
content; ``E`` its end; at last ``N`` the notes. At any time may come ``R``, why the archive is refused, or ``W``, that the disk is full.
No file is in memory as a whole.
"""

import errno
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import IO, Any

from portal.projects.unpacking.common import CODE, MIB, BadUploadError, Budget, Entry, Limits, file_size, printable
from portal.projects.unpacking.links import follow_links
from portal.projects.unpacking.names import clean_names, keep_top_folder, leave_out, leave_out_special
from portal.projects.unpacking.program import READ_ERRORS, check_all, read_upload

HEAD = struct.Struct(">cI")
TOTAL, FILE, DATA, END, NOTES, REFUSED, FULL = b"T", b"F", b"D", b"E", b"N", b"R", b"W"
MAX_FRAME_BYTES = MIB
MAX_ENTRIES = 1_000_000
LIMITS = replace(
    CODE,
    entries=MAX_ENTRIES,
    read_entries=MAX_ENTRIES + 200_000,
    directory_bytes=256 * MIB,
    header_seconds=600,
    fewer_entries="Pack small files together, or make several datasets.",
    less_data="Make several datasets of it, or ask an admin for a higher limit.",
)


def unpack(upload: IO[bytes], name: str, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """Yield the frames of an archive. Raises BadUploadError."""
    packed = file_size(upload)
    entries, notes = read_upload(upload, name, limits)
    for step in (leave_out, leave_out_special, clean_names):
        entries, remarks = step(entries)
        notes += remarks
    entries, remarks = follow_links(entries, limits)
    notes += remarks
    keep_top_folder(entries)
    notes += check_all(entries, limits)
    yield TOTAL, str(sum(entry.size for entry in entries)).encode()
    budget = Budget(packed, limits)
    for entry in entries:
        if not entry.is_dir:
            yield from _file(entry, budget)
    yield NOTES, json.dumps(notes).encode()


def _file(entry: Entry, budget: Budget) -> Iterator[tuple[bytes, bytes]]:
    pieces = iter(entry.pieces())
    first = next(pieces, b"")
    runs = first.startswith(b"#!") if entry.executable is None else entry.executable
    about = {"path": entry.path, "size": entry.size, "executable": runs}
    yield FILE, json.dumps(about).encode()
    size = 0
    for piece in chain([first], pieces):
        budget.spend(len(piece))
        size += len(piece)
        for start in range(0, len(piece), MAX_FRAME_BYTES):
            yield DATA, piece[start : start + MAX_FRAME_BYTES]
    if size != entry.size:
        raise BadUploadError(
            f"{printable(entry.path)} does not have the length that the archive announces. Pack it again."
        )
    yield END, b""


def frames(upload: IO[bytes], name: str, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """Yield the frames of an archive; the last one is a refusal if it cannot be accepted."""
    try:
        yield from unpack(upload, name, limits)
        return
    except BadUploadError as error:
        why = str(error)
    except MemoryError:
        why = "It needs too much memory to unpack. Pack it as several archives."
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        yield FULL, b""
        return
    except READ_ERRORS:
        why = "It is damaged, or not of the type that its name has. Pack it again, or send it again."
    yield REFUSED, why.encode(errors="replace")


def main() -> None:
    name, max_bytes = sys.argv[1], int(sys.argv[2])
    out: Any = sys.stdout.buffer
    for kind, data in frames(sys.stdin.buffer, name, replace(LIMITS, total_bytes=max_bytes)):
        out.write(HEAD.pack(kind, len(data)) + data)
    out.flush()


if __name__ == "__main__":
    main()
