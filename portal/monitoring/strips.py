"""A machine's last hours as a strip: a lane for each GPU, a bar for each time it was held. Pure; SVG without scripts.

It stretches to the width of its place, so it has no text: the page draws the hours below. Times that several GPUs next to
each other were held together are one bar.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from portal.monitoring.board import ColourBy, Holding, Machine, in_minutes

WIDTH = 720
"""Units from the first to the last moment."""
HEIGHT = 32
"""Pixels of a strip with up to eight lanes; more lanes have four pixels each."""
MIN_LANE = 4
HOURS = 6
MAX_NAMED = 6


class Bar(NamedTuple):
    lane: int
    lanes: int
    holding: Holding


def bars(machine: Machine) -> list[Bar]:
    """Return the bars of a machine: lanes next to each other that an attempt held at the same time are one."""
    lane_of = {square.pk: lane for lane, square in enumerate(machine.squares)}
    together: dict[tuple[int, datetime, datetime | None], list[Holding]] = {}
    for holding in machine.holdings:
        together.setdefault((holding.attempt, holding.since, holding.until), []).append(holding)
    found = []
    for group in together.values():
        lanes = sorted(lane_of[holding.gpu] for holding in group)
        for first, count in _runs(lanes):
            found.append(Bar(first, count, group[0]))
    return found


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the length of each run of ascending numbers without a gap."""
    first = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield first, previous - first + 1
            first = number
        previous = number
    yield first, previous - first + 1


def draw(machine: Machine, since: datetime, until: datetime, by: ColourBy) -> SafeString:
    """Draw the strip of a machine, coloured by person or by project."""
    lanes = max(1, len(machine.squares))
    height = max(HEIGHT, lanes * MIN_LANE)
    lane = height / lanes
    hours = "".join(f"M{WIDTH * hour // HOURS} 0V{height}" for hour in range(1, HOURS))
    rects = "".join(_rect(bar, lane, since, until, by) for bar in bars(machine))
    if machine.joined > since:
        rects = f'<rect class="absent" width="{_x_at(machine.joined, since, until):.1f}" height="{height}"/>{rects}'
    return mark_safe(  # noqa: S308  # every text in it went through escape()
        f'<svg class="strip" viewBox="0 0 {WIDTH} {height}" height="{height}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(summary(machine, since, until, by))}"><path class="hours" d="{hours}"/>{rects}</svg>'
    )


def _rect(bar: Bar, lane: float, since: datetime, until: datetime, by: ColourBy) -> str:
    left, right = (
        _x_at(bar.holding.since, since, until),
        _x_at(bar.holding.until or until, since, until),
    )
    mark = bar.holding.mark(by)
    css = f"hue-{mark.hue}" if mark is not None else "hidden-holder"
    length = in_minutes((bar.holding.until or until) - bar.holding.since)
    title = escape(f"{bar.holding.holder}, {length}{'' if bar.holding.until else ' so far'}")
    return (
        f'<rect class="{css}" x="{left:.1f}" y="{bar.lane * lane:.4g}" width="{max(1.5, right - left):.1f}"'
        f' height="{bar.lanes * lane:.4g}"><title>{title}</title></rect>'
    )


def _x_at(moment: datetime, since: datetime, until: datetime) -> float:
    return WIDTH * min(1.0, max(0.0, (moment - since) / (until - since)))


def summary(machine: Machine, since: datetime, until: datetime, by: ColourBy) -> str:
    """Describe a strip in words: who held how much of the machine, from when it joined."""
    is_new = machine.joined > since
    since = min(max(since, machine.joined), until - timedelta(seconds=1))
    whole = (until - since).total_seconds() * max(1, len(machine.squares))
    held: Counter[str] = Counter()
    for holding in machine.holdings:
        mark = holding.mark(by)
        begin, end = max(holding.since, since), min(holding.until or until, until)
        held[mark.name if mark is not None else holding.hidden_as] += max(0, round((end - begin).total_seconds()))
    named = [f"{name} {round(100 * seconds / whole)} %" for name, seconds in held.most_common(MAX_NAMED)]
    if len(held) > MAX_NAMED:
        named.append(f"{len(held) - MAX_NAMED} others")
    idle = max(0, 100 - round(100 * sum(held.values()) / whole))
    period = "since it joined" if is_new else "in the last 6 hours"
    return f"{machine.name} {period}: {', '.join([*named, f'idle {idle} %'])}"
