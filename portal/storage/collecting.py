"""Deletes uploads without progress, versions that came to nothing, bytes without a row, and blobs without a version."""

import logging
import time
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

from django.utils import timezone

from portal.storage import blobs, incoming, journal
from portal.storage.blobs import data_folder
from portal.storage.models import OPEN_STATES, UPLOAD_LIFE, DatasetVersion, Upload

ORPHAN_SECONDS = 24 * 3600
"""A file without a row is from a process that was killed between the two."""
BATCH_BLOBS = 100_000
"""Hashes that are compared with all manifests at once: 20 MB. A check of a million files that was killed takes ten passes."""
HASH_CHARACTERS = 64
State = DatasetVersion.State

logger = logging.getLogger(__name__)


def delete_old() -> None:
    """Delete what has made no progress for ``UPLOAD_LIFE``. May be repeated and may run twice at once."""
    before = timezone.now() - UPLOAD_LIFE
    old = Upload.objects.filter(progressed_at__lt=before, version__state=State.UPLOADING)
    for upload in list(old.values_list("pk", flat=True)):
        if Upload.objects.filter(pk=upload, progressed_at__lt=before, version__state=State.UPLOADING).delete()[0]:
            incoming.delete(upload)
    empty = DatasetVersion.objects.filter(
        state__in=[State.UPLOADING, State.REFUSED], uploads=None, created_at__lt=before
    )
    DatasetVersion.objects.filter(pk__in=list(empty.values_list("pk", flat=True))).delete()
    _delete_orphans()


def _delete_orphans() -> None:
    folder = data_folder() / "incoming"
    for path in folder.glob("*.upload") if folder.is_dir() else ():
        try:
            if (
                path.stat().st_mtime < time.time() - ORPHAN_SECONDS
                and not Upload.objects.filter(pk=UUID(path.stem)).exists()
            ):
                path.unlink()
        except (FileNotFoundError, ValueError):
            continue  # it was finished meanwhile, or is not ours


def delete_blobs_of_killed_checks() -> int:
    """Delete the blobs that a check stored before it was killed and that no version names; return how many.

    A version that may be checked again needs them: its uploads are among them. While this runs no check does, since that
    could find such a blob in the store and use it.
    """
    left = [path for path in journal.folder().glob(f"*{journal.ENDING}") if _is_old(path)]
    if not left:
        return 0
    with journal.no_check_runs() as alone:
        return sum(_delete_blobs_in(path) for path in left) if alone else 0


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - ORPHAN_SECONDS
    except FileNotFoundError:
        return False  # its check has ended


def _delete_blobs_in(path: Path) -> int:
    version = path.name.partition("-")[0]
    if not version.isdecimal() or DatasetVersion.objects.filter(pk=int(version), state__in=OPEN_STATES).exists():
        return 0
    store, count = blobs.store(), 0
    ready = DatasetVersion.objects.filter(state=State.READY).order_by("sha256")
    manifests = list(ready.values_list("sha256", flat=True).distinct())
    with path.open("rb") as lines:
        while added := {line.strip() for line in islice(lines, BATCH_BLOBS)}:
            for sha256 in _unnamed(store, added, manifests):
                store.delete(sha256)
                count += 1
    path.unlink(missing_ok=True)
    logger.info("deleted %d blobs of a check of dataset version %s that was interrupted", count, version)
    return count


def _unnamed(store: blobs.BlobStore, added: set[bytes], manifests: Collection[str]) -> Iterator[str]:
    """Yield the hashes that no manifest names and that are no manifest's. Raises MissingBlobError, before any."""
    left = added.difference(sha256.encode() for sha256 in manifests)
    for manifest in manifests:
        if not left:
            return
        with store.open(manifest) as lines:
            left.difference_update(line[:HASH_CHARACTERS] for line in lines)
    yield from (sha256.decode() for sha256 in left if len(sha256) == HASH_CHARACTERS)
