"""The main curve of each job of a list, in a few values: its loss, or its first metric by name."""

from collections.abc import Iterable, Sequence
from math import log

from django.core.cache import cache
from django.db.models import Avg, Case, F, Max, Min, Q, QuerySet, Sum, Value, When

from portal.jobs.metrics import LOSS
from portal.jobs.models import Job, MetricPoint, Progress

VALUES = 32
"""The number of values of a sparkline, about one for three pixels."""
GROWTH = 1.1
"""A sparkline is computed again when its job has this many times as many points."""
KEPT_SECONDS = 7 * 86_400

Sparkline = list[float | None]


def sparklines_of(jobs: Iterable[Job]) -> dict[int, Sparkline]:
    """Return the values to draw for each of the jobs that has reported any, in at most four queries.

    Most lists take one: what was computed is kept until the curve has grown by a tenth.
    """
    uids = {job.pk: job.uid.hex for job in jobs}
    reported = Progress.objects.filter(attempt__job__in=uids, points__gt=0).order_by()
    points = dict(reported.values_list("attempt__job").annotate(sum=Sum("points")))
    keys = {_cache_key(uids[job], count): job for job, count in points.items()}
    found = {keys[key]: values for key, values in cache.get_many(keys).items()}
    missing = [job for job in points if job not in found]
    if missing:
        computed = _compute(missing)
        cache.set_many({key: computed[job] for key, job in keys.items() if job in computed}, KEPT_SECONDS)
        found |= computed
    return found


def _cache_key(uid: str, points: int) -> str:
    return f"sparkline-{uid}-{round(log(points) / log(GROWTH))}"


def _compute(jobs: Sequence[int]) -> dict[int, Sparkline]:
    points = MetricPoint.objects.filter(attempt__job__in=jobs).order_by()
    ends = _ends(points.filter(name=LOSS))
    others = [job for job in jobs if job not in ends]
    if others:
        ends |= _ends(points.filter(attempt__job__in=others))
    if not ends:
        return {}
    main = Q()
    for job, (name, _, _) in ends.items():
        main |= Q(attempt__job=job, name=name)
    first = Case(*(When(attempt__job=job, then=Value(low)) for job, (_, low, _) in ends.items()), default=Value(0))
    width = Case(
        *(When(attempt__job=job, then=Value(-(-(high - low + 1) // VALUES))) for job, (_, low, high) in ends.items()),
        default=Value(1),
    )
    groups = (
        points.filter(main)
        .annotate(place=(F("step") - first) / width)
        .values("attempt__job", "attempt__number", "place")
    )
    found: dict[int, Sparkline] = {job: [None] * VALUES for job in ends}
    for row in groups.annotate(mean=Avg("value")).order_by("attempt__number"):
        if 0 <= row["place"] < VALUES:  # others belong to steps that came after the ends were read
            found[row["attempt__job"]][row["place"]] = row["mean"]
    return {job: [value for value in values if value is not None] for job, values in found.items()}


def _ends(points: QuerySet[MetricPoint]) -> dict[int, tuple[str, int, int]]:
    """Return the first metric by name of each job, with its first and last step."""
    found: dict[int, tuple[str, int, int]] = {}
    rows = points.values("attempt__job", "name").annotate(low=Min("step"), high=Max("step"))
    for row in rows.order_by("-name"):
        found[row["attempt__job"]] = (row["name"], row["low"], row["high"])
    return found
