"""Stores the checkpoints of jobs in the portal, so that a job can restart from them on any node.

Only the newest set of each job is kept: a row with paths, sizes and times, and pieces of at most ``PIECE_BYTES`` under the
hash of their content in ``HOME/checkpoints/<Job.folder>/<sha256>``. A node sends what has changed there: only pieces
that the portal does not have are sent, and the set changes in one transaction once all of them are stored. Where
several nodes wrote the same path, the latest file counts.
"""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.cluster.models import LIVE_NODE, Node
from portal.cluster.services import is_online
from portal.jobs import lifecycle
from portal.jobs.clock import WallClock
from portal.jobs.events import Restarts
from portal.jobs.models import Attempt, CheckpointSet, Container, ContainerState, Job
from portal.jobs.outputs import READ_BYTES, clean_path, job_number_of
from portal.jobs.rules import max_silence
from portal.sentences import agents
from portal.wake import wake_job_viewers

PIECE_BYTES = 16 << 20
"""The size of a piece of a file, the unit that is sent, checked and sent again; agents use the same size."""
MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 50
MAX_TIME_NS = 1 << 62
wall_clock = WallClock(start_seconds=0.0)
"""The clock of the process that responds to nodes."""
UPLOAD_WAIT = timedelta(minutes=15)
"""How long to wait for checkpoints of an earlier attempt that the agent of another node has not sent yet."""
RETENTION = timedelta(days=30)
"""How long checkpoints are kept after the end of the job where no rule of retention means them, and pieces of unknown jobs."""
VERSIONS_SINCE = datetime(2020, 1, 1, tzinfo=UTC)
"""Versions are seconds since this time, so that after a backup is restored they are newer than any on a node."""
ORPHAN_PIECE_SECONDS = 24 * 3600
"""A piece that no set names after this time belongs to a set that was never completed."""
SHA256 = re.compile(r"[0-9a-f]{64}")

Entry = list[Any]
"""[size, when it was modified in nanoseconds, [SHA-256 of each piece]]"""


class BadCheckpointError(ValueError):
    """The data do not describe a set of files."""


