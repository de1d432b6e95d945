"""Charts as SVG text made on the server: pure functions from values to a ``Chart``, without script or inline style.

In a view::

    from portal import charts

    chart = charts.bars(
        "GPU-hours by day",
        [date(2026, 11, 1), date(2026, 11, 2)],               # labels: dates, or any words
        [charts.Series("used", [12.5, 30]), charts.Series("idle", [3, 0], "idle")],
        "GPU-hours",                                           # unit: on the axis, in the table, in tooltips
        stacked=True,
        desc="Most was used on 2 November.",                   # one sentence with the main point
    )
    return render(request, "usage/page.html", {"chart": chart})

In the template ``{% chart chart %}`` (no ``{% load %}``), and in ``{% block head %}``
``<link rel="stylesheet" href="{% static "css/charts.css" %}">``. The tag draws a figure with title, legend, picture
and the same numbers as a table that unfolds, for screen readers and everyone else.

* ``lines(title, xs, series, unit)``: ``xs`` are datetimes, dates or numbers, ascending; ``step=True`` holds a value
  until the next; ``marks=[(x, "switch")]`` draws dashed vertical lines; a value of None leaves a gap, which
  ``bridge_gaps=True`` draws over; ``axis_range=(0, 100)`` fixes the axis, whatever the values are.
* ``bars(title, labels, series, unit)``: side by side, or ``stacked=True``; ``horizontal=True`` draws horizontal bars with
  their labels above them, as do words that are too long to fit below a narrow chart; on horizontal bars
  ``mark=Series("predicted", [...])`` draws a short line for each label, where the bar was expected to end.
* ``sparkline(values, text)``: a small picture for a table cell or a sentence; screen readers read ``text`` instead. It is
  marked safe: ``{{ row.spark }}``.

The unit "seconds" is shown as durations ("2 h 5 min"). The tone of a series follows from its position in ``TONES``
unless it is given; ``idle`` is grey, ``good`` green, ``bad`` red. A chart is drawn in three widths, and a container
query shows the one that fits, so that text stays legible at 400 px. Colour is never the only distinction: lines have
different dashes, bars a gap, and every chart a table. Draw at most a few hundred points; more take longer to load than
to read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.ui import duration

X = datetime | date | float | int
Value = float | int | None

TONES = ("teal", "amber", "violet", "blue", "red", "green")
NAMED_TONES = {"idle": "grey", "good": "green", "bad": "red"}
SECONDS = "seconds"
DAY = 86_400.0
TIME_STEPS = tuple(
    60.0 * minutes for minutes in (1, 5, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 7200, 10080, 20160)
)
DURATION_STEPS = (1, 5, 15, 30, *TIME_STEPS)


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or the bars of one colour."""

    name: str
    values: Sequence[Value]
    tone: str = ""
    """One of ``TONES`` or ``NAMED_TONES``; empty for the next one of ``TONES``."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What ``{% chart %}`` draws."""

    title: str
    desc: str
    legend: tuple[tuple[str, str], ...]
    """CSS classes and name; empty for a single series."""
    svg: SafeString
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The table: a label, then one cell per series."""
    is_lines: bool = False
    mark: str = ""
    """The name of the short lines over bars."""


class Size(NamedTuple):
    css: str
    width: int
    height: int
    ticks: int
    """About how many ticks fit on the x axis."""


SIZES = (Size("wide", 1000, 300, 12), Size("middle", 600, 270, 7), Size("narrow", 340, 240, 4))
TOP, BOTTOM, RIGHT, LETTER_WIDTH, LINE_HEIGHT = 24, 28, 12, 6.9, 16


def lines(
    title: str,
    xs: Sequence[X],
    series: Sequence[Series],
    unit: str = "",
    *,
    desc: str = "",
    step: bool = False,
    bridge_gaps: bool = False,
    marks: Sequence[tuple[X, str]] = (),
    x_name: str = "",
    axis_range: tuple[float, float] | None = None,
) -> Chart:
    """Draw values over time, or over any number."""
    _check_lengths(xs, series)
    where = [_x_number(x) for x in xs]
    at_marks = [(_x_number(x), text) for x, text in marks]
    ends = [*where, *(x for x, _ in at_marks)] or [0.0]
    first, last = min(ends), max(ends)
    texts = [_x_text(x) for x in xs]

    def draw(size: Size) -> Iterator[str]:
        frame = _Frame(size, axis_range or _value_range(value for one in series for value in one.values), unit)
        right = size.width - RIGHT

        def x_of(x: float) -> float:
            return frame.left + (right - frame.left) * ((x - first) / (last - first) if last > first else 0.5)

        yield from frame.grid()
        for x, text in _x_ticks(xs, first, last, size.ticks):
            yield _text(x_of(x), size.height - 8, text, "middle")
        for x, text in at_marks:
            yield f'<path class="mark" d="M{x_of(x):.1f} {TOP}V{frame.bottom}"/>'
            end = "end" if x_of(x) > size.width / 2 else "start"
            yield _text(x_of(x) + (-4 if end == "end" else 4), TOP + 10, text, end)
        for index, one in enumerate(series):
            css = _series_css(index, one)
            path, dots, pen, end_point = [], [], False, None
            for x, value in zip(where, one.values, strict=True):
                if value is None:
                    pen = pen and bridge_gaps
                    continue
                px, py = x_of(x), frame.y_of(value)
                if not pen:
                    path.append(f"M{px:.1f} {py:.1f}")
                elif step:
                    path.append(f"H{px:.1f}V{py:.1f}")
                else:
                    path.append(f"L{px:.1f} {py:.1f}")
                pen, end_point = True, (px, py)
            yield f'<path class="line {css}" d="{"".join(path)}"/>'
            if len(where) <= 45:
                for x, value, text in zip(where, one.values, texts, strict=True):
                    if value is not None:
                        tooltip = f"{text}: {one.name} {format_value(value, unit)}"
                        dots.append(_dot(x_of(x), frame.y_of(value), css, tooltip))
            elif end_point:
                dots.append(_dot(*end_point, css, one.name))
            yield from dots

    return _chart(title, desc, draw, x_name or _x_name(xs), texts, series, unit, is_lines=True)


def bars(
    title: str,
    labels: Sequence[date | str],
    series: Sequence[Series],
    unit: str = "",
    *,
    stacked: bool = False,
    horizontal: bool = False,
    mark: Series | None = None,
    desc: str = "",
    x_name: str = "",
) -> Chart:
    """Draw amounts of some things, or by day. Bars with a ``mark`` are horizontal."""
    marks = [mark] if mark else []
    _check_lengths(labels, [*series, *marks])
    texts = [_x_text(label) if isinstance(label, date) else label for label in labels]
    sums = [sum(one.values[i] or 0 for one in series) for i in range(len(labels))]
    columns = [sums] if stacked else [one.values for one in series]
    value_range = _value_range(value for column in [*columns, *(one.values for one in marks)] for value in column)
    longest = max((len(text) for text in texts), default=1) * LETTER_WIDTH + 10
    days = bool(labels) and isinstance(labels[0], date)
    horizontal = horizontal or bool(marks) or (not days and longest * len(labels) > SIZES[-1].width - 70)

    def bar_parts(place: int) -> Iterator[tuple[int, Series, float, float]]:
        """Yield number, series, start and end of each bar of a label."""
        reached = 0.0
        for index, one in enumerate(series):
            value = one.values[place]
            if value is not None:
                yield index, one, reached, reached + value
            if stacked:
                reached += value or 0.0

    def draw_vertical(size: Size) -> Iterator[str]:
        frame = _Frame(size, value_range, unit)
        yield from frame.grid()
        room = (size.width - RIGHT - frame.left) / max(1, len(labels))
        each = ceil(longest / room)
        wide = min(56.0, room * (0.78 if room > 8 else 1.0)) / (1 if stacked else max(1, len(series)))
        for place, text in enumerate(texts):
            middle = frame.left + room * (place + 0.5)
            if place % each == 0:
                yield _text(middle, size.height - 8, text, "middle")
            for index, one, low, high in bar_parts(place):
                left = middle - wide * (0.5 if stacked else len(series) / 2 - index)
                top, height = frame.y_of(max(low, high)), abs(frame.y_of(low) - frame.y_of(high))
                tooltip = f"{text}: {one.name} {format_value(high - low, unit)}"
                yield _rect(left, top, wide, height, _series_css(index, one), tooltip)

    def draw_horizontal(size: Size) -> Iterator[str]:
        scale = _Scale(*value_range, unit, size.ticks - 1)
        thick = 14 if stacked or len(series) == 1 else 9
        block = LINE_HEIGHT + 4 + thick * (1 if stacked else len(series)) + 8
        left, width, bottom = 4.0, size.width - 4 - 40, TOP + block * len(labels)

        def x_of(value: float) -> float:
            return left + width * scale.fraction(value)

        for tick, text in scale.ticks:
            yield f'<path class="grid" d="M{x_of(tick):.1f} {TOP - 6}V{bottom:.0f}"/>'
            yield _text(x_of(tick), bottom + LINE_HEIGHT, text, "start" if x_of(tick) < 30 else "middle")
        yield _text(size.width - 4, 12, _unit_word(unit), "end")
        for place, text in enumerate(texts):
            top = TOP + block * place
            yield _text(left, top + 11, text, "start", "name")
            for index, one, low, high in bar_parts(place):
                y = top + LINE_HEIGHT + (0 if stacked else thick * index)
                tooltip = f"{text}: {one.name} {format_value(high - low, unit)}"
                from_x, to_x = sorted((x_of(low), x_of(high)))
                yield _rect(from_x, y, to_x - from_x, thick - 1, _series_css(index, one), tooltip)
            for one in marks:
                if (value := one.values[place]) is not None:
                    tooltip = f"{text}: {one.name} {format_value(value, unit)}"
                    yield f'<path class="should" d="M{x_of(value):.1f} {top + LINE_HEIGHT - 3}v{block - LINE_HEIGHT - 7}">'
                    yield f"<title>{escape(tooltip)}</title></path>"

    height = None
    if horizontal:
        per = 14 if stacked or len(series) == 1 else 9 * len(series)
        height = TOP + (LINE_HEIGHT + 12 + per) * len(labels) + LINE_HEIGHT + 10
    draw = draw_horizontal if horizontal else draw_vertical
    return _chart(title, desc, draw, x_name or ("Day" if days else ""), texts, series, unit, height, marks=marks)


def sparkline(values: Sequence[Value], text: str) -> SafeString:
    """Draw a line as high as a letter. ``text`` describes it for screen readers."""
    known = [value for value in values if value is not None]
    low, high = min([*known, 0.0]), max([*known, 0.0])
    path, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = 2 + 96 * (place / (len(values) - 1) if len(values) > 1 else 0.5)
        y = 22 - 20 * ((value - low) / (high - low) if high > low else 0.5)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    inner = f'<path class="line tone-teal" d="{"".join(path)}"/>'
    return _inline_svg("sparkline", inner, text)


def format_value(value: Value, unit: str = "") -> str:
    """Return a value with its unit, for tooltips and sentences."""
    if value is None:
        return "nothing"
    if unit == SECONDS:
        return _duration(value)
    return f"{format_number(value)} {unit}".rstrip()


def format_number(value: float) -> str:
    """Return about three significant digits, with thousands separators."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    digits = max(0, min(6, 2 - floor(log10(abs(value)))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# --- the drawing -------------------------------------------------------------------------------------------------


