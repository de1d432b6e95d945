"""Lengths of time in words, for forecasts and advice."""

import math

MAX_MINUTES = 120
"""Above this, spans are given in hours."""


def wait_range(low: float, high: float) -> str:
    """Describe seconds from now, rounded outwards: ``in 20 to 100 minutes``, ``within 5 minutes``, ``in 3 to 7 hours``."""
    first, last = max(0, math.floor(low / 60)), max(1, math.ceil(high / 60))
    if last <= MAX_MINUTES:
        return f"within {_count(last, 'minute')}" if not first else f"in {_between(first, last, 'minute')}"
    hours = math.ceil(last / 60)
    if not first:
        return f"within {_count(hours, 'hour')}"
    if first < MAX_MINUTES:
        return f"in {_count(first, 'minute')} to {_count(hours, 'hour')}"
    return f"in {_between(first // 60, hours, 'hour')}"


def rough_duration(seconds: float) -> str:
    """Describe a length of time: ``24 hours``, ``50 minutes``."""
    minutes = max(1, round(seconds / 60))
    return _count(minutes, "minute") if minutes < MAX_MINUTES else _count(minutes // 60, "hour")


def nearest_duration(seconds: float) -> str:
    """Describe a length of time to the nearest minute or hour, where a time of day stands beside it."""
    return rough_range(seconds, seconds)


def rough_range(low: float, high: float) -> str:
    """Describe a length of time that lies between two, in seconds: ``20 to 100 minutes``, ``3 hours``."""
    first, last = max(1, round(low / 60)), max(1, round(high / 60))
    if last <= MAX_MINUTES:
        return _between(first, last, "minute")
    if first < MAX_MINUTES:
        return f"{_count(first, 'minute')} to {_count(round(last / 60), 'hour')}"
    return _between(round(first / 60), round(last / 60), "hour")


def _between(first: int, last: int, unit: str) -> str:
    return _count(last, unit) if first == last else f"{first} to {_count(last, unit)}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"
