"""Ranges in words: what the card, the list and the API say of a forecast."""

import math
from datetime import datetime, timedelta

from django.utils import timezone

MINUTES_UP_TO = 120
"""Two hours and more are told in hours."""


def span(low: float, high: float) -> str:
    """Seconds from now, rounded outwards: ``in 20 to 100 minutes``, ``within 5 minutes``, ``in 3 to 7 hours``."""
    least, most = max(0, math.floor(low / 60)), max(1, math.ceil(high / 60))
    if most <= MINUTES_UP_TO:
        return f"within {_count(most, 'minute')}" if not least else f"in {_between(least, most, 'minute')}"
    hours = math.ceil(most / 60)
    if not least:
        return f"within {_count(hours, 'hour')}"
    if least < MINUTES_UP_TO:
        return f"in {_count(least, 'minute')} to {_count(hours, 'hour')}"
    return f"in {_between(least // 60, hours, 'hour')}"


def short(text: str) -> str:
    """For a row of a list."""
    return text.replace("minutes", "min").replace("minute", "min").replace("hours", "h").replace("hour", "h")


def _between(least: int, most: int, unit: str) -> str:
    return _count(most, unit) if least == most else f"{least} to {_count(most, unit)}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"


def length(seconds: float) -> str:
    """How far was looked: ``24 hours``, ``50 minutes``."""
    minutes = max(1, round(seconds / 60))
    return _count(minutes, "minute") if minutes < MINUTES_UP_TO else _count(minutes // 60, "hour")


def clock(moment: datetime, now: datetime, *, zone: bool = False) -> str:
    """``14:10``, with its day when that is not today's, and on demand with its time zone."""
    here, today = timezone.localtime(moment), timezone.localtime(now).date()
    text = here.strftime("%H:%M %Z" if zone else "%H:%M")
    if here.date() == today:
        return text
    tomorrow = here.date() == today + timedelta(days=1)
    return f"{text} tomorrow" if tomorrow else f"{text} on {here.strftime('%d %b')}"


def outwards(low: datetime, high: datetime | None) -> tuple[datetime, datetime | None]:
    """To whole minutes, so that what is shown is what is scored."""
    floor = low.replace(second=0, microsecond=0)
    if high is None:
        return floor, None
    ceiling = high.replace(second=0, microsecond=0)
    return floor, ceiling if ceiling == high else ceiling + timedelta(minutes=1)