class _Scale:
    """Maps values to 0..1, with ticks at round numbers."""

    def __init__(self, minimum: float, maximum: float, unit: str, ticks: int) -> None:
        step = _round_step(max(maximum - minimum, 1e-9), ticks, DURATION_STEPS if unit == SECONDS else ())
        first = floor(minimum / step)
        self.low, self.high = first * step, max(ceil(maximum / step), first + 1) * step
        values = [self.low + step * number for number in range(round((self.high - self.low) / step) + 1)]
        self.ticks = [
            (value, _duration(value) if unit == SECONDS else format_number(round(value, 9))) for value in values
        ]

    def fraction(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


class _Frame:
    """The y axis with its grid lines, and the area for the rest of the chart."""

    def __init__(self, size: Size, value_range: tuple[float, float], unit: str) -> None:
        self.size, self.unit = size, unit
        self.scale = _Scale(*value_range, unit, 5)
        self.bottom = size.height - BOTTOM
        self.left = 10 + LETTER_WIDTH * max(len(text) for _, text in self.scale.ticks)

    def y_of(self, value: float) -> float:
        return self.bottom - (self.bottom - TOP) * self.scale.fraction(value)

    def grid(self) -> Iterator[str]:
        for value, text in self.scale.ticks:
            css = "axis" if value == 0 else "grid"
            yield f'<path class="{css}" d="M{self.left:.1f} {self.y_of(value):.1f}H{self.size.width - RIGHT}"/>'
            yield _text(self.left - 6, self.y_of(value) + 4, text, "end")
        yield _text(2, 12, _unit_word(self.unit), "start")


def _chart(
    title: str,
    desc: str,
    draw: Callable[[Size], Iterator[str]],
    x_name: str,
    texts: Sequence[str],
    series: Sequence[Series],
    unit: str,
    height: int | None = None,
    is_lines: bool = False,
    marks: Sequence[Series] = (),
) -> Chart:
    word = "" if unit == SECONDS else unit
    listed = [*series, *marks]
    columns = [f"{one.name} ({word})" if word else one.name for one in listed]
    rows = tuple(
        (text, *(_cell_text(one.values[place], unit) for one in listed)) for place, text in enumerate(texts)
    )  # fmt: skip
    pictures = []
    for size in SIZES:
        size = size._replace(height=height or size.height)
        body = "".join(draw(size))
        key = sha256(f"{title}{size.css}{body}".encode()).hexdigest()[:10]
        pictures.append(
            f'<svg class="chart-picture {size.css}" viewBox="0 0 {size.width} {size.height}" role="img"'
            f' aria-labelledby="t{key} d{key}"><title id="t{key}">{escape(title)}</title>'
            f'<desc id="d{key}">{escape(desc or "The table below has the numbers.")}</desc>{body}</svg>'
        )
    legend = tuple((_series_css(index, one), one.name) for index, one in enumerate(series)) if len(series) > 1 else ()
    svg = mark_safe("".join(pictures))  # noqa: S308  # every text in it went through escape()
    return Chart(title, desc, legend, svg, (x_name, *columns), rows, is_lines, marks[0].name if marks else "")


def _check_lengths(labels: Sequence[object], series: Sequence[Series]) -> None:
    for one in series:
        if len(one.values) != len(labels):
            raise ValueError(f"{one.name} has {len(one.values)} values for {len(labels)} labels.")


def _inline_svg(css: str, inner: str, text: str) -> SafeString:
    return mark_safe(  # noqa: S308  # the text is escaped, the rest are numbers
        f'<svg class="chart-small {css}" viewBox="0 0 100 24" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(text)}"><title>{escape(text)}</title>{inner}</svg>'
    )


def _series_css(index: int, one: Series) -> str:
    tone = NAMED_TONES.get(one.tone, one.tone) or TONES[index % len(TONES)]
    return f"tone-{tone} dash-{index % 4}"


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, css: str, tooltip: str) -> str:
    return (
        f'<rect class="bar {css}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}">'
        f"<title>{escape(tooltip)}</title></rect>"
    )


