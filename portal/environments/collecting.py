"""Deletes layers that nothing needs, and logs of builds. Rows of locks and builds stay: jobs name them."""

import logging
import re
import time
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from portal.environments import archives
from portal.environments.models import Build, Environment, Lock
from portal.environments.summary import newest_builds

GRACE = timedelta(days=1)
"""A layer that was built or fetched within this time stays: a job may be about to start with it."""
LOG_LIFE = timedelta(days=365)
STALE_SECONDS = 24 * 3600
"""A file without a row is older than this when it is deleted: its row may not be written yet."""

logger = logging.getLogger(__name__)


def keep_days() -> int:
    days: int = settings.KEEP_LAYERS_DAYS
    return days


def unused(last_use: Mapping[int, datetime], busy: Collection[int]) -> list[Environment]:
    """Return the environments with a recipe that were removed, or that no job has used for ``KEEP_LAYERS_DAYS``.

    ``last_use`` has when a job last used an environment, by its number; those in ``busy`` have jobs that have not ended.
    """
    before = timezone.now() - timedelta(days=keep_days())
    rows = Environment.objects.exclude(recipe="").exclude(pk__in=busy)
    return [row for row in rows if row.retired or _last_wanted(row, last_use) < before]


def _last_wanted(environment: Environment, last_use: Mapping[int, datetime]) -> datetime:
    times = (environment.created_at, environment.requested_at, last_use.get(environment.pk))
    return max(moment for moment in times if moment is not None)


def delete_unused_layers(last_use: Mapping[int, datetime], busy: Collection[int], named: Collection[str]) -> int:
    """Delete the archives that no environment in use needs; return how many.

    Of each environment in use, the newest layer for each kind of node stays, and of all those in ``named``, which running
    jobs have. A deleted layer is built again when a job needs it.
    """
    dropped = {row.pk for row in unused(last_use, busy)}
    recipes = Environment.objects.exclude(recipe="").exclude(pk__in=dropped).values_list("recipe", flat=True)
    done = Build.objects.filter(recipe__in=set(recipes), state=Build.State.DONE, lock__isnull=False)
    needed = set(newest_builds(done, per_kind=True).values_list("lock__digest", flat=True)) | set(named)
    kept = Lock.objects.exclude(archive_sha256="").filter(used_at__lt=timezone.now() - GRACE)
    removed = 0
    for digest in list(kept.values_list("digest", flat=True)):
        if digest not in needed and kept.filter(digest=digest).update(archive_sha256="", archive_bytes=0):
            archives.delete(digest)
            removed += 1
    if removed:
        logger.info("deleted %d layers that nothing used", removed)
    return removed + _delete_files_without_rows()


def _delete_files_without_rows() -> int:
    """Delete archives whose rows do not have them, as a crash between the two leaves them."""
    known = set(Lock.objects.exclude(archive_sha256="").values_list("digest", flat=True))
    before, removed = time.time() - STALE_SECONDS, 0
    for path in archives.folder().glob("*.tar"):
        if path.stem not in known and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def delete_old_logs() -> int:
    """Delete the logs of builds whose rows are gone or older than a year; return how many."""
    folder = settings.HOME / "builds"
    numbers = {int(path.stem): path for path in folder.glob("*.log") if re.fullmatch(r"[0-9]{1,18}", path.stem)}
    recent = Q(started_at__gte=timezone.now() - LOG_LIFE) | Q(state=Build.State.RUNNING)
    kept = set(Build.objects.filter(recent).values_list("pk", flat=True))
    for number, path in numbers.items():
        if number not in kept:
            path.unlink(missing_ok=True)
    return len(numbers.keys() - kept)
