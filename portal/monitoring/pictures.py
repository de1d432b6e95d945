"""Charts of the readings of GPUs."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from portal import charts
from portal.charts import Chart, Series
from portal.cluster.models import Gpu
from portal.monitoring.rollups import mean
from portal.monitoring.series import Trace

Mark = tuple[datetime, str]

MAX_LINES = 8
"""The maximum number of lines in a chart; for more GPUs, the mean, the lowest and the highest value are drawn."""
CHARTED_METRICS: tuple[tuple[str, str, str, float], ...] = (
    ("utilisation", "Utilisation", "%", 1),
    ("memory", "Memory in use", "GiB", 1024),
    ("temperature", "Temperature", "°C", 1),
)


def metric_charts(trace: Trace, gpus: Sequence[Gpu], marks: Sequence[Mark] = ()) -> list[Chart]:
    """Return a chart for each metric that any of the GPUs reports; none for CPU slots. ``marks`` are vertical lines."""
    within = [(at, text) for at, text in marks if trace.times and trace.times[0] <= at <= trace.times[-1]]
    return [
        _chart(trace, gpus, metric, title, unit, scale, within)
        for metric, title, unit, scale in CHARTED_METRICS
        if trace.has_values(metric)
    ]


def _chart(
    trace: Trace, gpus: Sequence[Gpu], metric: str, title: str, unit: str, scale: float, marks: Sequence[Mark]
) -> Chart:
    rows = {
        gpu.pk: [None if value is None else round(value / scale, 2) for value in trace.values[gpu.pk][metric]]
        for gpu in gpus
    }
    if len(gpus) <= MAX_LINES:
        several = len({gpu.node_id for gpu in gpus}) > 1
        lines = [Series(gpu_name(gpu, several), rows[gpu.pk]) for gpu in gpus]
    else:
        steps = list(zip(*rows.values(), strict=True))
        lines = [
            Series("mean", [mean(_reported_values(step)) for step in steps], "teal"),
            Series("lowest", [_extreme(min, step) for step in steps], "blue"),
            Series("highest", [_extreme(max, step) for step in steps], "amber"),
        ]
    ends = (0.0, 100.0) if unit == "%" else None
    desc = _desc(rows.values(), title, unit)
    return charts.lines(title, trace.times, lines, unit, desc=desc, axis_range=ends, marks=marks)


def gpu_name(gpu: Gpu, with_node: bool) -> str:
    return f"{gpu.node.name} {gpu.label}" if with_node else gpu.label


def _reported_values(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _extreme(pick: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = _reported_values(values)
    return pick(known) if known else None


def _desc(rows: Iterable[Sequence[float | None]], title: str, unit: str) -> str:
    known = [value for row in rows for value in _reported_values(row)]
    average = charts.format_value(round(sum(known) / len(known), 1), unit)
    return f"{title}: {average} on average, {charts.format_value(max(known), unit)} at most."


def utilisation_sparkline(values: Sequence[float | None]) -> str:
    """Return a small chart of the last hour for a table cell; empty without readings."""
    known = _reported_values(values)
    if not known:
        return ""
    return charts.sparkline(values, f"In the last hour {round(sum(known) / len(known))} % on average.")
