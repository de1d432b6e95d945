"""A resize timeline as SVG: a bar for each segment, as high as its number of GPUs, and a number at each change. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.charts import LETTER_WIDTH, SIZES, Size, time_ticks
from portal.jobs.resize_timeline.timeline import ResizeTimeline, Segment
from portal.ui import counted

TOP, HEIGHT, FOOT, EDGE = 24, 76, 26, 8
"""Pixels: the heights of the row of numbers, of the highest bar and of the row of times, and the margin at both sides."""
MIN_WIDTH = 2.0
"""Pixels of the shortest segment, so that it can be seen."""
MIN_DISTANCE = 18
"""Pixels between two numbers; one that would be closer is left out, and is in the table."""


class Frame(NamedTuple):
    size: Size
    since: datetime
    until: datetime
    highest: int

    def x_at(self, moment: datetime) -> float:
        part = (moment - self.since) / (self.until - self.since) if self.until > self.since else 0.5
        return EDGE + (self.size.width - 2 * EDGE) * min(1.0, max(0.0, part))


def draw(timeline: ResizeTimeline, now: datetime) -> SafeString:
    """Return the picture of a timeline that has at least one segment."""
    segments = timeline.segments
    since, until = segments[0].since, segments[-1].until or now
    highest = max(1, *(segment.gpus for segment in segments))
    label = escape(f"Number of {timeline.noun}s over time: {sizes_in_words(segments)}.")
    pictures = []
    for size in SIZES:
        frame = Frame(size, since, until, highest)
        body = "".join((*_ticks(frame), *_bars(frame, timeline, now), *_marks(frame, timeline)))
        pictures.append(
            f'<svg class="chart-picture {size.css}" viewBox="0 0 {size.width} {TOP + HEIGHT + FOOT}" role="img"'
            f' aria-label="{label}">{body}</svg>'
        )
    return mark_safe("".join(pictures))  # noqa: S308  # every text in it went through escape()


def sizes_in_words(segments: Sequence[Segment]) -> str:
    """Return "2, then 6, then 3"; of more than twelve only the last."""
    sizes = [str(segment.gpus) for segment in segments]
    return ", then ".join(sizes if len(sizes) <= 12 else ["…", *sizes[-12:]])


def _ticks(frame: Frame) -> Iterator[str]:
    width, bottom = frame.size.width, TOP + HEIGHT
    yield f'<path class="axis" d="M{EDGE} {bottom}H{width - EDGE}"/>'
    for moment, text in time_ticks(frame.since, frame.since.timestamp(), frame.until.timestamp(), frame.size.ticks):
        x = frame.x_at(datetime.fromtimestamp(moment, frame.since.tzinfo))
        anchor = "start" if x < 30 else "end" if x > width - 30 else "middle"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{escape(text)}</text>'


def _bars(frame: Frame, timeline: ResizeTimeline, now: datetime) -> Iterator[str]:
    for segment in timeline.segments:
        left, right = frame.x_at(segment.since), frame.x_at(segment.until or now)
        width, height = max(MIN_WIDTH, right - left), HEIGHT * segment.gpus / frame.highest
        top = TOP + HEIGHT - height
        words = counted(segment.gpus, timeline.noun)
        where = ", ".join(f"{name} ({counted(gpus, timeline.noun)})" for name, gpus in segment.nodes)
        title = escape(f"{words}: {where}, attempt {segment.attempt}")
        yield (
            f'<rect class="segment tone-{"teal" if segment.attempt % 2 else "violet"}" x="{left:.1f}" y="{top:.1f}"'
            f' width="{width:.1f}" height="{height:.1f}"><title>{title}</title></rect>'
        )
        label = next((each for each in (words, str(segment.gpus)) if len(each) * LETTER_WIDTH + 8 <= width), "")
        if label and height >= 16:
            x, y = left + width / 2, TOP + HEIGHT - height / 2 + 4
            yield f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(label)}</text>'


def _marks(frame: Frame, timeline: ResizeTimeline) -> Iterator[str]:
    last = -MIN_DISTANCE * 1.0
    for number, change in enumerate(timeline.changes, start=1):
        x = frame.x_at(change.at)
        yield f'<path class="mark" d="M{x:.1f} {TOP - 4}V{TOP + HEIGHT}"/>'
        if x - last >= MIN_DISTANCE:
            last, middle = x, min(max(x, 10), frame.size.width - 10)
            title = escape(f"{change.before} to {change.after} {timeline.noun}s: {change.cause}")
            yield f'<g class="number"><circle cx="{middle:.1f}" cy="11" r="9"><title>{title}</title></circle>'
            yield f'<text x="{middle:.1f}" y="15" text-anchor="middle">{number}</text></g>'
