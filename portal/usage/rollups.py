"""Daily sums: made when a day is over, and again when something about it becomes known later, always from facts.

``daily_sums`` takes whole past days from the sums and computes the rest, at least today, from the facts. So a page is
right with or without the sums, and needs the same number of queries for a week and for a year.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from time import perf_counter

from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from portal.jobs.models import Attempt, Job
from portal.usage import facts
from portal.usage.ledger import Day, LedgerLine, Spent, sums_by_span
from portal.usage.models import CapacitySpell, LabDay, LedgerDay, UsageDay

MAX_DAYS_AT_ONCE = 14
"""The number of days that are read from the facts together."""
COMPLETE_AFTER = timedelta(hours=1)
"""A day's facts are complete this long after midnight: nodes count as lost only after a while."""
OVERLAP = timedelta(minutes=10)
"""No transaction takes longer, so none that ended an attempt can be missed."""

CACHE_TIME = timedelta(minutes=1)
SLOW_SECONDS = 0.5


def midnight(day: date) -> datetime:
    """Return when a day of the lab begins. The reader's zone does not count: the sums of days are stored."""
    return timezone.make_aware(datetime.combine(day, time()), timezone.get_default_timezone())


def today(now: datetime) -> date:
    """Return the day of the lab."""
    return timezone.localdate(now, timezone.get_default_timezone())


def roll_up(now: datetime | None = None, *, rebuild: bool = False) -> int:
    """Bring the sums up to yesterday; return how many days were made. Each day is made whole or not at all.

    May be repeated and may run twice at once. With ``rebuild`` all days are made again.
    """
    now = now or timezone.now()
    first = first_day(now)
    mark_stale(now)
    done = set() if rebuild else set(LabDay.objects.filter(stale=False).values_list("day", flat=True))
    missing = [day for day in days_between(first, today(now) - timedelta(days=1)) if day not in done]
    for chunk in _consecutive_days(missing):
        for day, sums in zip(chunk, compute_days(chunk, now), strict=True):
            _store(day, sums, now)
    return len(missing)


def first_day(now: datetime) -> date:
    """Return the first day with any facts."""
    spell, job = CapacitySpell.objects.order_by("since").first(), Job.objects.order_by("submitted_at").first()
    return today(min(spell.since if spell else now, job.submitted_at if job else now))


def mark_stale(now: datetime) -> int:
    """Mark days that must be made again; return how many.

    These are the days of attempts that have ended since (only now it is known whether they were useful), and the last
    day, if it was made soon after midnight.
    """
    newest = LabDay.objects.order_by("-rolled_at").values_list("rolled_at", flat=True).first()
    if newest is None:
        return 0
    ended = Attempt.objects.filter(ended_at__gte=newest - OVERLAP, created_at__lt=midnight(today(now)))
    stale: set[date] = set()
    for since, until in ended.values_list("created_at", "ended_at"):
        stale.update(days_between(today(since), today(until or now)))
    last = LabDay.objects.order_by("-day").first()
    if last is not None and last.rolled_at < midnight(last.day + timedelta(days=1)) + COMPLETE_AFTER <= now:
        stale.add(last.day)
    return LabDay.objects.filter(day__in=stale, stale=False).update(stale=True)


def days_between(first: date, last: date) -> list[date]:
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def compute_days(days: Sequence[date], now: datetime) -> list[Day]:
    """Return the sums of consecutive days up to ``now``, computed from the facts."""
    bounds = [midnight(day) for day in (*days, days[-1] + timedelta(days=1))]
    ends = [min(moment, now) for moment in bounds]
    return sums_by_span(facts.read(ends[0], ends[-1], now), [facts.to_microseconds(moment) for moment in ends])


def _consecutive_days(days: Iterable[date]) -> Iterator[list[date]]:
    """Yield runs of consecutive days, at most ``MAX_DAYS_AT_ONCE`` each."""
    run: list[date] = []
    for day in days:
        if run and (day != run[-1] + timedelta(days=1) or len(run) == MAX_DAYS_AT_ONCE):
            yield run
            run = []
        run.append(day)
    if run:
        yield run


@transaction.atomic
def _store(day: date, sums: Day, now: datetime) -> None:
    LabDay.objects.get_or_create(day=day, defaults={"rolled_at": now, "stale": True})
    LabDay.objects.select_for_update().get(day=day)
    LedgerDay.objects.filter(day=day).delete()
    UsageDay.objects.filter(day=day).delete()
    LedgerDay.objects.bulk_create(
        LedgerDay(
            day=day,
            group_id=group,
            user_id=user,
            **{name: getattr(line, name) for name in ("entitled", "used", "lent", "borrowed", "spare")},
        )
        for (group, user), line in sums.lines.items()
    )
    UsageDay.objects.bulk_create(
        UsageDay(day=day, group_id=group, user_id=user, project_id=project, **_amounts(spent))
        for ((group, user), project), spent in sums.spent.items()
    )
    LabDay.objects.filter(day=day).update(capacity=sums.capacity, unclaimed=sums.unclaimed, rolled_at=now, stale=False)


SPENT_FIELDS = ("allocated", "starting", "failed", "interrupted", "submitted", "waits")


def _amounts(spent: Spent) -> dict[str, object]:
    return {name: getattr(spent, name) for name in SPENT_FIELDS}


def daily_sums(first: date, last: date, now: datetime) -> dict[date, Day]:
    """Return each day of a window up to now. From the first day that is not summed up yet, all are computed."""
    first, last = max(first, first_day(now)), min(last, today(now))
    if last < first:
        return {}
    rows = {row.day: row for row in LabDay.objects.filter(day__range=(first, last))}
    tomorrow = last + timedelta(days=1)
    open_since = next((day for day in days_between(first, last) if day not in rows), tomorrow)
    days = {day: Day(rows[day].capacity, rows[day].unclaimed) for day in sorted(rows) if day < open_since}
    if days:
        span = (first, open_since - timedelta(days=1))
        for row in LedgerDay.objects.filter(day__range=span).values_list(
            "day", "group", "user", "entitled", "used", "lent", "borrowed", "spare"
        ):
            days[row[0]].lines.setdefault((row[1], row[2]), LedgerLine()).add(LedgerLine(*row[3:]))
        for row in UsageDay.objects.filter(day__range=span).values_list(
            "day", "group", "user", "project", *SPENT_FIELDS
        ):
            days[row[0]].spent.setdefault(((row[1], row[2]), row[3]), Spent()).add(Spent(*row[4:]))
    if open_since < tomorrow:
        open_days = days_between(open_since, last)
        days.update(zip(open_days, _recent_days(open_days, now), strict=True))
    return days


def _recent_days(days: Sequence[date], now: datetime) -> list[Day]:
    """Compute days, cached for a minute if it is slow: in a lab of hundreds of people, or while sums are missing."""
    key = f"usage-days:{days[0]}:{days[-1]}"
    kept: tuple[datetime, list[Day]] | None = cache.get(key)
    if kept is not None and timedelta() <= now - kept[0] < CACHE_TIME:
        return kept[1]
    began = perf_counter()
    sums = compute_days(days, now)
    if perf_counter() - began > SLOW_SECONDS:
        cache.set(key, (now, sums), CACHE_TIME.total_seconds())
    return sums
