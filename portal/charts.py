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
to read. Where the page also loads ``js/curves.js`` and uPlot, charts of lines become interactive.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.chart_axes import (
    LETTER_WIDTH,
    SECONDS,
    Scale,
    Value,
    X,
    cell_text,
    format_number,
    format_value,
    label_middle,
    text_width,
    time_ticks,
    unit_word,
    value_range,
    x_kind,
    x_name_of,
    x_number,
    x_text,
    x_ticks,
)

__all__ = [
    "LETTER_WIDTH", "SECONDS", "SIZES", "TONES", "Chart", "Series", "Size", "bars", "format_number", "format_value", "lines",
    "sparkline", "time_ticks",
]  # fmt: skip

TONES = tuple(f"data-{number}" for number in range(1, 9))
"""Colours that stay apart for the colour-blind, in both themes (static/css/charts.css)."""
NAMED_TONES = {"idle": "grey", "good": "green", "bad": "red"}


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
    plot: Mapping[str, Any] | None = None
    """The same lines for static/js/curves.js; None for bars."""


class Size(NamedTuple):
    css: str
    width: int
    height: int
    ticks: int
    """About how many ticks fit on the x axis."""


SIZES = (Size("wide", 1000, 300, 12), Size("middle", 600, 270, 7), Size("narrow", 340, 240, 4))
TOP, BOTTOM, RIGHT, LINE_HEIGHT = 24, 28, 12, 16


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
    where = [x_number(x) for x in xs]
    at_marks = [(x_number(x), text) for x, text in marks]
    ends = [*where, *(x for x, _ in at_marks)] or [0.0]
    first, last = min(ends), max(ends)
    texts = [x_text(x) for x in xs]

    def draw(size: Size) -> Iterator[str]:
        frame = _Frame(size, axis_range or value_range(value for one in series for value in one.values), unit)
        right = size.width - RIGHT

        def x_of(x: float) -> float:
            return frame.left + (right - frame.left) * ((x - first) / (last - first) if last > first else 0.5)

        yield from frame.grid()
        yield from _labels(((x_of(x), text) for x, text in x_ticks(xs, first, last, size.ticks)), size)
        yield from _marks([(x_of(x), text) for x, text in at_marks], size, frame.bottom)
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

    plot = {
        "kind": x_kind(xs),
        "x": where,
        "unit": unit,
        "series": [
            {"name": one.name, "tone": _tone(index, one), "values": one.values} for index, one in enumerate(series)
        ],
        "marks": [{"x": x, "text": text} for x, text in at_marks],
        "range": axis_range,
        "step": step,
        "bridge": bridge_gaps,
    }
    drawn = _chart(title, desc, draw, x_name or x_name_of(xs), texts, series, unit, is_lines=True)
    return replace(drawn, plot=plot)


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
    texts = [x_text(label) if isinstance(label, date) else label for label in labels]
    sums = [sum(one.values[i] or 0 for one in series) for i in range(len(labels))]
    columns = [sums] if stacked else [one.values for one in series]
    ends = value_range(value for column in [*columns, *(one.values for one in marks)] for value in column)
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
        frame = _Frame(size, ends, unit)
        yield from frame.grid()
        room = (size.width - RIGHT - frame.left) / max(1, len(labels))
        each = ceil(longest / room)
        wide = min(56.0, room * (0.78 if room > 8 else 1.0)) / (1 if stacked else max(1, len(series)))
        middles = [frame.left + room * (place + 0.5) for place in range(len(texts))]
        yield from _labels(zip(middles[::each], texts[::each], strict=True), size)
        for place, (middle, text) in enumerate(zip(middles, texts, strict=True)):
            for index, one, low, high in bar_parts(place):
                left = middle - wide * (0.5 if stacked else len(series) / 2 - index)
                top, height = frame.y_of(max(low, high)), abs(frame.y_of(low) - frame.y_of(high))
                tooltip = f"{text}: {one.name} {format_value(high - low, unit)}"
                yield _rect(left, top, wide, height, _series_css(index, one), tooltip)

    def draw_horizontal(size: Size) -> Iterator[str]:
        scale = Scale(*ends, unit, size.ticks - 1)
        thick = 14 if stacked or len(series) == 1 else 9
        block = LINE_HEIGHT + 4 + thick * (1 if stacked else len(series)) + 8
        left, width, bottom = 4.0, size.width - 4 - 40, TOP + block * len(labels)

        def x_of(value: float) -> float:
            return left + width * scale.fraction(value)

        for tick, text in scale.ticks:
            yield f'<path class="grid" d="M{x_of(tick):.1f} {TOP - 6}V{bottom:.0f}"/>'
            yield _text(label_middle(x_of(tick), text, size.width), bottom + LINE_HEIGHT, text, "middle")
        yield _text(size.width - 4, 12, unit_word(unit), "end")
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


