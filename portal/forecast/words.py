"""Forecast ranges in words, for the card, the list and the API."""

from datetime import datetime, timedelta

from django.utils import timezone


def abbreviate_units(text: str) -> str:
    """Abbreviate the units, for a list."""
    return text.replace("minutes", "min").replace("minute", "min").replace("hours", "h").replace("hour", "h")


def clock(moment: datetime, now: datetime, *, zone: bool = False) -> str:
    """Return a time of day such as ``14:10``, with the day if it is not today, and on request with the time zone."""
    here, today = timezone.localtime(moment), timezone.localtime(now).date()
    text = here.strftime("%H:%M %Z" if zone else "%H:%M")
    if here.date() == today:
        return text
    tomorrow = here.date() == today + timedelta(days=1)
    return f"{text} tomorrow" if tomorrow else f"{text} on {here.strftime('%d %b')}"


def round_outwards(low: datetime, high: datetime | None) -> tuple[datetime, datetime | None]:
    """Round a range outwards to whole minutes, so that the range that is shown is the one that is scored."""
    floor = low.replace(second=0, microsecond=0)
    if high is None:
        return floor, None
    ceiling = high.replace(second=0, microsecond=0)
    return floor, ceiling if ceiling == high else ceiling + timedelta(minutes=1)
