"""Plots of losses over time by mode, as SVG."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduling.simulate.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, svg_plot

POINTS = 120


def write(folder: Path, rows: Sequence[Mapping[str, Any]], targets: Mapping[str, float]) -> None:
    """Write one plot for each model and load."""
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
    """Return a plot of the median of the runs at each time, until the first of them has ended."""
    ends = {mode: min(curve[-1][0] for curve in curves) for mode, curves in by_mode.items()}
    last = max(ends.values())
    lines = {mode: [(at, median_at(curves, at)) for at in moments(ends[mode])] for mode, curves in by_mode.items()}
    high = max(value for line in lines.values() for _, value in line)
    low = min(target, *(value for line in lines.values() for _, value in line)) * 0.9

    def x_of(at: float) -> float:
        return LEFT + at / last * (WIDTH - LEFT - RIGHT)

    def y_of(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    return svg_plot(
        f"{title}: loss of held-back data",
        {mode: "M" + "L".join(f"{x_of(at):.1f} {y_of(loss):.1f}" for at, loss in line) for mode, line in lines.items()},
        x_grid=[(x_of(last * part / 5), f"{last * part / 5:.0f} s") for part in range(6)],
        y_grid=[(y_of(target), f"{target:g}"), (y_of(high), f"{high:.2g}")],
        x_label="the lower line is the target",
    )


def moments(end: float) -> list[float]:
    return [end * number / POINTS for number in range(1, POINTS + 1)]


def median_at(curves: Sequence[Sequence[tuple[float, float]]], at: float) -> float:
    """Return the median of the losses that the runs had reached by then; the first loss of a run that has none yet."""
    return statistics.median(
        next((loss for when, loss in reversed(curve) if when <= at), curve[0][1]) for curve in curves
    )
