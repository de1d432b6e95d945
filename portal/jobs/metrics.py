"""Stores the reports of trainings: curves, progress, and how long each rank computes and waits.

Reports are lines of JSON in the stream ``metrics`` (see ``schedulearn_train/report.py``), written by users' code: invalid
lines are ignored, and the amount that is kept is limited.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import orjson
from django.utils import timezone

from portal.jobs import step_stats
from portal.jobs.models import Attempt, Container, MetricPoint, Progress
from portal.jobs.step_stats import Report

MAX_LINE_BYTES = 4096
MAX_POINTS = 100_000
"""The maximum number of points of an attempt: a day of reports of ten curves."""
MAX_RANKS = 1024
MAX_EPOCHS = (1 << 31) - 1
MAX_STEP = 1 << 53
MAX_SECONDS_LEFT = 10 * 365 * 86_400.0
"""The maximum remaining time, whatever the code reports: infinity would be passed on to policies."""
MAX_VALUE = 1e30
"""The maximum absolute value of a point: training has diverged beyond it, and it could not be drawn."""
RANK_COLUMNS = ("samples", "computing", "waiting", "expected", "error")
LOSS, THROUGHPUT, BATCH = "train/loss", "train/samples per second", "train/batch"


@dataclass(frozen=True, slots=True)
class Line:
    """A line whose fields that all kinds of lines have are valid."""

    kind: str
    at: datetime
    step: int
    facts: Mapping[str, Any]

    def number(self, name: str, maximum: float = 1e300) -> float | None:
        return _number(self.facts.get(name), maximum)

    def numbers(self, name: str, maximum: float = 1e300) -> list[float | None]:
        """Return a list with at most one number per rank; empty if the field is not a list."""
        values = self.facts.get(name)
        return [_number(value, maximum) for value in values[:MAX_RANKS]] if isinstance(values, list) else []

    def count(self, name: str, maximum: int = MAX_STEP) -> int:
        """Return a whole number; 0 if the field is not a number."""
        value = self.number(name, maximum)
        return max(0, int(value)) if value is not None else 0


def _number(value: Any, maximum: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) <= maximum else None


def store_reports(container: Container, text: bytes) -> None:
    """Store the reports in these lines, in the transaction that appends to the stream, so that none is stored twice."""
    lines = list(_parse_lines(text))
    if not lines:
        return
    attempt = container.attempt
    begin = {"at": timezone.now(), "step": 0, "epoch": 0, "batch": 0, "ranks": 0}
    locked = Progress.objects.select_for_update(no_key=True)  # ranks on several nodes may report at once
    progress, _ = locked.get_or_create(attempt=attempt, defaults=begin)
    points = [point for line in lines for point in _points(attempt, line)]
    points = points[: max(0, MAX_POINTS - progress.points)]
    MetricPoint.objects.bulk_create(points)
    newest = next((line for line in reversed(lines) if line.kind == "step"), None)
    progress.points += len(points)
    if newest is not None:
        _update_progress(progress, newest)
    for line in lines:
        if line.kind == "ranks":
            _update_ranks(progress, line)
    progress.save()
    if reports := list(_step_reports(lines)):
        step_stats.record_reports(attempt, reports)


def _parse_lines(text: bytes) -> Iterator[Line]:
    for raw in text.splitlines():
        try:
            item = orjson.loads(raw)
            at = datetime.fromtimestamp(item["at"], UTC)
            if item["kind"] in ("step", "ranks", "metric") and 0 <= int(item["step"]) <= MAX_STEP:
                yield Line(item["kind"], min(at, timezone.now()), int(item["step"]), item)
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            continue


def _points(attempt: Attempt, line: Line) -> Iterator[MetricPoint]:
    values: dict[str, float | None] = {}
    if line.kind == "step":
        seconds, batch = line.number("seconds"), line.count("batch")
        values = {LOSS: line.number("loss"), BATCH: float(batch) if batch else None}
        values[THROUGHPUT] = batch / seconds if seconds and seconds > 0 and batch else None
    elif line.kind == "metric":
        values = {_printable_name(line.facts.get("name")): line.number("value")}
    for name, value in values.items():
        if name and value is not None and abs(value) <= MAX_VALUE:
            yield MetricPoint(attempt=attempt, name=name, step=line.step, at=line.at, value=value)


def _step_reports(lines: Sequence[Line]) -> Iterator[Report]:
    """Yield a report for each line of a step, with the waiting times in the line of ranks after it."""
    for line, following in zip_longest(lines, lines[1:]):
        seconds = line.number("seconds", 1e6)
        if line.kind != "step" or seconds is None:
            continue
        waiting = following.numbers("waiting", 1e6) if following is not None and following.kind == "ranks" else []
        waits = [max(0.0, wait) for wait in waiting if wait is not None]
        batches = [int(each) for each in line.numbers("batches", MAX_STEP) if each is not None and each > 0]
        asked, _, maximum = batches if len(batches) == 3 else [line.count("batch")] * 3
        noise = [each for each in line.numbers("noise") if each is not None and each >= 0]
        yield Report(
            at=line.at,
            batch=line.count("batch"),
            ranks=line.count("ranks", MAX_RANKS),
            seconds=seconds,
            waiting=min(waits, default=None),
            asked_batch=asked,
            max_batch=max(asked, maximum),
            noise=(noise[0], noise[1]) if len(noise) == 2 else None,
        )


def _printable_name(given: Any) -> str:
    """Return the printable characters of a name; empty if there is none."""
    return "".join(each for each in given if each.isprintable()).strip()[:100] if isinstance(given, str) else ""


def _update_progress(progress: Progress, line: Line) -> None:
    done = line.number("done", 1.0)
    progress.at, progress.step, progress.epoch = line.at, line.step, line.count("epoch", MAX_EPOCHS)
    progress.done = max(0.0, done) if done is not None else None
    progress.total = line.count("total") or None
    progress.batch, progress.ranks = line.count("batch"), line.count("ranks", MAX_RANKS)
    progress.step_seconds, progress.loss = line.number("seconds", 1e6), line.number("loss")


def seconds_left(done: float, step: int, batch: int, total: int | None, step_seconds: float) -> float:
    """Return the remaining seconds at the speed of the last steps.

    If the total number of samples is not reported, the batch size is assumed to be constant.
    """
    steps = (1 - done) * total / batch if total and batch else (1 - done) / done * step
    return min(steps * step_seconds, MAX_SECONDS_LEFT)


def _update_ranks(progress: Progress, line: Line) -> None:
    """Store the columns of a line, which has some ranks from ``first``; values beyond the last rank are dropped."""
    first = line.count("first", MAX_RANKS)
    for name in RANK_COLUMNS:
        if some := line.numbers(name):
            before = progress.per_rank.get(name, [])[:first]
            column = [*before, *[None] * (first - len(before)), *some]
            progress.per_rank[name] = column[: progress.ranks or MAX_RANKS]