def sparkline(values: Sequence[Value], text: str, from_zero: bool = True) -> SafeString:
    """Draw a line as high as a letter. ``text`` describes it for screen readers."""
    known = [value for value in values if value is not None]
    ends = [*known, 0.0] if from_zero or not known else known
    low, high = min(ends), max(ends)
    path, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = 2 + 96 * (place / (len(values) - 1) if len(values) > 1 else 0.5)
        y = 22 - 20 * ((value - low) / (high - low) if high > low else 0.5)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    inner = f'<path class="line tone-data-1" d="{"".join(path)}"/>'
    return _inline_svg("sparkline", inner, text)


# --- the drawing -------------------------------------------------------------------------------------------------


class _Frame:
    """The y axis with its grid lines, and the area for the rest of the chart."""

    def __init__(self, size: Size, ends: tuple[float, float], unit: str) -> None:
        self.size, self.unit = size, unit
        self.scale = Scale(*ends, unit, 5)
        self.bottom = size.height - BOTTOM
        self.left = 10 + LETTER_WIDTH * max(len(text) for _, text in self.scale.ticks)

    def y_of(self, value: float) -> float:
        return self.bottom - (self.bottom - TOP) * self.scale.fraction(value)

    def grid(self) -> Iterator[str]:
        for value, text in self.scale.ticks:
            css = "axis" if value == 0 else "grid"
            yield f'<path class="{css}" d="M{self.left:.1f} {self.y_of(value):.1f}H{self.size.width - RIGHT}"/>'
            yield _text(self.left - 6, self.y_of(value) + 4, text, "end")
        yield _text(2, 12, unit_word(self.unit), "start")


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
        (text, *(cell_text(one.values[place], unit) for one in listed)) for place, text in enumerate(texts)
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


def _tone(index: int, one: Series) -> str:
    return NAMED_TONES.get(one.tone, one.tone) or TONES[index % len(TONES)]


def _series_css(index: int, one: Series) -> str:
    return f"tone-{_tone(index, one)} dash-{index % 4}"


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(text)}</text>'


def _labels(places: Iterable[tuple[float, str]], size: Size) -> Iterator[str]:
    """Write the labels of the x axis; one that would touch the label before it is left out."""
    free = 0.0
    for x, text in places:
        middle, half = label_middle(x, text, size.width), text_width(text) / 2
        if middle - half >= free:
            yield _text(middle, size.height - 8, text, "middle")
            free = middle + half + LETTER_WIDTH


def _marks(places: Iterable[tuple[float, str]], size: Size, bottom: int) -> Iterator[str]:
    """Draw vertical lines with their labels; a label that would touch the one before it is left out."""
    free = 0.0
    for x, text in sorted(places):
        yield f'<path class="mark" d="M{x:.1f} {TOP}V{bottom}"/>'
        middle = label_middle(x + 4 + text_width(text) / 2, text, size.width)
        if middle - text_width(text) / 2 >= free:
            yield _text(middle, TOP + 10, text, "middle")
            free = middle + text_width(text) / 2 + LETTER_WIDTH


def _rect(x: float, y: float, width: float, height: float, css: str, tooltip: str) -> str:
    return (
        f'<rect class="bar {css}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}">'
        f"<title>{escape(tooltip)}</title></rect>"
    )


def _dot(x: float, y: float, css: str, tooltip: str) -> str:
    return f'<circle class="dot {css}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(tooltip)}</title></circle>'
