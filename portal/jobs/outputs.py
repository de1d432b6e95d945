"""The files a job leaves behind: rows with the path it chose, bytes under the hash of their content.

``HOME/outputs/<Job.folder>/<sha256>``. No name from a job ever becomes a name on the portal's disk, so no path can lead
anywhere; the same path written again is another file, and readers of the old one are not disturbed.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from portal.jobs import lifecycle
from portal.jobs.models import Attempt, Job, Output
from portal.sentences import agents
from portal.wake import wake_job_viewers

MAX_FILES = 10_000
MAX_PATH = 500
READ_BYTES = 64 * 1024
FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


class BadPathError(ValueError):
    """The path is not one under /outputs."""

    def __init__(self) -> None:
        self.why = agents.outputs.BadPath(MAX_PATH)
        super().__init__(self.why.text)


class OutputsTooLargeError(Exception):
    """The job's outputs would take more than the portal keeps."""

    def __init__(self, why: agents.outputs.TooLarge | agents.outputs.TooManyFiles) -> None:
        self.why = why
        super().__init__(why.text)


def clean_path(path: str) -> str:
    """Return the path if it is plain and relative; raises BadPathError otherwise."""
    parts = path.split("/")
    if (
        not path
        or len(path) > MAX_PATH
        or FORBIDDEN_CHARACTERS.search(path)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise BadPathError
    return path


def job_number_of(folder: str) -> int | None:
    """Return the number of the job in the name of one of its folders; None for a folder that is no job's."""
    number = folder.partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else None


def folder_of(job: Job) -> Path:
    return Path(settings.HOME) / "outputs" / job.folder


def open_output(output: Output) -> BinaryIO:
    """Open the content of an output; raises FileNotFoundError when it is gone."""
    handle = os.open(folder_of(output.job) / output.sha256, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return os.fdopen(handle, "rb")


def pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file, then close it."""
    with file:
        while piece := file.read(READ_BYTES):
            yield piece


def room_for(job_id: int, path: str) -> int:
    """Return the maximum size of this file, which may replace another of its name."""
    others = Output.objects.filter(job=job_id).exclude(path=path)
    if others.count() >= MAX_FILES:
        raise OutputsTooLargeError(agents.outputs.TooManyFiles(MAX_FILES))
    taken = others.aggregate(taken=Sum("size"))["taken"] or 0
    return max(0, settings.MAX_OUTPUTS_MIB * 1024 * 1024 - taken)


def check_room(attempt: Attempt, path: str, size: int) -> None:
    """Raise BadPathError or OutputsTooLargeError if a file of ``size`` bytes would not be kept."""
    if size > room_for(attempt.job_id, clean_path(path)):
        raise _too_large()


def store(attempt: Attempt, path: str, chunks: Iterable[bytes], announced: int | None = None) -> Output | None:
    """Store a file; return None if a later attempt of the job has already stored one of this name."""
    path = clean_path(path)
    folder = folder_of(attempt.job)
    room = room_for(attempt.job_id, path)
    if announced is not None and announced > room:
        raise _too_large()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".incoming-", delete=False) as file:
        try:
            digest, size = hashlib.sha256(), 0
            for chunk in chunks:
                size += len(chunk)
                if size > room:
                    raise _too_large()
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            return _keep(attempt, path, Path(file.name), digest.hexdigest(), size)
        finally:
            Path(file.name).unlink(missing_ok=True)


@transaction.atomic
def _keep(attempt: Attempt, path: str, file: Path, sha256: str, size: int) -> Output | None:
    lifecycle.get_locked(attempt.job_id)  # two files at once must not use the same remaining space
    if size > room_for(attempt.job_id, path):
        raise _too_large()
    old = Output.objects.filter(job=attempt.job_id, path=path).select_related("attempt").first()
    against = _contradicting(attempt.job_id, path)
    if any(row.attempt.number > attempt.number for row in (old, *against) if row is not None):
        return None
    for row in against:
        row.delete()
        transaction.on_commit(partial(_drop, attempt.job_id, row.sha256))
    file.replace(folder_of(attempt.job) / sha256)
    output, _ = Output.objects.update_or_create(
        job_id=attempt.job_id,
        path=path,
        defaults={"attempt": attempt, "size": size, "sha256": sha256, "stored_at": timezone.now()},
    )
    if old is not None and old.sha256 != sha256:
        transaction.on_commit(lambda: _drop(attempt.job_id, old.sha256))
    wake_job_viewers(attempt.job_id)
    return output


def _contradicting(job_id: int, path: str) -> list[Output]:
    """Return the outputs that cannot be in one folder with this path: a file where it needs a folder, or the reverse."""
    rows = Output.objects.filter(job=job_id).select_related("attempt")
    found = rows.filter(Q(path__in=_folders_of(path)) | Q(path__startswith=f"{path}/"))
    return [
        row for row in found if row.path in _folders_of(path) or row.path.startswith(f"{path}/")
    ]  # SQLite ignores case


def _folders_of(path: str) -> set[str]:
    """Return the folders that a path is in: ``{"a", "a/b"}`` for ``a/b/c``."""
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def that_fit_together(rows: Iterable[Output]) -> list[Output]:
    """Return the outputs that can be in one folder, in order of their paths; of those that contradict each other, the newest.

    Labs have some from before ``store`` replaced what a new path contradicts.
    """
    files: dict[str, Output] = {}
    folders: set[str] = set()
    for row in sorted(rows, key=lambda row: (row.attempt_id, row.stored_at), reverse=True):
        above = _folders_of(row.path)
        if row.path not in folders and not above & files.keys():
            files[row.path] = row
            folders |= above
    return [files[path] for path in sorted(files)]


@transaction.atomic
def _drop(job_id: int, sha256: str) -> None:
    """Delete content that no row names any more."""
    job = lifecycle.get_locked(job_id)
    if not Output.objects.filter(job=job_id, sha256=sha256).exists():
        (folder_of(job) / sha256).unlink(missing_ok=True)


def _too_large() -> OutputsTooLargeError:
    return OutputsTooLargeError(agents.outputs.TooLarge(settings.MAX_OUTPUTS_MIB))
