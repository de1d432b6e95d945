"""Readings of the demo lab's GPUs in its month, hour by hour, and minute by minute in the last hour."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from portal.cluster.models import Gpu
from portal.monitoring import sampling
from portal.monitoring.models import Hour, Sample
from portal.monitoring.rollups import HOUR, start_of_hour
from portal.monitoring.sampling import Reading
from portal.ops.demo.inserts import insert_rows
from portal.ops.demo.people import DemoLab
from portal.ops.demo.rows import AttemptRecord, MonthRows
from portal.ops.demo.simulation import BACK_AT, LOST_AT
from runners.demo.nodes import GpuModel

MAX_ROWS = 13_000
"""GPU-hours with readings: a month of the usual demo lab. A larger lab has only the last days."""
IDLE_MIB = 450
CLIPPED = {value: min(100, max(0, value)) for value in range(-100, 201)}
CELSIUS_BY_PERCENT = [round(34 + 0.44 * percent) for percent in range(101)]
"""Degrees Celsius by utilisation."""
HOUR_FIELDS = (
    "gpu", "at", "utilisation_mean", "utilisation_max", "memory_mean_mib", "memory_max_mib", "temperature_mean",
    "temperature_max", "minutes",
)  # fmt: skip
NOISE_MINUTES = 97
"""How many minutes of noise there are; a prime, so that hours differ."""


class BusyPeriod(NamedTuple):
    """A GPU at work for a job."""

    since: datetime
    until: datetime
    percent: int
    memory_mib: int


def write_readings(lab: DemoLab, written: MonthRows, now: datetime, seed: int) -> None:
    busy = _busy_periods(written, now)
    chance = random.Random(seed)  # noqa: S311  # nothing secret depends on it
    noise = [round(chance.gauss(0, 6)) for _ in range(NOISE_MINUTES)]
    noise += noise[:60]
    gpus = [gpu for each in lab.gpus.values() for gpu in each]
    away = _node_outage(lab, written)
    hours = int((start_of_hour(now) - written.start) / HOUR)
    first = start_of_hour(now) - HOUR * min(hours, MAX_ROWS // len(gpus))
    last = len(lab.nodes) - 1
    insert_rows(
        Hour,
        HOUR_FIELDS,
        (
            row
            for number, here in lab.gpus.items()
            for gpu in here
            for row in _hours(gpu.pk, busy[gpu.pk], noise, first, start_of_hour(now), away if number == last else None)
        ),
    )
    Sample.objects.bulk_create(_samples(lab, busy, noise, now), batch_size=500)
    for gpu in gpus:
        _, *readings = _reading(gpu, busy[gpu.pk], noise, now - timedelta(seconds=1))
        gpu.utilisation_percent, gpu.memory_used_mib, gpu.temperature_celsius = readings
    Gpu.objects.bulk_update(gpus, ["utilisation_percent", "memory_used_mib", "temperature_celsius"])


def _node_outage(lab: DemoLab, written: MonthRows) -> tuple[datetime, datetime] | None:
    """Return when the last node was lost and when it came back."""
    return (written.at(LOST_AT), written.at(BACK_AT)) if len(lab.nodes) > 1 else None


def _busy_periods(written: MonthRows, now: datetime) -> dict[int, list[BusyPeriod]]:
    """Return the times at which each GPU was busy, in order."""
    found: dict[int, list[BusyPeriod]] = defaultdict(list)
    for record in written.attempt_records:
        for holding in record.simulated.holdings:
            began = written.at(max(holding.since, record.began or holding.since))
            until = now if holding.until is None else written.at(holding.until)
            percent, memory = gpu_usage(record)
            for gpu in written.gpus_of[id(holding)]:
                used = GpuModel(gpu.model, gpu.memory_mib).used_mib(memory)
                found[gpu.pk].append(BusyPeriod(began, until, percent, used))
    for times in found.values():
        times.sort()
    return found


def gpu_usage(record: AttemptRecord) -> tuple[int, int]:
    """Return the utilisation of each of the attempt's GPUs in percent, and the memory in MiB in use where there is enough."""
    request = record.demo_job.request
    return min(99, max(3, request.pattern.busy_percent + request.number * 7 % 15 - 7)), request.gpu_memory_mib


def _hours(
    gpu: int, busy: Sequence[BusyPeriod], noise: Sequence[int], first: datetime, last: datetime,
    away: tuple[datetime, datetime] | None,
) -> Iterator[tuple[object, ...]]:  # fmt: skip
    place, hour = 0, first
    while hour < last:
        while place < len(busy) and busy[place].until <= hour:
            place += 1
        if away is None or hour + HOUR <= away[0] or hour >= away[1]:
            yield _hour(gpu, hour, busy, place, noise)
        hour += HOUR


def _hour(gpu: int, hour: datetime, busy: Sequence[BusyPeriod], place: int, noise: Sequence[int]) -> tuple[object, ...]:
    use, memory = [0] * 60, [IDLE_MIB] * 60
    shift = (gpu * 31 + int(hour.timestamp() // 3600) * 17) % NOISE_MINUTES
    while place < len(busy) and busy[place].since < hour + HOUR:
        work = busy[place]
        begins = max(0, int((work.since - hour).total_seconds() // 60))
        ends = min(60, int((work.until - hour).total_seconds() // 60) + 1)
        use[begins:ends] = [CLIPPED[work.percent + more] for more in noise[shift + begins : shift + ends]]
        memory[begins:ends] = [work.memory_mib] * (ends - begins)
        place += 1
    heat = [CELSIUS_BY_PERCENT[percent] for percent in use]
    minutes = {"utilisation": use, "memory": memory, "temperature": heat, "peak": use}
    return (
        gpu, hour, sum(use) / 60, max(use), sum(memory) / 60, max(memory), sum(heat) / 60, max(heat), minutes
    )  # fmt: skip


def _samples(lab: DemoLab, busy: dict[int, list[BusyPeriod]], noise: Sequence[int], now: datetime) -> Iterator[Sample]:
    """Yield samples of the last hour, one per minute."""
    at = sampling.slot_of(now - HOUR)
    while at < now:
        for number, node in enumerate(lab.nodes):
            readings = [_reading(gpu, busy[gpu.pk], noise, at) for gpu in lab.gpus_of_node(number)]
            yield Sample(node=node, at=at, readings=sampling.sample_of(readings))
        at += timedelta(minutes=1)


def _reading(gpu: Gpu, busy: Sequence[BusyPeriod], noise: Sequence[int], at: datetime) -> Reading:
    work = next((work for work in reversed(busy) if work.since <= at < work.until), None)
    percent, memory = 0, IDLE_MIB
    if work is not None:
        percent = CLIPPED[work.percent + noise[(gpu.pk * 31 + at.minute) % NOISE_MINUTES]]
        memory = work.memory_mib
    return Reading(gpu.pk, percent, memory, CELSIUS_BY_PERCENT[percent])
