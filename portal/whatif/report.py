"""A finished simulation in words, cells and charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal import charts, percentages
from portal.charts import Chart, Series
from portal.scheduler import services as scheduler_services
from portal.scheduler.forms import form_query
from portal.scheduler.models import SchedulerConfig
from portal.scheduler.param_labels import labelled_params
from portal.sentences import sentence_of
from portal.whatif.models import Simulation
from scheduling import registry

REALLY = "What really happened"
MIN_CHANGE = 0.05
"""Differences up to this share count as no change."""
MAX_BARS = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the comparison: what really happened, or one policy."""

    name: str
    figures: Mapping[str, Any]
    """Empty when the policy could not decide."""
    wrong: str = ""
    query: str = ""
    """The query of the preview for switching to it; empty for what really happened and for the policy in force."""
    words: Sequence[tuple[str, object]] = ()
    in_force: bool = False
    knows: str = ""
    """What the policy uses about jobs; empty for what really happened."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    change: str = ""
    """The difference to the simulation of the policy in force."""
    look: str = ""
    """``good`` or ``bad``."""
    column: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    name: str
    cells: Sequence[Cell]
    heading: str = ""
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class Measure:
    heading: str
    name: str
    unit: str
    value_in: Callable[[Mapping[str, Any]], float]
    less_is_better: bool | None = True
    """None when neither is better."""
    ratio: bool = False
    """Whether it is a ratio around 1."""

    @property
    def min_base(self) -> float:
        """The smallest value to which percentages are given."""
        return percentages.MIN_RATIO if self.ratio else percentages.MIN_BASE[self.unit]


MEASURES = (
    Measure("Turnaround", "mean", charts.SECONDS, lambda found: found["turnaround"]["mean"]),
    Measure("Turnaround", "median", charts.SECONDS, lambda found: found["turnaround"]["p50"]),
    Measure("Turnaround", "95th percentile", charts.SECONDS, lambda found: found["turnaround"]["p95"]),
    Measure("Waiting", "mean", charts.SECONDS, lambda found: found["waiting"]["mean"]),
    Measure("Waiting", "median", charts.SECONDS, lambda found: found["waiting"]["p50"]),
    Measure("Waiting", "95th percentile", charts.SECONDS, lambda found: found["waiting"]["p95"]),
    Measure("GPUs", "utilisation", "%", lambda found: 100 * found["utilisation"], None),
    Measure("GPUs", "lost to starts, restarts and stops", "GPU-hours", lambda found: found["lost_gpu_hours"]),
    Measure("GPUs", "preemptions", "", lambda found: found["preemptions"]),
    Measure(
        "Finish-time fairness", "mean (1 is a fair share)", "", lambda found: found["fairness"]["mean"], ratio=True
    ),
    Measure("Finish-time fairness", "jobs treated unfairly", "%", lambda found: 100 * found["unfair"]),
)


def titles(simulation: Simulation) -> list[str]:
    """Return the titles of its policies, numbered where they are equal."""
    names: list[str] = []
    for each in simulation.policies:
        title = scheduler_services.title_of(each["policy"])
        same = sum(name == title or name.startswith(f"{title} (") for name in names)
        names.append(f"{title} ({same + 1})" if same else title)
    return names


def columns(simulation: Simulation) -> list[Column]:
    result = simulation.result or {}
    found = [Column(REALLY, result["really"])] if result else []
    simulated = result.get("simulated", [{}] * len(simulation.policies))
    for place, (name, each, values) in enumerate(zip(titles(simulation), simulation.policies, simulated, strict=True)):
        known = each["policy"] in registry.POLICIES
        found.append(
            Column(
                name=name,
                figures={} if "wrong" in values else values,
                wrong=sentence_of(values.get("wrong")),
                query=form_query(each["policy"], each["params"]) if known and place else "",
                words=labelled_params(each["policy"], each["params"]),
                in_force=place == 0,
                knows=registry.describe(each["policy"]).knows if known else "",
            )
        )
    return found


def comparison_rows(columns: Sequence[Column]) -> list[TableRow]:
    base = next((column.figures["total"] for column in columns if column.in_force and column.figures), None)
    lines, heading = [], ""
    for measure in MEASURES:
        cells = [_cell(measure, column, column.figures.get("total"), base) for column in columns]
        lines.append(TableRow(measure.name, cells, measure.heading if measure.heading != heading else ""))
        heading = measure.heading
    return lines


def _cell(measure: Measure, column: Column, found: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> Cell:
    if found is None:
        return Cell("–", column=column.name)
    value = measure.value_in(found)
    if measure.ratio and not value:  # no job lasted long enough to have one
        return Cell("–", column=column.name)
    text = _formatted(value, measure.unit)
    if base is None or column.in_force or column.name == REALLY or (measure.ratio and not measure.value_in(base)):
        return Cell(text, column=column.name)
    change, look = _change(measure, value, measure.value_in(base))
    return Cell(text, change, look, column.name)


def _formatted(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f} %"
    return charts.format_value(value, unit) if unit else charts.format_number(value)


def _change(measure: Measure, value: float, base: float) -> tuple[str, str]:
    """Return the difference in words, and whether it is ``good`` or ``bad``; neither if it is small or both are tiny."""
    if measure.less_is_better is None:
        return "", ""
    text = percentages.difference(value, base, measure.unit, min_base=measure.min_base)
    compared = max(base, measure.min_base)
    if text == "the same" or abs(value - base) <= MIN_CHANGE * compared or max(value, base) < measure.min_base:
        return text, ""
    return text, "good" if (value < base) == measure.less_is_better else "bad"


def turnaround_rows(columns: Sequence[Column], kind: str) -> list[TableRow]:
    """Return a row with the mean turnaround of each person or group, which shows who gains and who loses."""
    names = sorted({name for column in columns for name in column.figures.get(kind, {})}, key=str.lower)
    base: Mapping[str, Any] = next((each.figures[kind] for each in columns if each.in_force and each.figures), {})
    measure = MEASURES[0]
    lines = []
    for name in names:
        jobs = next((w.figures[kind][name]["compared"] for w in columns if name in w.figures.get(kind, {})), 0)
        if jobs:
            cells = [
                _cell(measure, column, column.figures.get(kind, {}).get(name), base.get(name)) for column in columns
            ]
            lines.append(TableRow(name, cells, jobs=jobs))
    return lines


def simulation_error(columns: Sequence[Column]) -> tuple[float, str] | None:
    """Return how far the simulation of the policy in force is from what really happened: the share, and a sentence."""
    happened = next((column.figures["total"] for column in columns if column.name == REALLY), None)
    base = next((column.figures["total"] for column in columns if column.in_force and column.figures), None)
    if happened is None or base is None or not happened["turnaround"]["mean"]:
        return None
    real, made = happened["turnaround"]["mean"], base["turnaround"]["mean"]
    percent = percentages.percentage(made, real, min_base=percentages.MIN_BASE[charts.SECONDS])
    way = "more" if made > real else "less"
    verdict = "too short to compare." if percent is None else "the same."
    if percent:
        verdict = f"the simulation gives {abs(percent)} % {way}."
    sentence = (
        f"Simulated under the policy in force, a job took {charts.format_value(made, charts.SECONDS)} on average; "
        f"in reality it was {charts.format_value(real, charts.SECONDS)}: {verdict}"
    )
    return abs((percent or 0) / 100), sentence


def count_switches(start: datetime, end: datetime) -> int:
    """Return how often the policy was switched in between; if it was, what happened is not due to a single policy."""
    within = SchedulerConfig.objects.filter(created_at__gt=start, created_at__lte=end)
    return within.filter(pk__gt=SchedulerConfig.objects.order_by("pk").values("pk")[:1]).count()


def comparison_charts(columns: Sequence[Column]) -> list[Chart]:
    shown = [column for column in columns if column.figures]
    labels = [column.name for column in shown]

    def bars(title: str, unit: str, *measures: Measure) -> Chart:
        series = [
            Series(measure.name, [measure.value_in(column.figures["total"]) for column in shown])
            for measure in measures
        ]
        return charts.bars(title, labels, series, unit, horizontal=True)

    people = [line.name for line in turnaround_rows(shown, "people")]
    busiest = sorted(people, key=lambda name: -shown[0].figures["people"][name]["gpu_hours"])[:MAX_BARS]
    found = [
        bars("Turnaround", charts.SECONDS, *MEASURES[:3]),
        bars("Waiting", charts.SECONDS, *MEASURES[3:6]),
        bars("GPU-hours lost to starts, restarts and stops", "GPU-hours", MEASURES[7]),
    ]
    if len(busiest) > 1:
        found.append(
            charts.bars(
                "Mean turnaround by person",
                busiest,
                [
                    Series(column.name, [column.figures["people"][name]["turnaround"]["mean"] for name in busiest])
                    for column in shown
                ],
                charts.SECONDS,
                horizontal=True,
                desc="" if len(people) <= MAX_BARS else f"The {MAX_BARS} who used the most GPU time.",
            )
        )
    return found
