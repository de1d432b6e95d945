"""Days that a reader types into the filters of a list: whole days where the reader is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_date

from portal.lists import quote
from portal.zones import FIRST_YEAR, LAST_YEAR


@dataclass(frozen=True, slots=True)
class DayRange:
    """The days ``from`` and ``to`` of a query string; ``problems`` has a sentence for each that cannot be followed."""

    first: date | None
    last: date | None
    problems: tuple[str, ...] = ()

    def condition(self, field: str) -> Q:
        """Return the condition that a moment is within these days."""
        found = Q()
        if self.first:
            found &= Q(**{f"{field}__gte": midnight(self.first)})
        if self.last:
            found &= Q(**{f"{field}__lt": midnight(self.last + timedelta(days=1))})
        return found


def read_days(query: Mapping[str, str], rows: str) -> DayRange:
    """Read the days; ``rows`` is the word for one row of the list."""
    problems: list[str] = []
    first, last = (_day(query.get(name, "").strip(), problems) for name in ("from", "to"))
    if first and last and first > last:
        problems.append(f"The first day is after the last one, so no {rows} can match.")
    return DayRange(first, last, tuple(problems))


def _day(text: str, problems: list[str]) -> date | None:
    if not text:
        return None
    try:
        day = parse_date(text)
    except ValueError:
        day = None
    if day is None or not FIRST_YEAR <= day.year < LAST_YEAR:
        problems.append(f"“{quote(text)}” is not a day: write it as 2026-11-30. That part of the filter is left out.")
        return None
    return day


def midnight(day: date) -> datetime:
    """Return the beginning of a day where the reader is."""
    return timezone.make_aware(datetime.combine(day, time.min))
