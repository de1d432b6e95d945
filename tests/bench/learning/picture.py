"""Losses over time, mode by mode, as SVG."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from scheduling.simulate.plot import COLOURS, DASHES

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 56, 200, 40, 48
POINTS = 120


def write(folder: Path, rows: Sequence[Mapping[str, Any]], targets: Mapping[str, float]) -> None:
    """One picture for each model and load."""
    folder.mkdir(parents=True, exist_ok=True)
    for model, load in dict.fromkeys((row["model"], row["load"]) for row in rows):
        here = [row for row in rows if (row["model"], row["load"]) == (model, load)]
        by_mode = {
            mode: [row["curve"] for row in here if row["mode"] == mode]
            for mode in dict.fromkeys(row["mode"] for row in here)
        }
        name = f"training-{model}-{load.replace(' ', '-')}.svg"
        (folder / name).write_text(losses(f"{model}, {load}", by_mode, targets[model]))


def losses(title: str, by_mode: Mapping[str, Sequence[Sequence[tuple[float, float]]]], target: float) -> str:
    """The median of the runs at each moment, until the first of them has ended."""
    ends = {mode: min(curve[-1][0] for curve in curves) for mode, curves in by_mode.items()}
    last = max(ends.values())
    lines = {mode: [(at, median_at(curves, at)) for at in moments(ends[mode])] for mode, curves in by_mode.items()}
    high = max(value for line in lines.values() for _, value in line)
    low = min(target, *(value for line in lines.values() for _, value in line)) * 0.9

    def across(at: float) -> float:
        return LEFT + at / last * (WIDTH - LEFT - RIGHT)

    def up(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}: loss of held-back data</text>',
        f'<path d="M{LEFT} {up(target):.1f}H{WIDTH - RIGHT}" stroke="#888" stroke-dasharray="2 2"/>'
        f'<text x="{LEFT - 6}" y="{up(target) + 4:.1f}" text-anchor="end">{target:g}</text>',
        f'<text x="{LEFT - 6}" y="{up(high) + 4:.1f}" text-anchor="end">{high:.2g}</text>',
    ]
    for part in range(6):
        x = across(last * part / 5)
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{last * part / 5:.0f} s</text>'
        )
    for number, (mode, line) in enumerate(lines.items()):
        style = f'stroke="{COLOURS[number]}" stroke-width="2" stroke-dasharray="{DASHES[number]}" fill="none"'
        path = "L".join(f"{across(at):.1f} {up(loss):.1f}" for at, loss in line)
        y = TOP + 16 * number + 8
        parts.append(
            f'<path d="M{path}" {style}/><path d="M{WIDTH - RIGHT + 12} {y}h24" {style}/>'
            f'<text x="{WIDTH - RIGHT + 42}" y="{y + 4}">{escape(mode)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def moments(end: float) -> list[float]:
    return [end * number / POINTS for number in range(1, POINTS + 1)]


def median_at(curves: Sequence[Sequence[tuple[float, float]]], at: float) -> float:
    """Of what each run had reached by then; its first copy where that came later."""
    return statistics.median(
        next((loss for when, loss in reversed(curve) if when <= at), curve[0][1]) for curve in curves
    )