def _dot(x: float, y: float, css: str, tooltip: str) -> str:
    return f'<circle class="dot {css}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(tooltip)}</title></circle>'


# --- numbers, times and words --------------------------------------------------------------------------------------


def _value_range(values: "Iterator[Value] | Sequence[Value]") -> tuple[float, float]:
    known = [float(value) for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    return low, high if high > low else 1.0


def _round_step(span: float, ticks: int, steps: Sequence[float] = ()) -> float:
    """Return the smallest round step that divides ``span`` into at most ``ticks`` parts."""
    rough = span / ticks
    for step in steps:
        if step >= rough:
            return float(step)
    if steps:
        return ceil(rough / DAY) * DAY
    power = 10.0 ** floor(log10(rough))
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))


def _x_number(x: X) -> float:
    if isinstance(x, datetime):
        return x.timestamp()
    if isinstance(x, date):
        return float(x.toordinal())
    return float(x)


def _x_text(x: X) -> str:
    if isinstance(x, datetime):
        return _local(x).strftime("%d %b %Y, %H:%M")
    if isinstance(x, date):
        return x.strftime("%d %b")
    return format_number(x)


def _x_name(xs: Sequence[X]) -> str:
    if xs and isinstance(xs[0], datetime):
        return f"Time ({_local(xs[0]).tzname()})"
    return "Day" if xs and isinstance(xs[0], date) else ""


