"""Curves from the reports of trainings, reduced to a few hundred points to be drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from django.db.models import Avg, F, Max, Min

from portal import charts
from portal.charts import Chart, Series
from portal.jobs.metrics import BATCH, LOSS, RANK_COLUMNS, THROUGHPUT, seconds_left
from portal.jobs.models import MetricPoint, Progress

BINS = 200
MAX_CURVES = 24
MAX_RANKS = 32
"""The maximum number of bars in a chart; of more ranks, the slowest are shown."""
FIRST_NAMES = (LOSS, THROUGHPUT)
SMOOTHING = {"none": 0.0, "some": 0.6, "much": 0.9}
"""The weight of the mean so far against the next value."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of one job: the mean value at each step of the grid, None where nothing was reported."""

    job: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one metric of one or more jobs, over a common grid of steps."""

    name: str
    steps: tuple[int, ...]
    per_job: tuple[Curve, ...]


def curve_names(jobs: Sequence[int]) -> list[str]:
    """Return at most ``MAX_CURVES`` names of curves: those of the library first, then by name."""
    names = MetricPoint.objects.filter(attempt__job__in=jobs).order_by("name").values_list("name", flat=True).distinct()
    known = list(names[: 2 * MAX_CURVES])
    return [*(name for name in FIRST_NAMES if name in known), *(name for name in known if name not in FIRST_NAMES)][
        :MAX_CURVES
    ]


def curves(jobs: Sequence[int], names: Sequence[str]) -> list[Curves]:
    """Read curves in two queries. The last value counts of a step that was repeated after work was lost."""
    points = MetricPoint.objects.filter(attempt__job__in=jobs, name__in=names)
    ends = {row["name"]: row for row in points.values("name").order_by().annotate(low=Min("step"), high=Max("step"))}
    if not ends:
        return []
    low, high = min(row["low"] for row in ends.values()), max(row["high"] for row in ends.values())
    width = -(-(high - low + 1) // BINS)
    rows = points.annotate(bin=(F("step") - low) / width).values("name", "attempt__job", "attempt__number", "bin")
    found: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows.annotate(mean=Avg("value")).order_by("attempt__number"):
        found.setdefault(row["name"], {}).setdefault(row["attempt__job"], {})[row["bin"]] = row["mean"]
    return [_curves_on_grid(name, found[name], low, width) for name in names if name in found]


def _curves_on_grid(name: str, by_job: Mapping[int, Mapping[int, float]], low: int, width: int) -> Curves:
    bins = sorted({each for values in by_job.values() for each in values})
    per_job = tuple(Curve(job, tuple(values.get(each) for each in bins)) for job, values in sorted(by_job.items()))
    return Curves(name, tuple(low + each * width for each in bins), per_job)


def smooth(values: Sequence[float | None], keep: float) -> list[float | None]:
    """Return the exponential moving average, corrected for its bias to zero at the beginning."""
    mean, weight, found = 0.0, 0.0, list[float | None]()
    for value in values:
        if value is not None:
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        found.append(None if value is None else mean / weight)
    return found


def metric_charts(all_curves: Sequence[Curves], smoothing: str, job_names: Mapping[int, str]) -> list[Chart]:
    """Return a chart for each metric, with a line for each job; ``job_names`` has the names of jobs for the legend.

    A batch size that never changes has no chart: it is shown as a number.
    """
    keep = SMOOTHING.get(smoothing, 0.0)
    drawn = []
    for curve in all_curves:
        if curve.name == BATCH and len({value for one in curve.per_job for value in one.values} - {None}) == 1:
            continue
        lines = [
            Series(job_names.get(one.job, f"#{one.job}"), [_rounded(value) for value in smooth(one.values, keep)])
            for one in curve.per_job
        ]
        drawn.append(charts.lines(curve.name, curve.steps, lines, desc=_desc(curve), bridge_gaps=True))
    return drawn


def _desc(curves: Curves) -> str:
    last = next((value for value in reversed(curves.per_job[0].values) if value is not None), None)
    return f"Over steps; {charts.format_value(_rounded(last))} at last." if len(curves.per_job) == 1 else "Over steps."


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# --- progress, remaining time, and slow ranks ---------------------------------------------------------------------


def remaining_seconds(progress: Progress) -> float | None:
    """Return the remaining seconds at the speed of the last steps; None if the progress is not reported."""
    if not progress.done or not progress.step_seconds:
        return None
    return seconds_left(progress.done, progress.step, progress.batch, progress.total, progress.step_seconds)


@dataclass(frozen=True, slots=True)
class Rank:
    number: int
    samples: float
    computing: float
    waiting: float
    expected: float | None
    error: float | None


def ranks_of(progress: Progress) -> list[Rank]:
    """Return the ranks, the slowest first."""
    columns = [progress.per_rank.get(name, []) for name in RANK_COLUMNS]
    rows = enumerate(zip_longest(*columns))
    ranks = [Rank(number, row[0] or 0, row[1] or 0, row[2] or 0, row[3], row[4]) for number, row in rows]
    return sorted(ranks, key=lambda rank: (-rank.computing, rank.number))


def rank_chart(ranks: Sequence[Rank]) -> Chart | None:
    """Return a chart of computing and waiting for each rank: the others wait for the one that waits least.

    None for a single rank.
    """
    if len(ranks) < 2:
        return None
    some = sorted(ranks[:MAX_RANKS], key=lambda rank: rank.number)
    predicted = [_rounded(rank.expected * 1000) if rank.expected else None for rank in some]
    return charts.bars(
        "A step, rank by rank",
        [_rank_label(rank) for rank in some],
        [
            Series("computing", [_rounded(rank.computing * 1000) for rank in some]),
            Series("waiting and updating", [_rounded(rank.waiting * 1000) for rank in some], "idle"),
        ],
        "ms",
        stacked=True,
        horizontal=True,
        mark=Series("predicted", predicted) if any(predicted) else None,
        desc=_comparison(ranks[0], ranks[-1]),
    )


def _comparison(slowest: Rank, fastest: Rank) -> str:
    if not fastest.computing:
        return f"Rank {slowest.number} computes longest."
    ratio = round(slowest.computing / fastest.computing, 1)
    if ratio == 1:
        return "All ranks compute for about the same time."
    return (
        f"Rank {slowest.number} computes longest, {charts.format_number(ratio)} times as long as rank {fastest.number}."
    )


def _rank_label(rank: Rank) -> str:
    about = f"rank {rank.number}: {charts.format_number(rank.samples)} samples"
    if rank.expected:
        about += f", predicted {charts.format_value(_rounded(rank.expected * 1000), 'ms')}"
        about += f" ± {charts.format_number(round(100 * (rank.error or 0)))} %"
    return about
