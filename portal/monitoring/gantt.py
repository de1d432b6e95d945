"""The timeline as SVG: a lane for each GPU, a bar for each time it was held. Pure; no scripts or inline styles."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.charts import LETTER_WIDTH, SIZES, Size, time_ticks
from portal.cluster.models import Gpu
from portal.cluster.slots import noun
from portal.monitoring.visibility import Span

TOP, LEFT, RIGHT = 22, 34, 8  # margins in pixels
NODE_NAME_HEIGHT, LANE_HEIGHT, BAR_HEIGHT = 20, 20, 15
"""Heights in pixels: of the name of a node, of a lane, and of a bar in it."""
MIN_WIDTH = 1.5
"""Minimum width of a bar in pixels, so that a short one is visible."""
HIDDEN_JOB_LABEL = "another project"


class Frame(NamedTuple):
    size: Size
    since: datetime
    until: datetime

    def x_at(self, moment: datetime) -> float:
        part = (moment - self.since) / (self.until - self.since)
        return LEFT + (self.size.width - LEFT - RIGHT) * min(1.0, max(0.0, part))


def draw(gpus: Sequence[Gpu], spans: Sequence[Span], since: datetime, until: datetime) -> SafeString:
    """Draw the timeline; ``gpus`` are in the order of their lanes, those of a node together."""
    by_gpu: dict[int, list[Span]] = {gpu.pk: [] for gpu in gpus}
    for span in spans:
        by_gpu[span.gpu].append(span)
    pictures, word = [], noun({gpu.kind for gpu in gpus})
    for size in SIZES:
        frame = Frame(size, since, until)
        body, height = _lanes(frame, gpus, by_gpu)
        ticks = "".join(_ticks(frame, height))
        pictures.append(
            f'<svg class="chart-picture {size.css}" viewBox="0 0 {size.width} {height}" role="group"'
            f' aria-label="Who held which {word}">{ticks}{body}</svg>'
        )
    return mark_safe("".join(pictures))  # noqa: S308  # every text in it went through escape()


def _lanes(frame: Frame, gpus: Sequence[Gpu], by_gpu: dict[int, list[Span]]) -> tuple[str, int]:
    parts, top = [], TOP
    for _, of_node in groupby(gpus, key=lambda gpu: gpu.node_id):
        lanes = list(of_node)
        parts.append(f'<text class="name" x="2" y="{top + 14}">{escape(lanes[0].node.name)}</text>')
        top += NODE_NAME_HEIGHT
        for gpu in lanes:
            middle = top + LANE_HEIGHT / 2
            parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{gpu.index}</text>')
            parts.append(f'<path class="grid" d="M{LEFT} {top + LANE_HEIGHT - 1}H{frame.size.width - RIGHT}"/>')
            parts += [
                _bar(frame, span, gpu, top + (LANE_HEIGHT - BAR_HEIGHT) // 2) for span in reversed(by_gpu[gpu.pk])
            ]
            top += LANE_HEIGHT
    return "".join(parts), top + 6


def _ticks(frame: Frame, height: int) -> Iterator[str]:
    first, last = frame.since.timestamp(), frame.until.timestamp()
    for moment, text in time_ticks(frame.since, first, last, frame.size.ticks):
        x = frame.x_at(datetime.fromtimestamp(moment, frame.since.tzinfo))
        anchor = "start" if x < LEFT + 20 else "end" if x > frame.size.width - RIGHT - 20 else "middle"
        yield f'<path class="grid" d="M{x:.1f} {TOP - 4}V{height - 6}"/>'
        yield f'<text x="{x:.1f}" y="12" text-anchor="{anchor}">{escape(text)}</text>'


def _bar(frame: Frame, span: Span, gpu: Gpu, top: int) -> str:
    left, right = frame.x_at(span.since), frame.x_at(span.until or frame.until)
    width = max(MIN_WIDTH, right - left)
    title = escape(f"{gpu.node.name} {gpu.label}: {label_of(span)}, {times_of(span)}")
    css = f"hue-{span.person.hue}" if span.person else "tone-grey"
    rect = (
        f'<rect class="span {css}{" mine" if span.mine else ""}" x="{left:.1f}" y="{top}" width="{width:.1f}"'
        f' height="{BAR_HEIGHT}" rx="2"><title>{title}</title></rect>'
    )
    letters = int((width - 6) / LETTER_WIDTH)
    label = next((words for words in _labels(span) if len(words) <= letters), "")
    text = f'<text class="name" x="{left + 4:.1f}" y="{top + 12}">{escape(label)}</text>' if label else ""
    if span.job is None:
        return rect + text
    return f'<a href="{reverse("jobs:detail", args=[span.job.pk])}" aria-label="{title}">{rect}{text}</a>'


def _labels(span: Span) -> list[str]:
    """Return the texts for a bar, the longest first."""
    if span.person is None:
        return []
    code = span.person.code
    if span.job is None:
        return [span.person.name, code]
    return [f"{code} #{span.job.pk} {span.job.name}", f"{code} #{span.job.pk}", code]


def label_of(span: Span) -> str:
    """Say who held it: ``digits #12 of ada``, ``a job of ada`` or ``another project``."""
    if span.job is None:
        return f"a job of {span.person.name}" if span.person else HIDDEN_JOB_LABEL
    return f"{span.job.name} #{span.job.pk} of {span.job.submitted_by.username}"


def times_of(span: Span) -> str:
    since = f"{timezone.localtime(span.since):%d %b, %H:%M}"
    return f"from {since} to {timezone.localtime(span.until):%d %b, %H:%M}" if span.until else f"since {since}"
