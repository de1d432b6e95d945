"""The answer of a simulation in sentences: how long jobs would have waited, and who would have gained or lost.

A difference is mentioned if it is at least a minute and more than 5 % of the value under the policy in force; jobs that
start within a minute of each other start at the same time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from portal import charts
from portal.charts import Chart, Series
from portal.whatif.figures import SAME_START_SECONDS
from portal.whatif.report import MIN_CHANGE, Column

IDLE_UTILISATION = 0.5
MIN_JOBS = 3
"""Of a person or group with fewer compared jobs, nothing is concluded."""
MAX_NAMED = 5
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a policy would have meant for a person or a group: the change of the mean turnaround, in seconds."""

    name: str
    seconds: float

    @property
    def amount(self) -> str:
        return _rounded(abs(self.seconds))


@dataclass(frozen=True, slots=True)
class Side:
    """Those who gain, or those who lose, those with the largest change first."""

    effects: Sequence[Effect]

    @property
    def named(self) -> Sequence[Effect]:
        return self.effects[:MAX_NAMED]

    @property
    def more(self) -> int:
        return max(0, len(self.effects) - MAX_NAMED)


@dataclass(frozen=True, slots=True)
class PolicyStory:
    column: Column
    sentences: Sequence[str]
    gain: Side
    lose: Side


def is_worth_mentioning(value: float, base: float) -> bool:
    """Return whether a time differs enough from that under the policy in force to be mentioned."""
    return abs(value - base) >= SAME_START_SECONDS and abs(value - base) > MIN_CHANGE * base


def base_of(columns: Sequence[Column]) -> Column | None:
    """Return the policy in force, with which the others are compared; None when it could not decide."""
    return next((column for column in columns if column.in_force and column.figures), None)


def why_idle(columns: Sequence[Column]) -> str:
    """Return a sentence if the lab was too idle for a policy to matter, else an empty text."""
    simulated = [column.figures["total"] for column in columns if column.figures and column.knows]
    base = base_of(columns)
    if base is None or not simulated or any(each["waiting"]["p95"] >= SAME_START_SECONDS for each in simulated):
        return ""
    used = base.figures["total"]["utilisation"]
    waits = "under each of the policies, 95 % of the jobs would have started within a minute"
    if used >= IDLE_UTILISATION:
        return f"A policy hardly matters here: {waits}."
    return f"The lab was too idle for a policy to matter: {100 * used:.0f} % of its GPU time was used, and {waits}."


def stories_of(columns: Sequence[Column], error: float) -> list[PolicyStory]:
    """Return the story of each policy that is compared; ``error`` is the share by which the simulation is off."""
    base = base_of(columns)
    if base is None:
        return []
    others = [column for column in columns if column.knows and column.figures and not column.in_force]
    return [
        PolicyStory(
            column,
            list(_sentences(column, base, error)),
            Side(sorted(_effects(column, base, gain=True), key=lambda each: each.seconds)),
            Side(sorted(_effects(column, base, gain=False), key=lambda each: -each.seconds)),
        )
        for column in others
    ]


def _sentences(column: Column, base: Column, error: float) -> Iterable[str]:
    found, before = column.figures["total"], base.figures["total"]
    name, waits, waited = f"Under “{column.name}”", found["waiting"], before["waiting"]
    starts: Mapping[str, int] = column.figures.get("starts", {})
    if is_worth_mentioning(waits["p50"], waited["p50"]):
        yield (
            f"{name} the median job would have waited {_rounded(waits['p50'])} instead of {_rounded(waited['p50'])}."
        )
    elif is_worth_mentioning(waits["mean"], waited["mean"]):
        yield (
            f"{name} jobs would have waited {_rounded(waits['mean'])} on average instead of "
            f"{_rounded(waited['mean'])}; the median wait would have been about the same."
        )
    else:
        yield f"{name} the mean and the median wait would have been about the same."
    if starts.get("sooner") or starts.get("later"):
        yield _starts(starts)
    elif starts.get("same"):
        yield "All jobs would have started at about the same time."
    longest = waits.get("max"), waited.get("max")
    if None not in longest and is_worth_mentioning(*longest):
        verb = "grows" if longest[0] > longest[1] else "falls"
        yield f"The longest wait {verb} from {_rounded(longest[1])} to {_rounded(longest[0])}."
    ends, ended = found["turnaround"]["mean"], before["turnaround"]["mean"]
    if ended and is_worth_mentioning(ends, ended) and abs(ends / ended - 1) <= error:
        yield (
            f"The time from submission to end changes by {abs(round(100 * (ends / ended - 1)))} %, which is no more than "
            f"the error of the simulation: it is uncertain."
        )


def _rounded(seconds: float) -> str:
    """Return a time in whole minutes, whose number and unit stay on one line."""
    if seconds < SAME_START_SECONDS:
        return "less than a minute"
    return charts.format_value(60.0 * round(seconds / 60), charts.SECONDS).replace(" ", NO_BREAK)


def _starts(starts: Mapping[str, int]) -> str:
    sooner, later, same = starts["sooner"], starts["later"], starts["same"]
    first = f"{sooner:,} {'job' if sooner == 1 else 'jobs'} would have started sooner, {later:,} later"
    return f"{first} and {same:,} at about the same time." if same else f"{first}."


def _effects(column: Column, base: Column, *, gain: bool) -> Iterable[Effect]:
    for kind, word in (("people", ""), ("groups", "group ")):
        for name, found in column.figures[kind].items():
            before = base.figures[kind].get(name)
            if before is None or min(found["compared"], before["compared"]) < MIN_JOBS:
                continue
            after, was = found["turnaround"]["mean"], before["turnaround"]["mean"]
            if is_worth_mentioning(after, was) and (after < was) == gain:
                yield Effect(f"{word}{name}", after - was)


def daily_chart(columns: Sequence[Column], start: datetime) -> Chart | None:
    """Return the mean wait of the jobs submitted on each day, by policy; None for simulations without these figures."""
    shown = [column for column in columns if column.figures.get("daily")]
    if not shown or not any(value for column in shown for value in column.figures["daily"]):
        return None
    days = [start + timedelta(days=number + 0.5) for number in range(max(len(each.figures["daily"]) for each in shown))]
    series = [Series(column.name, column.figures["daily"]) for column in shown]
    desc = "Of the jobs submitted within each 24 hours of the simulated time."
    return charts.lines("Mean wait", days, series, charts.SECONDS, desc=desc, bridge_gaps=True)