class CheckpointsTooLargeError(Exception):
    """The checkpoints are larger than the portal keeps."""

    def __init__(self, why: agents.portal.CheckpointsTooLarge | agents.portal.PortalDiskFull) -> None:
        self.why = why
        super().__init__(why.text)


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change: ``missing`` are the pieces that must be sent before it can be made."""

    before: int
    version: int
    missing: tuple[str, ...] = ()
    outdated: bool = False
    """The change came too late: a later attempt has started from the present set."""


def folder_of(job: Job) -> Path:
    return Path(settings.HOME) / "checkpoints" / job.folder


def go_through_portal(node: Node) -> bool:
    """Return whether checkpoints are sent through the portal: they are not when all nodes share one folder for them."""
    shared = node.facts.get("shared")
    if not isinstance(shared, str) or not shared:
        return True
    nodes = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    return any(other != shared for other in nodes.values_list("facts__shared", flat=True))


def newest_set(job_id: int) -> CheckpointSet | None:
    return CheckpointSet.objects.filter(job=job_id).first()


def node_still_sending(attempt: Attempt, restarting_node: Node) -> str:
    """Return the name of a node that has not sent all checkpoints of an earlier attempt yet; empty if there is none.

    After a step of the clock it is unknown for a moment when a container ended and whether its node is online.
    """
    in_doubt = wall_clock.is_in_doubt(max_silence().total_seconds())
    ended = Container.objects.filter(
        attempt__job=attempt.job_id,
        attempt__number__lt=attempt.number,
        role=Container.Role.HOST,
        running_at__isnull=False,
        state=ContainerState.EXITED,
        collected_at__isnull=True,
    )
    if not in_doubt:
        ended = ended.filter(exited_at__gt=timezone.now() - UPLOAD_WAIT)
    nodes = [part.node for part in ended.exclude(node=restarting_node).select_related("node").order_by("pk")]
    return next((node.name for node in nodes if node.removed_at is None and (in_doubt or is_online(node))), "")


@transaction.atomic
def record_start(attempt: Attempt, row: CheckpointSet) -> None:
    """Record from which checkpoint an attempt restarts, once for each attempt."""
    job = lifecycle.get_locked(attempt.job_id)
    if attempt.number == 1 or job.events.filter(kind="checkpoint", data__attempt=attempt.number).exists():
        return
    lifecycle.record(job, Restarts(attempt.number, row.taken_at.astimezone(UTC).isoformat(), row.size))


# --- pieces ------------------------------------------------------------------------------------------------------


def has_piece(job: Job, sha256: str) -> bool:
    return (folder_of(job) / sha256).is_file()


def open_piece(job: Job, sha256: str) -> BinaryIO:
    """Open a piece; raises FileNotFoundError when it is not stored."""
    if not SHA256.fullmatch(sha256):
        raise FileNotFoundError(sha256)
    handle = os.open(folder_of(job) / sha256, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return os.fdopen(handle, "rb")


def store_piece(job: Job, sha256: str, chunks: Iterable[bytes]) -> None:
    """Store a piece.

    Raises BadCheckpointError if the content has another hash, CheckpointsTooLargeError if it exceeds the limit.
    """
    if not SHA256.fullmatch(sha256):
        raise BadCheckpointError("A piece is named by the SHA-256 of its content.")
    folder = folder_of(job)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_room(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".incoming-", delete=False) as file:
        try:
            digest, size = hashlib.sha256(), 0
            for chunk in chunks:
                size += len(chunk)
                if size > PIECE_BYTES:
                    raise BadCheckpointError(f"A piece has at most {PIECE_BYTES >> 20} MiB.")
                digest.update(chunk)
                file.write(chunk)
            if digest.hexdigest() != sha256:
                raise BadCheckpointError("The piece is not what its name promised: its SHA-256 differs.")
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(folder / sha256)
        finally:
            Path(file.name).unlink(missing_ok=True)


def _require_room(folder: Path) -> None:
    free, taken = shutil.disk_usage(folder).free >> 20, 0
    if free < settings.CHECKPOINTS_LEAVE_FREE_MIB:
        raise CheckpointsTooLargeError(agents.portal.PortalDiskFull())
    for path in folder.iterdir():
        try:
            taken += path.lstat().st_size
        except FileNotFoundError:
            continue
    if taken > 2 * settings.MAX_CHECKPOINTS_MIB << 20:  # the old set and the new one
        raise _too_large()


def _too_large() -> CheckpointsTooLargeError:
    return CheckpointsTooLargeError(agents.portal.CheckpointsTooLarge(settings.MAX_CHECKPOINTS_MIB))


# --- sets --------------------------------------------------------------------------------------------------------


def read_entries(data: object) -> dict[str, Entry]:
    """Read the entries of files by path; raises BadCheckpointError or outputs.BadPathError."""
    if not isinstance(data, dict) or len(data) > MAX_FILES:
        raise BadCheckpointError(f"At most {MAX_FILES:,} files.")
    return {clean_path(str(path)): _read_entry(entry) for path, entry in data.items()}


def _read_entry(data: object) -> Entry:
    if not isinstance(data, list) or len(data) != 3:
        raise BadCheckpointError("A file is [size, when it was modified, pieces].")
    size, modified_ns, pieces = data
    if not (_is_number(size, MAX_FILE_BYTES) and _is_number(modified_ns, MAX_TIME_NS) and isinstance(pieces, list)):
        raise BadCheckpointError("A file's size and time are whole numbers, its pieces a list.")
    if len(pieces) != -(-size // PIECE_BYTES) or not all(
        isinstance(each, str) and SHA256.fullmatch(each) for each in pieces
    ):
        raise BadCheckpointError(f"A file has one SHA-256 for each {PIECE_BYTES >> 20} MiB.")
    return [size, modified_ns, pieces]


def read_deleted(data: object) -> dict[str, int]:
    if (
        not isinstance(data, dict)
        or len(data) > MAX_FILES
        or not all(_is_number(at, MAX_TIME_NS) for at in data.values())
    ):
        raise BadCheckpointError("Deleted files are named with the time of which they were.")
    return {clean_path(str(path)): at for path, at in data.items()}


def _is_number(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


@transaction.atomic
def keep(attempt: Attempt, changed: dict[str, Entry], deleted: dict[str, int]) -> ChangeResult:
    """Apply the changes of one node to the set of a job.

    Nothing changes if pieces are missing, if the set has the same or newer files, or if a later attempt has started,
    since that uses the present set. Raises CheckpointsTooLargeError.
    """
    job = lifecycle.get_locked(attempt.job_id)
    row = newest_set(attempt.job_id) or CheckpointSet(job_id=attempt.job_id, attempt=attempt)
    before, files = row.version, dict(row.files)
    _merge(files, changed, deleted)
    if _is_outdated(attempt):
        return ChangeResult(before, before, outdated=True)
    if files == row.files:
        return ChangeResult(before, before)
    size = sum(entry[0] for entry in files.values())
    if size > settings.MAX_CHECKPOINTS_MIB << 20 or len(files) > MAX_FILES:
        raise _too_large()
    missing = sorted(each for each in pieces_of(files) - pieces_of(row.files) if not has_piece(job, each))
    if missing:
        return ChangeResult(before, before, tuple(missing))
    unnamed = pieces_of(row.files) - pieces_of(files)
    now = timezone.now()
    row.files, row.size, row.attempt = files, size, attempt
    row.version = max(before + 1, int((now - VERSIONS_SINCE).total_seconds()))
    row.taken_at, row.stored_at = _taken_at(files, now), now
    row.save()
    transaction.on_commit(lambda: _delete_pieces(attempt.job_id, unnamed))
    wake_job_viewers(attempt.job_id)
    return ChangeResult(before, row.version)


def _merge(files: dict[str, Entry], changed: dict[str, Entry], deleted: dict[str, int]) -> None:
    """Merge the changes into ``files``; a deleted file is removed unless a node has written it later."""
    for path, modified_ns in deleted.items():
        if path in files and files[path][1] == modified_ns:
            del files[path]
    for path, entry in changed.items():
        if path not in files or files[path][1] <= entry[1]:
            files[path] = entry
    folders = {folder for path in changed for folder in _folders_of(path)}
    for path in folders & files.keys():  # a file that is a folder now
        del files[path]
    under = {folder for path in files for folder in _folders_of(path)}
    for path in under & changed.keys() & files.keys():  # a folder that is a file now
        for other in [other for other in files if other.startswith(f"{path}/")]:
            del files[other]


def _folders_of(path: str) -> Iterator[str]:
    parts = path.split("/")
    for count in range(1, len(parts)):
        yield "/".join(parts[:count])


def _is_outdated(attempt: Attempt) -> bool:
    later = Container.objects.filter(attempt__job=attempt.job_id, attempt__number__gt=attempt.number)
    return later.filter(running_at__isnull=False).exists()


def pieces_of(files: dict[str, Entry]) -> set[str]:
    return {sha256 for entry in files.values() for sha256 in entry[2]}


def _taken_at(files: dict[str, Entry], now: datetime) -> datetime:
    if not files:
        return now
    newest_ns = max(entry[1] for entry in files.values())
    return min(now, datetime.fromtimestamp(newest_ns / 1e9, UTC))


@transaction.atomic
def _delete_pieces(job_id: int, pieces: Iterable[str]) -> None:
    """Delete the pieces that the set does not name any more."""
    job = lifecycle.get_locked(job_id)
    row = newest_set(job_id)
    named = pieces_of(row.files) if row else set()
    for sha256 in set(pieces) - named:
        (folder_of(job) / sha256).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class File:
    """A file of a set, as pages and the API show it."""

    path: str
    size: int
    modified_at: datetime


def files_of(row: CheckpointSet) -> list[File]:
    """Return the files of a set in the order of their paths."""
    return [
        File(path, size, datetime.fromtimestamp(modified_ns / 1e9, UTC))
        for path, (size, modified_ns, _) in sorted(row.files.items())
    ]


def read_file(job: Job, entry: Entry) -> Iterator[bytes]:
    """Yield the bytes of a file piece by piece; raises FileNotFoundError if a newer set has replaced it."""
    for sha256 in entry[2]:
        with open_piece(job, sha256) as file:
            while chunk := file.read(READ_BYTES):
                yield chunk


# --- time --------------------------------------------------------------------------------------------------------


def delete_orphan_pieces() -> None:
    """Delete pieces that no set names. May be repeated."""
    top = Path(settings.HOME) / "checkpoints"
    for folder in top.iterdir() if top.is_dir() else ():
        number = job_number_of(folder.name)
        if number is not None:
            _delete_pieces_of_no_set(folder, Job.objects.filter(pk=number).first())


def _delete_pieces_of_no_set(folder: Path, job: Job | None) -> None:
    """Delete the pieces in a folder that no set names. ``job`` has the number in the name of the folder."""
    is_its_own = job is not None and job.folder == folder.name
    row = newest_set(job.pk) if job is not None and is_its_own else None
    named = pieces_of(row.files) if row else set()
    # A folder without a job may belong to one that was lost when a backup was restored.
    before, left = time.time() - (ORPHAN_PIECE_SECONDS if is_its_own else RETENTION.total_seconds()), False
    for path in folder.iterdir():
        try:
            if path.name not in named and path.lstat().st_mtime < before:
                path.unlink()
            else:
                left = True
        except FileNotFoundError:
            continue
    if not left:
        try:
            folder.rmdir()
        except OSError:
            pass  # a piece has just been stored
