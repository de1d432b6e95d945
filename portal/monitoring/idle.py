"""Finds GPUs that are held but idle in the samples, by the rule of the lab. All but reading the samples is pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.conf import settings

from portal.jobs.models import Allocation
from portal.monitoring.models import Sample
from portal.monitoring.rollups import readings_by_gpu
from portal.monitoring.sampling import Reading

MAX_SAMPLE_GAP = timedelta(minutes=2)
"""A longer time without samples ends an idle time, since the GPU may have worked."""

Readings = Sequence[tuple[datetime, Reading]]
Verdict = Literal["", "warn", "stop"]


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A GPU is idle below ``percent`` for ``after``; ``stops``: the job is put on hold if it is idle for twice that time."""

    percent: int
    after: timedelta
    stops: bool


def idle_rule() -> IdleRule | None:
    """Return the rule of the lab; None if it does not check for idle GPUs."""
    if not settings.IDLE_GPU_MINUTES:
        return None
    after = timedelta(minutes=settings.IDLE_GPU_MINUTES)
    return IdleRule(settings.IDLE_GPU_PERCENT, after, settings.IDLE_GPU_RULE == "stop")


def gpu_idle_since(readings: Readings, percent: int, now: datetime) -> datetime | None:
    """Return since when a GPU has been below ``percent`` without a break; None if it works or has no readings.

    ``readings`` ascend. What is older than they are is not known and does not count.
    """
    since, after = None, now
    for at, reading in reversed(readings):
        if after - at > MAX_SAMPLE_GAP or reading.utilisation is None or reading.utilisation >= percent:
            break
        since = after = at
    return since


def idle_since(gpus: Mapping[int, Readings], held_since: datetime, percent: int, now: datetime) -> datetime | None:
    """Return since when all GPUs of an attempt have been idle. A GPU without readings does not count as idle."""
    found = []
    for readings in gpus.values():
        own = [(at, reading) for at, reading in readings if at >= held_since]
        since = gpu_idle_since(own, percent, now)
        if since is None:
            return None
        found.append(since)
    return max(found, default=None)


def judge(idle_for: timedelta, warned_for: timedelta | None, rule: IdleRule) -> Verdict:
    """Decide what to do; ``warned_for`` is the time since the warning about this idle time, None without one."""
    if idle_for < rule.after:
        return ""
    if warned_for is None:
        return "warn"
    return "stop" if rule.stops and warned_for >= rule.after else ""


def idle_attempts(rule: IdleRule, now: datetime, job: int | None = None) -> dict[int, datetime]:
    """Return the live attempts whose GPUs are all idle by the rule, and since when. Two or three queries.

    First the last samples of all nodes; only of attempts that were idle in those, what came before.
    """
    rows = Allocation.objects.filter(released_at=None, attempt__ended_at=None)
    if job is not None:
        rows = rows.filter(attempt__job=job)
    held: dict[int, list[tuple[int, int, datetime]]] = {}
    for attempt, gpu, node, since in rows.values_list("attempt", "gpu", "gpu__node", "allocated_at"):
        held.setdefault(attempt, []).append((gpu, node, since))
    old_enough = {key: parts for key, parts in held.items() if all(now - since >= rule.after for *_, since in parts)}
    quiet = _idle_since_by_attempt(old_enough, rule.percent, now, MAX_SAMPLE_GAP)
    candidates = {key: parts for key, parts in old_enough.items() if key in quiet}
    found = _idle_since_by_attempt(candidates, rule.percent, now, 2 * rule.after + MAX_SAMPLE_GAP)
    return {key: since for key, since in found.items() if now - since >= rule.after}


def _idle_since_by_attempt(
    held: Mapping[int, list[tuple[int, int, datetime]]], percent: int, now: datetime, span: timedelta
) -> dict[int, datetime]:
    nodes = {node for parts in held.values() for _, node, _ in parts}
    if not nodes:
        return {}
    rows = Sample.objects.filter(node__in=nodes, at__gte=now - span).order_by("at")
    readings = readings_by_gpu(rows.values_list("at", "readings"))
    found = {}
    for attempt, parts in held.items():
        own = {gpu: readings.get(gpu, []) for gpu, _, _ in parts}
        since = idle_since(own, max(since for *_, since in parts), percent, now)
        if since is not None:
            found[attempt] = since
    return found
