"""The most memory that attempts used on a GPU, measured once they have ended, before the samples are deleted."""

from datetime import datetime, timedelta

from django.utils import timezone

from portal.cluster.models import Gpu
from portal.jobs.models import Allocation, Attempt
from portal.monitoring.models import Hour, Sample
from portal.monitoring.rollups import HOUR, SAMPLE_RETENTION

MAX_AT_ONCE = 200
"""The most attempts that one call measures; the next one continues."""
LAST_REPORT = timedelta(seconds=30)
"""After this time all reports of an attempt that has ended are there."""


def measure(now: datetime | None = None) -> int:
    """Write ``Attempt.peak_gpu_memory_mib`` of attempts that have ended since the oldest samples; return how many."""
    now = now or timezone.now()
    ended = Attempt.objects.filter(
        peak_gpu_memory_mib=None, ended_at__gt=now - SAMPLE_RETENTION, ended_at__lt=now - LAST_REPORT
    )
    measured = 0
    for attempt in ended.order_by("ended_at")[:MAX_AT_ONCE]:
        measured += Attempt.objects.filter(pk=attempt.pk).update(peak_gpu_memory_mib=_peak_of(attempt) or 0)
    return measured


def _peak_of(attempt: Attempt) -> int | None:
    """Return the most memory that was used on one of its GPUs while it held it, in MiB; None where none was reported.

    Samples have the last hours; of earlier ones the maximum is known, and of parts of an hour the means of minutes.
    """
    held = Allocation.objects.filter(attempt=attempt, gpu__kind=Gpu.Kind.CUDA).select_related("gpu")
    peak = 0
    for each in held:
        since, until = each.allocated_at, each.released_at or attempt.ended_at
        if until is None:
            continue
        for row in Hour.objects.filter(gpu=each.gpu_id, at__gt=since - HOUR, at__lt=until):
            peak = max(peak, _peak_of_hour(row, since, until))
        samples = Sample.objects.filter(node=each.gpu.node_id, at__gte=since, at__lte=until)
        for readings in samples.values_list("readings", flat=True):
            peak = max([peak, *(memory or 0 for gpu, _, memory, _ in readings if gpu == each.gpu_id)])
    return peak or None


def _peak_of_hour(row: Hour, since: datetime, until: datetime) -> int:
    if since <= row.at and row.at + HOUR <= until:
        return row.memory_max_mib or 0
    minutes = enumerate(row.minutes.get("memory") or ())
    return round(
        max(
            (value for minute, value in minutes if value and since <= row.at + timedelta(minutes=minute) < until),
            default=0,
        )
    )
