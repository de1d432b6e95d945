"""A job's band as SVG: a bar for each stretch, as high as it had GPUs, and a number at each change. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.charts import LETTER, SIZES, Size, time_ticks
from portal.monitoring.resize_timeline import Band, Stretch
from portal.ui import counted

TOP, TALL, FOOT, EDGE = 24, 76, 26, 8
"""Heights in pixels: of the row of numbers, of the highest bar, of the row of times; and the room left and right."""
LEAST = 2.0
"""What lasted for a moment is still seen."""
APART = 18
"""Numbers nearer to each other than this are not legible: the later one is left out, the table has it."""


class Frame(NamedTuple):
    size: Size
    since: datetime
    until: datetime
    most: int

    def across(self, moment: datetime) -> float:
        part = (moment - self.since) / (self.until - self.since) if self.until > self.since else 0.5
        return EDGE + (self.size.width - 2 * EDGE) * min(1.0, max(0.0, part))


def draw(band: Band, now: datetime) -> SafeString:
    """Of a band that has at least one stretch."""
    stretches = band.stretches
    since, until = stretches[0].since, stretches[-1].until or now
    most = max(1, *(stretch.gpus for stretch in stretches))
    said = escape(f"On how many {band.noun}s it ran: {said_of(stretches)}.")
    pictures = []
    for size in SIZES:
        frame = Frame(size, since, until, most)
        body = "".join((*_ticks(frame), *_bars(frame, band, now), *_marks(frame, band)))
        pictures.append(
            f'<svg class="chart-picture {size.css}" viewBox="0 0 {size.width} {TOP + TALL + FOOT}" role="img"'
            f' aria-label="{said}">{body}</svg>'
        )
    return mark_safe("".join(pictures))  # noqa: S308  # every text in it went through escape()


def said_of(stretches: Sequence[Stretch]) -> str:
    """ "2, then 6, then 3"; of many only the last."""
    sizes = [str(stretch.gpus) for stretch in stretches]
    return ", then ".join(sizes if len(sizes) <= 12 else ["…", *sizes[-12:]])


def _ticks(frame: Frame) -> Iterator[str]:
    width, bottom = frame.size.width, TOP + TALL
    yield f'<path class="axis" d="M{EDGE} {bottom}H{width - EDGE}"/>'
    for moment, text in time_ticks(frame.since, frame.since.timestamp(), frame.until.timestamp(), frame.size.ticks):
        x = frame.across(datetime.fromtimestamp(moment, frame.since.tzinfo))
        anchor = "start" if x < 30 else "end" if x > width - 30 else "middle"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{escape(text)}</text>'


def _bars(frame: Frame, band: Band, now: datetime) -> Iterator[str]:
    for stretch in band.stretches:
        left, right = frame.across(stretch.since), frame.across(stretch.until or now)
        width, height = max(LEAST, right - left), TALL * stretch.gpus / frame.most
        top = TOP + TALL - height
        words = counted(stretch.gpus, band.noun)
        where = ", ".join(f"{name} ({counted(gpus, band.noun)})" for name, gpus in stretch.nodes)
        said = escape(f"{words}: {where}, attempt {stretch.attempt}")
        yield (
            f'<rect class="stretch tone-{"teal" if stretch.attempt % 2 else "violet"}" x="{left:.1f}" y="{top:.1f}"'
            f' width="{width:.1f}" height="{height:.1f}"><title>{said}</title></rect>'
        )
        label = next((each for each in (words, str(stretch.gpus)) if len(each) * LETTER + 8 <= width), "")
        if label and height >= 16:
            x, y = left + width / 2, TOP + TALL - height / 2 + 4
            yield f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(label)}</text>'


def _marks(frame: Frame, band: Band) -> Iterator[str]:
    last = -APART * 1.0
    for number, change in enumerate(band.changes, start=1):
        x = frame.across(change.at)
        yield f'<path class="mark" d="M{x:.1f} {TOP - 4}V{TOP + TALL}"/>'
        if x - last >= APART:
            last, middle = x, min(max(x, 10), frame.size.width - 10)
            title = escape(f"{change.before} to {change.after} {band.noun}s: {change.cause}")
            yield f'<g class="number"><circle cx="{middle:.1f}" cy="11" r="9"><title>{title}</title></circle>'
            yield f'<text x="{middle:.1f}" y="15" text-anchor="middle">{number}</text></g>'
