"""Reduces the reports of a training to one row for each number of GPUs and batch size: how long a step takes.

From these rows ``portal.scheduler.job_history`` learns how fast a program is on how many GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.jobs.models import Allocation, Attempt, StepStat

MAX_WEIGHT = 100
"""The maximum weight of the mean so far, in reports, so that the mean follows a job that becomes slower."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a training."""

    at: datetime
    batch: int
    ranks: int
    seconds: float
    waiting: float | None
    asked_batch: int
    max_batch: int
    noise: tuple[float, float] | None


def record_reports(attempt: Attempt, reports: Sequence[Report]) -> None:
    """Add reports to the rows of an attempt. The caller holds the lock on the attempt's ``Progress``.

    Reports from the time of a change of its GPUs, and those of GPUs of several models, are ignored.
    """
    held = Allocation.objects.filter(attempt=attempt, released_at__isnull=True)
    gpus = list(held.values_list("gpu__node", "gpu__model"))
    kinds, nodes = {kind for _, kind in gpus}, len({node for node, _ in gpus})
    fit = [report for report in reports if report.ranks == len(gpus) and report.batch and report.seconds > 0]
    if not fit or len(kinds) != 1:
        return
    rows: dict[int, StepStat] = {}
    for report in fit:
        if report.batch not in rows:
            about = {"kind": next(iter(kinds)), "nodes": nodes, "gpus": len(gpus), "batch": report.batch}
            rows[report.batch], _ = StepStat.objects.get_or_create(attempt=attempt, **about, defaults={"at": report.at})
        _add_report(rows[report.batch], report)
    for row in rows.values():
        row.save()


def _add_report(row: StepStat, report: Report) -> None:
    before = min(row.reports, MAX_WEIGHT - 1)
    row.seconds = _updated_mean(row.seconds, before, report.seconds)
    if report.waiting is not None:
        known = row.waiting_seconds is not None
        row.waiting_seconds = _updated_mean(row.waiting_seconds or 0.0, before if known else 0, report.waiting)
    row.reports += 1
    row.at, row.asked_batch, row.max_batch = report.at, report.asked_batch, report.max_batch
    if report.noise is not None:
        row.noise_sqr, row.noise_var = report.noise


def _updated_mean(mean: float, count: int, value: float) -> float:
    return (mean * count + value) / (count + 1)
