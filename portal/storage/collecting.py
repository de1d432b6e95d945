"""Deletes uploads without progress, versions that came to nothing, and bytes without a row."""

import time
from uuid import UUID

from django.utils import timezone

from portal.storage import incoming
from portal.storage.blobs import data_folder
from portal.storage.models import UPLOAD_LIFE, DatasetVersion, Upload

ORPHAN_SECONDS = 24 * 3600
"""A file without a row is from a process that was killed between the two."""
State = DatasetVersion.State


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
