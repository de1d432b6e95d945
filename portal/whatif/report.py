"""A finished simulation in words, cells and charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal import charts, relative
from portal.charts import Chart, Series
from portal.scheduler import services as control
from portal.scheduler.forms import query_of
from portal.scheduler.models import SchedulerConfig
from portal.sentences import sentence_of
from portal.whatif.models import Simulation
from scheduling import registry
from scheduling.params import Param

REALLY = "What really happened"
CHANGED = 0.05
"""Differences up to this part count as no change."""
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
    of: Callable[[Mapping[str, Any]], float]
    less_is_better: bool | None = True
    """None when neither is better."""
    ratio: bool = False
    """Whether it is a ratio around 1."""

    @property
    def min_base(self) -> float:
        """The smallest value to which percentages are given."""
        return relative.MIN_RATIO if self.ratio else relative.MIN_BASE[self.unit]


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
        title = control.title_of(each["policy"])
        same = sum(name == title or name.startswith(f"{title} (") for name in names)
        names.append(f"{title} ({same + 1})" if same else title)
    return names


def columns(simulation: Simulation) -> list[Column]:
    result = simulation.result or {}
    found = [Column(REALLY, result["really"])] if result else []
    simulated = result.get("simulated", [{}] * len(simulation.policies))
    for place, (name, each, world) in enumerate(zip(titles(simulation), simulation.policies, simulated, strict=True)):
        known = each["policy"] in registry.POLICIES
        found.append(
            Column(
                name=name,
                figures={} if "wrong" in world else world,
                wrong=sentence_of(world.get("wrong")),
                query=query_of(each["policy"], each["params"]) if known and place else "",
                words=_words(each),
                in_force=place == 0,
                knows=registry.describe(each["policy"]).knows if known else "",
            )
        )
    return found


def _words(each: Mapping[str, Any]) -> list[tuple[str, object]]:
    known = each["policy"] in registry.POLICIES
    about = {item.name: item for item in registry.describe(each["policy"]).params} if known else {}
    return [
        (about[name].label if name in about else name, _plain(value, about.get(name)))
        for name, value in each["params"].items()
    ]


def _plain(value: object, param: Param | None) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return dict(param.choices).get(str(value), value) if param else value


def table(worlds: Sequence[Column]) -> list[TableRow]:
    base = next((world.figures["total"] for world in worlds if world.in_force and world.figures), None)
    lines, heading = [], ""
    for measure in MEASURES:
        cells = [_cell(measure, world, world.figures.get("total"), base) for world in worlds]
        lines.append(TableRow(measure.name, cells, measure.heading if measure.heading != heading else ""))
        heading = measure.heading
    return lines


def _cell(measure: Measure, world: Column, found: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> Cell:
    if found is None:
        return Cell("–", column=world.name)
    value = measure.of(found)
    if measure.ratio and not value:  # no job lasted long enough to have one
        return Cell("–", column=world.name)
    text = _formatted(value, measure.unit)
    if base is None or world.in_force or world.name == REALLY or (measure.ratio and not measure.of(base)):
        return Cell(text, column=world.name)
    change, look = _change(measure, value, measure.of(base))
    return Cell(text, change, look, world.name)


def _formatted(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f} %"
    return charts.format_value(value, unit) if unit else charts.format_number(value)


def _change(measure: Measure, value: float, base: float) -> tuple[str, str]:
    """Return the difference in words, and whether it is ``good`` or ``bad``; neither if it is small or both are tiny."""
    if measure.less_is_better is None:
        return "", ""
    text = relative.difference(value, base, measure.unit, min_base=measure.min_base)
    compared = max(base, measure.min_base)
    if text == "the same" or abs(value - base) <= CHANGED * compared or max(value, base) < measure.min_base:
        return text, ""
    return text, "good" if (value < base) == measure.less_is_better else "bad"


def shares(worlds: Sequence[Column], kind: str) -> list[TableRow]:
    """Return who gains and who loses: the mean turnaround of each person or group."""
    names = sorted({name for world in worlds for name in world.figures.get(kind, {})}, key=str.lower)
    base: Mapping[str, Any] = next((each.figures[kind] for each in worlds if each.in_force and each.figures), {})
    measure = MEASURES[0]
    lines = []
    for name in names:
        jobs = next((w.figures[kind][name]["compared"] for w in worlds if name in w.figures.get(kind, {})), 0)
        if jobs:
            cells = [_cell(measure, world, world.figures.get(kind, {}).get(name), base.get(name)) for world in worlds]
            lines.append(TableRow(name, cells, jobs=jobs))
    return lines


def error_of(worlds: Sequence[Column]) -> tuple[float, str] | None:
    """Return how far the simulation of the policy in force is from what really happened: the part, and a sentence."""
    happened = next((world.figures["total"] for world in worlds if world.name == REALLY), None)
    base = next((world.figures["total"] for world in worlds if world.in_force and world.figures), None)
    if happened is None or base is None or not happened["turnaround"]["mean"]:
        return None
    real, made = happened["turnaround"]["mean"], base["turnaround"]["mean"]
    percent = relative.percentage(made, real, min_base=relative.MIN_BASE[charts.SECONDS])
    way = "more" if made > real else "less"
    verdict = "too short to compare." if percent is None else "the same."
    if percent:
        verdict = f"the simulation gives {abs(percent)} % {way}."
    sentence = (
        f"Simulated under the policy in force, a job took {charts.format_value(made, charts.SECONDS)} on average; "
        f"in reality it was {charts.format_value(real, charts.SECONDS)}: {verdict}"
    )
    return abs((percent or 0) / 100), sentence


def switched(start: datetime, end: datetime) -> int:
    """Return how often the policy was switched in between; if it was, what happened is not due to one policy."""
    within = SchedulerConfig.objects.filter(created_at__gt=start, created_at__lte=end)
    return within.filter(pk__gt=SchedulerConfig.objects.order_by("pk").values("pk")[:1]).count()


def pictures(worlds: Sequence[Column]) -> list[Chart]:
    shown = [world for world in worlds if world.figures]
    labels = [world.name for world in shown]

    def bars(title: str, unit: str, *measures: Measure) -> Chart:
        series = [Series(measure.name, [measure.of(world.figures["total"]) for world in shown]) for measure in measures]
        return charts.bars(title, labels, series, unit, horizontal=True)

    people = [line.name for line in shares(shown, "people")]
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
                    Series(world.name, [world.figures["people"][name]["turnaround"]["mean"] for name in busiest])
                    for world in shown
                ],
                charts.SECONDS,
                horizontal=True,
                desc="" if len(people) <= MAX_BARS else f"The {MAX_BARS} who used the most GPU time.",
            )
        )
    return found
