"""A self-contained SVG plot of the turnaround of jobs under each policy."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 56, 200, 40, 48
COLOURS = ("#0f766e", "#b45309", "#6d28d9", "#1d4ed8", "#b91c1c", "#15803d", "#be185d", "#475569")
DASHES = ("", "6 3", "2 3", "10 4", "8 3 2 3", "1 4", "12 3", "4 4")
TIME_MARKS = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"), (86_400, "1 d"),
    (864_000, "10 d"), (8_640_000, "100 d"),
)  # fmt: skip


def turnarounds(title: str, by_policy: Mapping[str, Sequence[float]]) -> str:
    """Return a plot of the fraction of jobs that have ended by the time since submission, on a logarithmic axis."""
    values = [value for some in by_policy.values() for value in some]
    low = math.log10(max(1.0, min(values, default=1.0)))
    high = max(math.log10(max(1.0, max(values, default=10.0))), low + 0.1)

    def x_of(seconds: float) -> float:
        return LEFT + (math.log10(max(1.0, seconds)) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y_of(share: float) -> float:
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    return svg_plot(
        title,
        {policy: _steps(sorted(some), x_of, y_of) for policy, some in by_policy.items()},
        x_grid=[(x_of(at), name) for at, name in TIME_MARKS if low <= math.log10(at) <= high],
        y_grid=[(y_of(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)],
        x_label="from submission to end",
    )


def svg_plot(
    title: str,
    lines: Mapping[str, str],
    *,
    x_grid: Sequence[tuple[float, str]],
    y_grid: Sequence[tuple[float, str]],
    x_label: str = "",
) -> str:
    """Return an SVG. ``lines`` maps names to paths; ``x_grid`` and ``y_grid`` are grid lines, each with its label."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 10}">{escape(x_label)}</text>',
    ]
    for y, name in y_grid:
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        )
    for x, name in x_grid:
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    for number, (name, path) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
        y = TOP + 16 * number + 8
        parts.append(
            f'<path d="{path}" {style}/>'
            f'<path d="M{WIDTH - RIGHT + 12} {y}h24" {style}/>'
            f'<text x="{WIDTH - RIGHT + 42}" y="{y + 4}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _steps(values: Sequence[float], x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
    """Return a path with at most some hundred points, always including the last one."""
    if not values:
        return ""
    every = max(1, len(values) // 300)
    shown = [*range(0, len(values), every), len(values) - 1]
    points = [f"{x_of(values[n]):.1f} {y_of((n + 1) / len(values)):.1f}" for n in shown]
    return f"M{x_of(values[0]):.1f} {y_of(0):.1f}L" + "L".join(points)
