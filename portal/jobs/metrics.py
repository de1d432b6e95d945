"""What trainings tell of themselves: curves, how far they are, how long each rank computes and waits.

It comes as lines of JSON in the stream ``metrics`` (``schedulearn_train/report.py`` says which), from users' code: whatever
is not what it should be is passed over, and there is a limit to how much of it is kept.
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

MAX_LINE = 4096
MAX_POINTS = 100_000
"""Of one attempt: a day's reports of ten curves."""
MAX_RANKS = 1024
MAX_EPOCHS = (1 << 31) - 1
LATEST_STEP = 1 << 53
MAX_SECONDS_LEFT = 10 * 365 * 86_400.0
"""Whatever its code says: what is further off helps nobody, and infinity would be passed on to policies."""
MAX_VALUE = 1e30
"""What is further from zero has lost its way, and could not be drawn."""
COLUMNS = ("samples", "computing", "waiting", "expected", "error")
LOSS, THROUGHPUT, BATCH = "train/loss", "train/samples per second", "train/batch"


@dataclass(frozen=True, slots=True)
class Line:
    """One that is sound as far as all kinds of them are."""

    kind: str
    at: datetime
    step: int
    facts: Mapping[str, Any]

    def number(self, name: str, maximum: float = 1e300) -> float | None:
        return _number(self.facts.get(name), maximum)

    def numbers(self, name: str, maximum: float = 1e300) -> list[float | None]:
        """Of a list, as long as there can be ranks; empty for whatever is none."""
        values = self.facts.get(name)
        return [_number(value, maximum) for value in values[:MAX_RANKS]] if isinstance(values, list) else []

    def count(self, name: str, maximum: int = LATEST_STEP) -> int:
        """A whole number, 0 for whatever is none."""
        value = self.number(name, maximum)
        return max(0, int(value)) if value is not None else 0


def _number(value: Any, maximum: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) <= maximum else None


def take(container: Container, text: bytes) -> None:
    """Keeps what is in these lines. In the transaction in which the stream grew, so nothing is kept twice."""
    lines = list(_lines(text))
    if not lines:
        return
    attempt = container.attempt
    begin = {"at": timezone.now(), "step": 0, "epoch": 0, "batch": 0, "ranks": 0}
    locked = Progress.objects.select_for_update(no_key=True)  # ranks on several nodes may tell at once
    progress, _ = locked.get_or_create(attempt=attempt, defaults=begin)
    points = [point for line in lines for point in _points(attempt, line)]
    points = points[: max(0, MAX_POINTS - progress.points)]
    MetricPoint.objects.bulk_create(points)
    newest = next((line for line in reversed(lines) if line.kind == "step"), None)
    progress.points += len(points)
    if newest is not None:
        _go_on(progress, newest)
    for line in lines:
        if line.kind == "ranks":
            _fill_in(progress, line)
    progress.save()
    if reports := list(_reports(lines)):
        step_stats.note(attempt, reports)


def _lines(text: bytes) -> Iterator[Line]:
    for raw in text.splitlines():
        try:
            item = orjson.loads(raw)
            at = datetime.fromtimestamp(item["at"], UTC)
            if item["kind"] in ("step", "ranks", "metric") and 0 <= int(item["step"]) <= LATEST_STEP:
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
        values = {_name(line.facts.get("name")): line.number("value")}
    for name, value in values.items():
        if name and value is not None and abs(value) <= MAX_VALUE:
            yield MetricPoint(attempt=attempt, name=name, step=line.step, at=line.at, value=value)


def _reports(lines: Sequence[Line]) -> Iterator[Report]:
    """The lines of steps, each with what the line of the ranks behind it says."""
    for line, beside in zip_longest(lines, lines[1:]):
        seconds = line.number("seconds", 1e6)
        if line.kind != "step" or seconds is None:
            continue
        waiting = beside.numbers("waiting", 1e6) if beside is not None and beside.kind == "ranks" else []
        waits = [max(0.0, wait) for wait in waiting if wait is not None]
        batches = [int(each) for each in line.numbers("batches", LATEST_STEP) if each is not None and each > 0]
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


def _name(given: Any) -> str:
    """Printable, or empty."""
    return "".join(each for each in given if each.isprintable()).strip()[:100] if isinstance(given, str) else ""


def _go_on(progress: Progress, line: Line) -> None:
    done = line.number("done", 1.0)
    progress.at, progress.step, progress.epoch = line.at, line.step, line.count("epoch", MAX_EPOCHS)
    progress.done = max(0.0, done) if done is not None else None
    progress.total = line.count("total") or None
    progress.batch, progress.ranks = line.count("batch"), line.count("ranks", MAX_RANKS)
    progress.step_seconds, progress.loss = line.number("seconds", 1e6), line.number("loss")


def seconds_left(done: float, step: int, batch: int, total: int | None, step_seconds: float) -> float:
    """At the pace of the last steps; whoever does not say how many samples there are in all is taken to have kept the batch."""
    steps = (1 - done) * total / batch if total and batch else (1 - done) / done * step
    return min(steps * step_seconds, MAX_SECONDS_LEFT)


def _fill_in(progress: Progress, line: Line) -> None:
    """A line has the columns of some ranks, from the ``first`` on; those behind the last rank there is are dropped."""
    first = line.count("first", MAX_RANKS)
    for name in COLUMNS:
        if some := line.numbers(name):
            before = progress.per_rank.get(name, [])[:first]
            column = [*before, *[None] * (first - len(before)), *some]
            progress.per_rank[name] = column[: progress.ranks or MAX_RANKS]
