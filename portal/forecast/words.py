"""Forecast ranges in words, for the card, the list and the API."""

import math
from datetime import datetime, timedelta

from django.utils import timezone

MINUTES_UP_TO = 120
"""Above this, spans are given in hours."""


def span(low: float, high: float) -> str:
    """Describe seconds from now, rounded outwards: ``in 20 to 100 minutes``, ``within 5 minutes``, ``in 3 to 7 hours``."""
    first, last = max(0, math.floor(low / 60)), max(1, math.ceil(high / 60))
    if last <= MINUTES_UP_TO:
        return f"within {_count(last, 'minute')}" if not first else f"in {_between(first, last, 'minute')}"
    hours = math.ceil(last / 60)
    if not first:
        return f"within {_count(hours, 'hour')}"
    if first < MINUTES_UP_TO:
        return f"in {_count(first, 'minute')} to {_count(hours, 'hour')}"
    return f"in {_between(first // 60, hours, 'hour')}"


def short(text: str) -> str:
    """Abbreviate the units, for a list."""
    return text.replace("minutes", "min").replace("minute", "min").replace("hours", "h").replace("hour", "h")


def _between(first: int, last: int, unit: str) -> str:
    return _count(last, unit) if first == last else f"{first} to {_count(last, unit)}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"


def length(seconds: float) -> str:
    """Describe a length of time: ``24 hours``, ``50 minutes``."""
    minutes = max(1, round(seconds / 60))
    return _count(minutes, "minute") if minutes < MINUTES_UP_TO else _count(minutes // 60, "hour")


def clock(moment: datetime, now: datetime, *, zone: bool = False) -> str:
    """Return a time of day such as ``14:10``, with the day if it is not today, and on request with the time zone."""
    here, today = timezone.localtime(moment), timezone.localtime(now).date()
    text = here.strftime("%H:%M %Z" if zone else "%H:%M")
    if here.date() == today:
        return text
    tomorrow = here.date() == today + timedelta(days=1)
    return f"{text} tomorrow" if tomorrow else f"{text} on {here.strftime('%d %b')}"


def outwards(low: datetime, high: datetime | None) -> tuple[datetime, datetime | None]:
    """Round a range outwards to whole minutes, so that the range that is shown is the one that is scored."""
    floor = low.replace(second=0, microsecond=0)
    if high is None:
        return floor, None
    ceiling = high.replace(second=0, microsecond=0)
    return floor, ceiling if ceiling == high else ceiling + timedelta(minutes=1)
