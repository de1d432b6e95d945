"""What the axes of charts say: round numbers and times, values with their units, and labels that fit. Pure functions."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from math import ceil, floor, isfinite, log10

from django.utils import timezone

from portal.ui import duration

X = datetime | date | float | int
Value = float | int | None

SECONDS = "seconds"
DAY = 86_400.0
TIME_STEPS = tuple(
    60.0 * minutes for minutes in (1, 5, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 7200, 10080, 20160)
)
DURATION_STEPS = (1, 5, 15, 30, *TIME_STEPS)
LETTER_WIDTH = 6.9
"""Pixels, about, of a letter of an axis."""


def format_value(value: Value, unit: str = "") -> str:
    """Return a value with its unit, for tooltips and sentences."""
    if value is None:
        return "nothing"
    if unit == SECONDS:
        return duration_text(value)
    return f"{format_number(value)} {unit}".rstrip()


def format_number(value: float) -> str:
    """Return about three significant digits, with thousands separators; powers of ten for what is very small or large."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    if not 1e-5 <= abs(value) < 1e15:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    digits = max(0, min(6, 2 - floor(log10(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class Scale:
    """Maps values to 0..1, with ticks at round numbers."""

    def __init__(self, minimum: float, maximum: float, unit: str, ticks: int) -> None:
        step = round_step(max(maximum - minimum, 1e-9), ticks, DURATION_STEPS if unit == SECONDS else ())
        first = floor(minimum / step)
        self.low, self.high = first * step, max(ceil(maximum / step), first + 1) * step
        values = [self.low + step * number for number in range(round((self.high - self.low) / step) + 1)]
        self.ticks = [
            (value, duration_text(value) if unit == SECONDS else format_number(round(value, 9))) for value in values
        ]

    def fraction(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def value_range(values: "Iterator[Value] | Sequence[Value]") -> tuple[float, float]:
    known = [float(value) for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    return low, high if high > low else 1.0


def round_step(span: float, ticks: int, steps: Sequence[float] = ()) -> float:
    """Return the smallest round step that divides ``span`` into at most ``ticks`` parts."""
    rough = span / ticks
    for step in steps:
        if step >= rough:
            return float(step)
    if steps:
        return ceil(rough / DAY) * DAY
    power = 10.0 ** floor(log10(rough))
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))


def x_number(x: X) -> float:
    if isinstance(x, datetime):
        return x.timestamp()
    if isinstance(x, date):
        return float(x.toordinal())
    return float(x)


def x_kind(xs: Sequence[X]) -> str:
    """Return what an x axis counts: "time" (seconds since 1970), "day" (ordinals) or "number"."""
    if not xs or not isinstance(xs[0], date):
        return "number"
    return "time" if isinstance(xs[0], datetime) else "day"


def x_text(x: X) -> str:
    if isinstance(x, datetime):
        return _local(x).strftime("%d %b %Y, %H:%M")
    if isinstance(x, date):
        return x.strftime("%d %b")
    return format_number(x)


def x_name_of(xs: Sequence[X]) -> str:
    if xs and isinstance(xs[0], datetime):
        return f"Time ({_local(xs[0]).tzname()})"
    return "Day" if xs and isinstance(xs[0], date) else ""


def x_ticks(xs: Sequence[X], first: float, last: float, ticks: int) -> Iterator[tuple[float, str]]:
    if not xs:
        return
    if isinstance(xs[0], datetime):
        yield from time_ticks(xs[0], first, last, ticks)
        return
    days = isinstance(xs[0], date)
    step = max(round_step(max(last - first, 1e-9), ticks), 1.0 if days else 0.0)
    step = ceil(step) if days else step
    for number in range(ceil(first / step), floor(last / step + 1e-9) + 1):
        value = number * step
        yield value, x_text(date.fromordinal(round(value))) if days else format_number(round(value, 9))


def time_ticks(start: datetime, first: float, last: float, ticks: int) -> Iterator[tuple[float, str]]:
    """Yield ticks at round local times (minutes, hours, midnights) between two timestamps in seconds."""
    step = round_step(max(last - first, 60.0), ticks, TIME_STEPS)
    midnight = _local(start).replace(hour=0, minute=0, second=0, microsecond=0)
    number = 0
    while (moment := midnight + timedelta(seconds=step * number)).timestamp() <= last:
        if moment.timestamp() >= first:
            at_midnight = moment.hour == moment.minute == 0
            yield moment.timestamp(), moment.strftime("%d %b" if step >= DAY or at_midnight else "%H:%M")
        number += 1


def _local(moment: datetime) -> datetime:
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def text_width(text: str) -> float:
    return len(text) * LETTER_WIDTH


def label_middle(x: float, text: str, width: float) -> float:
    """Return where to centre the label of ``x``: there, or as near as it is whole within the picture."""
    half = text_width(text) / 2
    return max(half + 1, min(x, width - half - 1))


def cell_text(value: Value, unit: str) -> str:
    if value is None:
        return "–"
    return duration_text(value) if unit == SECONDS else format_number(value)


def duration_text(seconds: float) -> str:
    return ("−" if seconds < 0 else "") + duration(abs(seconds))


def unit_word(unit: str) -> str:
    return "" if unit == SECONDS else unit
