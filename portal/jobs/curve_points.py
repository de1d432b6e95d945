"""The points of curves for scripts: all of a short curve, the envelope of a long one, and what came since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Count, F, Max, Min, QuerySet

from portal.jobs.envelope import Line, Stretch, envelope
from portal.jobs.models import Attempt, MetricPoint

MAX_POINTS = 2000
"""The maximum number of points of a curve; screens have fewer columns."""
MIN_POINTS = 200
MAX_POINTS_IN_ALL = 120_000
"""The maximum number of points of an answer with many curves, about three megabytes."""
MAX_NEW_POINTS = 3000
"""The maximum number of new points that are sent one by one; if there are more, all curves are sent again."""


@dataclass(frozen=True, slots=True)
class JobCurves:
    """Curves of a job by name, and the last point among them, after which ``new_points`` continues."""

    job: int
    last_point: int = 0
    lines: Mapping[str, Line] = field(default_factory=dict)


def job_curves(job: int, names: Sequence[str], max_points: int) -> JobCurves:
    """Read the curves of a job in two queries."""
    points = MetricPoint.objects.filter(attempt__job=job, name__in=names)
    ends = points.values("name").order_by()
    rows = list(ends.annotate(count=Count("pk"), low=Min("step"), high=Max("step"), newest=Max("pk")))
    if not rows:
        return JobCurves(job)
    newest = max(row["newest"] for row in rows)
    points = points.filter(pk__lte=newest)  # those that come meanwhile are new points of the next request
    if max(row["count"] for row in rows) <= max_points:
        found = _single_points(points)
    else:
        low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
        found = _stretches(points, low, -(-(high - low + 1) // (max_points // 2)))
    return JobCurves(job, newest, {name: envelope(found[name]) for name in names if name in found})


def points_per_curve(curves: int) -> int:
    return max(MIN_POINTS, min(MAX_POINTS, MAX_POINTS_IN_ALL // max(1, curves)))


def new_points(job: int, after: int) -> JobCurves | None:
    """Return the points that were stored after the point ``after``; None if there are too many to send one by one.

    The points of an attempt are stored under the lock of its progress, so later ones have higher numbers.
    """
    attempts = list(Attempt.objects.filter(job=job).values_list("pk", flat=True))  # joined, all later points are read
    points = MetricPoint.objects.filter(attempt__in=attempts, pk__gt=after)
    newest = list(points.order_by("pk").values_list("pk", flat=True)[: MAX_NEW_POINTS + 1])
    if len(newest) > MAX_NEW_POINTS:
        return None
    if not newest:
        return JobCurves(job, after)
    found = _single_points(points.filter(pk__lte=newest[-1]))
    return JobCurves(job, newest[-1], {name: envelope(stretches) for name, stretches in found.items()})


def _single_points(points: QuerySet[MetricPoint]) -> dict[str, list[Stretch]]:
    """Return a stretch for each step. The last value counts of a step that was repeated after work was lost."""
    found: dict[str, list[Stretch]] = {}
    rows = points.order_by("attempt__number", "pk").values_list("name", "attempt__number", "step", "at", "value")
    for name, attempt, step, at, value in rows:
        moment = at.timestamp()
        found.setdefault(name, []).append(Stretch(attempt, step, step, step, moment, moment, value, value))
    return found


def _stretches(points: QuerySet[MetricPoint], low: int, width: int) -> dict[str, list[Stretch]]:
    """Return a stretch for every ``width`` steps from ``low`` on; the database computes them."""
    found: dict[str, list[Stretch]] = {}
    groups = points.annotate(place=(F("step") - low) / width).values("name", "attempt__number", "place").order_by()
    ranges = groups.annotate(
        first=Min("step"), last=Max("step"), since=Min("at"), until=Max("at"), least=Min("value"), greatest=Max("value")
    )
    for row in ranges:
        found.setdefault(row["name"], []).append(
            Stretch(
                row["attempt__number"],
                row["place"],
                row["first"],
                row["last"],
                row["since"].timestamp(),
                row["until"].timestamp(),
                row["least"],
                row["greatest"],
            )
        )
    return found
