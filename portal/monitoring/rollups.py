"""Summarises the samples of each hour once it is over, and deletes old rows, so that both tables stay bounded."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.cluster.models import Gpu
from portal.monitoring.models import Hour, Sample
from portal.monitoring.sampling import Reading

HOUR = timedelta(hours=1)
SAMPLE_RETENTION = timedelta(hours=3)
"""Longer than the hour that is not rolled up yet and the longest check for idle GPUs (two hours)."""
HOUR_RETENTION = timedelta(days=31)
LATE_REPORT_MARGIN = timedelta(minutes=1)
"""The time after which the last reports of an hour are written."""
INSERT_BATCH_SIZE = 500

Values = Sequence[float | None]


def start_of_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def roll_up(now: datetime | None = None) -> int:
    """Make the missing rows of past hours and delete old rows; return the number of rows made."""
    now = now or timezone.now()
    made = 0
    first = Sample.objects.order_by("at").values_list("at", flat=True).first()
    hour = start_of_hour(first) if first else now
    while hour + HOUR + LATE_REPORT_MARGIN <= now:
        if not Hour.objects.filter(at=hour).exists():
            made += _summarise_hour(hour)
        hour += HOUR
    Sample.objects.filter(at__lt=now - SAMPLE_RETENTION).delete()
    Hour.objects.filter(at__lt=now - HOUR_RETENTION).delete()
    return made


@transaction.atomic
def _summarise_hour(hour: datetime) -> int:
    """Make all rows of an hour in one transaction, so that an hour is complete or missing."""
    known = set(Gpu.objects.values_list("pk", flat=True))
    rows = Sample.objects.filter(at__gte=hour, at__lt=hour + HOUR).order_by("node_id", "at")
    made, batch = 0, []
    for _, samples in groupby(rows.values_list("node_id", "at", "readings").iterator(), key=lambda row: row[0]):
        for gpu, readings in readings_by_gpu((at, readings) for _, at, readings in samples).items():
            if gpu in known:
                batch.append(hour_summary(gpu, hour, readings))
        if len(batch) >= INSERT_BATCH_SIZE:
            made += len(Hour.objects.bulk_create(batch, ignore_conflicts=True))
            batch = []
    return made + len(Hour.objects.bulk_create(batch, ignore_conflicts=True))


def readings_by_gpu(samples: Iterable[tuple[datetime, list[Any]]]) -> dict[int, list[tuple[datetime, Reading]]]:
    """Return the readings in rows of samples by GPU."""
    found: dict[int, list[tuple[datetime, Reading]]] = defaultdict(list)
    for at, readings in samples:
        for values in readings:
            reading = Reading(*values)
            found[reading.gpu].append((at, reading))
    return found


def hour_summary(gpu: int, hour: datetime, readings: Sequence[tuple[datetime, Reading]]) -> Hour:
    """Return the row of a GPU from its readings in an hour; pure."""
    minutes: list[list[Reading]] = [[] for _ in range(60)]
    for at, reading in readings:
        minutes[int((at - hour).total_seconds()) // 60].append(reading)

    def per_minute(metric: str) -> list[float | None]:
        return [_rounded(mean(_reported_values(some, metric))) for some in minutes]

    whole = [reading for _, reading in readings]
    utilisation, memory, temperature = (
        list(_reported_values(whole, metric)) for metric in ("utilisation", "memory", "temperature")
    )  # fmt: skip
    return Hour(
        gpu_id=gpu,
        at=hour,
        utilisation_mean=mean(utilisation),
        utilisation_max=max(utilisation, default=None),
        memory_mean_mib=mean(memory),
        memory_max_mib=max(memory, default=None),
        temperature_mean=mean(temperature),
        temperature_max=max(temperature, default=None),
        minutes={
            **{metric: per_minute(metric) for metric in ("utilisation", "memory", "temperature")},
            "peak": [max(_reported_values(some, "utilisation"), default=None) for some in minutes],
        },
    )


def _reported_values(readings: Iterable[Reading], metric: str) -> Iterator[int]:
    return (value for reading in readings if (value := getattr(reading, metric)) is not None)


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