def _x_ticks(xs: Sequence[X], first: float, last: float, ticks: int) -> Iterator[tuple[float, str]]:
    if not xs:
        return
    if isinstance(xs[0], datetime):
        yield from time_ticks(xs[0], first, last, ticks)
        return
    days = isinstance(xs[0], date)
    step = max(_round_step(max(last - first, 1e-9), ticks), 1.0 if days else 0.0)
    step = ceil(step) if days else step
    for number in range(ceil(first / step), floor(last / step + 1e-9) + 1):
        value = number * step
        yield value, _x_text(date.fromordinal(round(value))) if days else format_number(round(value, 9))


def time_ticks(start: datetime, first: float, last: float, ticks: int) -> Iterator[tuple[float, str]]:
    """Yield ticks at round local times (minutes, hours, midnights) between two timestamps in seconds."""
    step = _round_step(max(last - first, 60.0), ticks, TIME_STEPS)
    midnight = _local(start).replace(hour=0, minute=0, second=0, microsecond=0)
    number = 0
    while (moment := midnight + timedelta(seconds=step * number)).timestamp() <= last:
        if moment.timestamp() >= first:
            at_midnight = moment.hour == moment.minute == 0
            yield moment.timestamp(), moment.strftime("%d %b" if step >= DAY or at_midnight else "%H:%M")
        number += 1


def _local(moment: datetime) -> datetime:
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def _cell_text(value: Value, unit: str) -> str:
    if value is None:
        return "–"
    return _duration(value) if unit == SECONDS else format_number(value)


def _duration(seconds: float) -> str:
    return ("−" if seconds < 0 else "") + duration(abs(seconds))


def _unit_word(unit: str) -> str:
    return "" if unit == SECONDS else unit
