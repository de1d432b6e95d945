"""Deletes old fetches with their logs. Code versions keep their commits."""

import re
from datetime import timedelta

from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from portal.projects.git import files
from portal.projects.git.ending import OPEN
from portal.projects.git.models import GitFetch

KEPT = 200
"""How many of a project stay, however old they are."""
LIFE = timedelta(days=365)


def delete_old() -> int:
    """Delete fetches that are older than a year or not among the last of their project, and files without a fetch. Return how
    many rows were deleted."""
    order = Window(RowNumber(), partition_by=F("project"), order_by=F("pk").desc())
    beyond = GitFetch.objects.annotate(place=order).filter(place__gt=KEPT).values_list("pk", flat=True)
    old = GitFetch.objects.exclude(OPEN).filter(Q(pk__in=list(beyond)) | Q(requested_at__lt=timezone.now() - LIFE))
    deleted, _ = old.delete()
    numbers = {int(path.stem): path for path in files.folder().glob("*.log") if re.fullmatch(r"[0-9]{1,18}", path.stem)}
    known = set(GitFetch.objects.values_list("pk", flat=True))
    for number in numbers.keys() - known:
        numbers[number].unlink(missing_ok=True)
    archives = files.archives()
    arriving = set(GitFetch.objects.filter(OPEN).values_list("pk", "tries"))
    for path, fetch in archives.items():
        if fetch not in arriving:
            path.unlink(missing_ok=True)
    return deleted
