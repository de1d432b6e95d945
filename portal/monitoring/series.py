"""Computes values over time from samples and hours, in steps as fine as the window allows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Max

from portal.cluster.models import Gpu
from portal.monitoring.models import Hour, Sample
from portal.monitoring.rollups import HOUR, readings_by_gpu

METRICS = ("utilisation", "memory", "temperature")
MAX_SAMPLED_WINDOW = timedelta(hours=2)
"""Windows up to this length are read from samples only, which are kept for three hours."""
MAX_POINTS = 120
STEPS = tuple(timedelta(seconds=seconds) for seconds in (15, 60, 300, 900, 3600, 7200, 14400, 28800, 86400))

HeldPeriods = Mapping[int, Sequence[tuple[datetime, datetime]]]
"""The times that count, by GPU."""
Point = tuple[int, datetime, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time that users can choose."""

    key: str
    text: str
    length: timedelta


WINDOWS = {
    window.key: window
    for window in (
        Window("hour", "hour", timedelta(hours=1)),
        Window("6h", "6 hours", timedelta(hours=6)),
        Window("day", "day", timedelta(days=1)),
        Window("week", "week", timedelta(days=7)),
        Window("month", "30 days", timedelta(days=30)),
    )
}


@dataclass(frozen=True, slots=True)
class Trace:
    """The mean values in each step; None where nothing was reported."""

    times: tuple[datetime, ...]
    """The start of each step."""
    step: timedelta
    values: Mapping[int, Mapping[str, Sequence[float | None]]]
    """By GPU and metric."""

    def has_values(self, metric: str) -> bool:
        return any(value is not None for each in self.values.values() for value in each[metric])


def step_for(length: timedelta) -> timedelta:
    """Return the finest step with which a chart is readable."""
    return next((step for step in STEPS if length / step <= MAX_POINTS), STEPS[-1])


def trace(
    gpus: Collection[Gpu], since: datetime, until: datetime, now: datetime, periods: HeldPeriods | None = None
) -> Trace:
    """Return the readings of GPUs; with ``periods`` only in those times. At most four queries."""
    step = step_for(until - since)
    start = _floor(since, step)
    count = max(1, -(-(until - start) // step))
    sums = {gpu.pk: {metric: [(0.0, 0)] * count for metric in METRICS} for gpu in gpus}
    for gpu, at, values in _points(gpus, start, until, step, now):
        place = (at - start) // step
        if gpu not in sums or not 0 <= place < count or (periods is not None and not _within(at, periods.get(gpu, ()))):
            continue
        for metric, value in zip(METRICS, values, strict=True):
            if value is not None:
                total, known = sums[gpu][metric][place]
                sums[gpu][metric][place] = (total + value, known + 1)
    means = {
        gpu: {metric: [total / known if known else None for total, known in row] for metric, row in rows.items()}
        for gpu, rows in sums.items()
    }
    return Trace(tuple(start + step * place for place in range(count)), step, means)


def _points(gpus: Collection[Gpu], since: datetime, until: datetime, step: timedelta, now: datetime) -> Iterator[Point]:
    raw_from = since
    if now - since > MAX_SAMPLED_WINDOW:
        rows = Hour.objects.filter(gpu__in=gpus, at__gt=since - HOUR, at__lt=until)
        newest = rows.aggregate(newest=Max("at"))["newest"]
        if newest is not None:
            raw_from = newest + HOUR
            yield from _hourly_points(rows) if step >= HOUR else _minute_points(rows)
    if raw_from < until:
        yield from _sample_points({gpu.node_id for gpu in gpus}, raw_from, until)


def _hourly_points(rows: Iterable[Hour]) -> Iterator[Point]:
    columns = ("gpu", "at", "utilisation_mean", "memory_mean_mib", "temperature_mean")
    for gpu, at, *values in rows.values_list(*columns):  # type: ignore[attr-defined]
        yield gpu, at, tuple(values)


def _minute_points(rows: Iterable[Hour]) -> Iterator[Point]:
    for gpu, hour, minutes in rows.values_list("gpu", "at", "minutes"):  # type: ignore[attr-defined]
        for minute, values in enumerate(zip(*(minutes[metric] for metric in METRICS), strict=True)):
            yield gpu, hour + timedelta(minutes=minute), values


def _sample_points(nodes: Collection[int], since: datetime, until: datetime) -> Iterator[Point]:
    rows = Sample.objects.filter(node__in=nodes, at__gte=since, at__lte=until).values_list("at", "readings")
    for gpu, readings in readings_by_gpu(rows).items():
        for at, reading in readings:
            yield gpu, at, reading[1:]


def _floor(moment: datetime, step: timedelta) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % int(step.total_seconds()), UTC)


def _within(moment: datetime, periods: Sequence[tuple[datetime, datetime]]) -> bool:
    return any(since <= moment <= until for since, until in periods)


def utilisation_by_minute(gpus: Collection[Gpu], now: datetime) -> dict[int, list[float | None]]:
    """Return the utilisation by minute, for the small charts of a list: one sample a minute is enough. One query."""
    start = _floor(now - HOUR, timedelta(minutes=1))
    minutes: dict[int, list[float | None]] = {gpu.pk: [None] * 61 for gpu in gpus}
    whole = Sample.objects.filter(node__in={gpu.node_id for gpu in gpus}, at__gte=start, at__second=0)
    for gpu, readings in readings_by_gpu(whole.values_list("at", "readings")).items():
        for at, reading in readings:
            place = int((at - start).total_seconds()) // 60
            if gpu in minutes and 0 <= place <= 60:
                minutes[gpu][place] = reading.utilisation
    return minutes
