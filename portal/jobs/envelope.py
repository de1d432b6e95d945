"""Long curves in few points: the smallest and largest value of each stretch of steps, so that no spike is lost. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Stretch(NamedTuple):
    """Consecutive points of an attempt: where they begin and end, and the range of their values."""

    attempt: int
    place: int
    """Its number among the stretches of the curve; that of a later attempt replaces the one of an earlier attempt."""
    first_step: int
    last_step: int
    first_at: float
    last_at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """The points of a curve, by step."""

    steps: tuple[int, ...]
    times: tuple[float, ...]
    values: tuple[float, ...]
    breaks: tuple[int, ...]
    """The positions at which another attempt begins."""


def envelope(stretches: Iterable[Stretch]) -> Line:
    """Return one or two points for each stretch: its value, or the smallest and the largest.

    Which of the two came first is not known: the one that is nearer to the point before.
    """
    kept: dict[int, Stretch] = {}
    for each in sorted(stretches, key=lambda stretch: stretch.attempt):
        kept[each.place] = each
    steps, times, values, breaks = list[int](), list[float](), list[float](), list[int]()
    attempt = None
    for _, each in sorted(kept.items()):
        if attempt is not None and each.attempt != attempt:
            breaks.append(len(values))
        attempt = each.attempt
        if each.low == each.high:
            steps.append(each.last_step)
            times.append(each.last_at)
            values.append(each.low)
            continue
        before = values[-1] if values else each.high
        rises = abs(before - each.low) < abs(before - each.high)
        steps += each.first_step, each.last_step
        times += each.first_at, each.last_at
        values += (each.low, each.high) if rises else (each.high, each.low)
    return Line(tuple(steps), tuple(times), tuple(values), tuple(breaks))
