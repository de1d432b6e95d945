"""What the lab has seen of late: who held GPUs, how long programs ran, how long they took to begin and to change.

A scheduler keeps one ``History`` as long as it leads, and reads only what came since. A fresh one reads everything and
says the same. What is older than ``STILL`` before now is taken as settled: nothing commits so much later than it says.
"""

import json
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from math import ceil, log, sqrt
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from django.db.models import Count, F, Max, Min, Sum
from numpy.typing import NDArray

from portal.jobs.models import Allocation, Attempt, JobState, LogStream, Outcome, StepStat
from portal.jobs.resize_timeline.models import RankGroup
from portal.jobs.rules import GOES_ON
from portal.scheduler.throughput import MIN_REPORTS, ROWS_KEPT, Speeds, Steps, measured_speeds
from scheduling.toolkit import performance
from scheduling.toolkit.estimates import DEFAULT_EXPONENT
from scheduling.types import Curve, Estimate, Job

USAGE_DAYS = 30
LEARNT_DAYS = 90
DAY = 86_400.0
STILL = timedelta(minutes=10)
RUNS_KEPT = 50
"""Of one kind: the newest tell how the program is now."""
PROGRAMS_REMEMBERED = 4096
"""What follows from runs follows from these alone: equal ones are not reckoned with again in each turn."""
UNKNOWN_SPREAD = 0.5
"""Relative, of a program's lengths when it ran once."""

Item = TypeVar("Item")
Script = tuple[int, str, str]
"""Project, launcher and entry: the same program across code versions."""


class PastRun(NamedTuple):
    """A job that succeeded."""

    finished: datetime
    gpus: float
    """On average."""
    seconds: float


class HeldGpus(NamedTuple):
    """GPUs held now by the jobs of one person, for one group (0: none), since a moment."""

    user: int
    group: int
    since: float
    gpus: int = 1


@dataclass
class History:
    """See above. Ask after ``refresh``."""

    settled_until: datetime | None = None
    _held: NDArray[np.float64] = field(default_factory=lambda: np.empty((5, 0)))
    """Rows: user, group, GPUs, from, to."""
    _held_recently: NDArray[np.float64] = field(default_factory=lambda: np.empty((5, 0)))
    _runs: "RecentItems[PastRun]" = field(default_factory=lambda: RecentItems())
    _begins: "RecentItems[tuple[datetime, float]]" = field(default_factory=lambda: RecentItems())
    _begun: set[int] = field(default_factory=set)
    """Attempts whose first line is among the settled."""
    _changes: "RecentItems[tuple[datetime, float]]" = field(default_factory=lambda: RecentItems())
    _groups: dict[Script, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The arguments that each program was run with."""
    _steps: dict[Script, dict[int, Steps]] = field(default_factory=lambda: defaultdict(dict))
    """By their rows' numbers."""
    new_jobs: dict[int, tuple[Hashable, Job]] = field(default_factory=dict)
    """Jobs that had no GPU yet in the last snapshot, and what they follow from: most of a long queue stays as it is."""

    def refresh(self, now: datetime) -> None:
        """Reads what came since, in five queries."""
        since, still = self.settled_until or now - timedelta(days=LEARNT_DAYS), now - STILL
        self._oldest = now - timedelta(days=LEARNT_DAYS)
        try:
            self._refresh_held(since, still, now)
            self._refresh_runs(since, still)
            self._refresh_begins(since, still)
            self._refresh_changes(since, still)
            self._refresh_steps(since)
        except BaseException:
            self.__dict__.update(History().__dict__)  # half read, it would count things twice
            raise
        self.settled_until = max(since, still)

    # Who held GPUs

    def _refresh_held(self, since: datetime, still: datetime, now: datetime) -> None:
        first = max(since, now - timedelta(days=USAGE_DAYS))
        rows = (
            Allocation.objects.filter(released_at__gte=first)
            .values_list("attempt__job__submitted_by", "attempt__job__group", "allocated_at", "released_at")
            .annotate(gpus=Count("pk"))
            .order_by()
        )
        read = (
            np.array(
                [(user, group or 0, gpus, start.timestamp(), end.timestamp()) for user, group, start, end, gpus in rows]
            )
            .reshape(-1, 5)
            .T
        )
        old = read[4] < still.timestamp()
        kept = self._held[:, self._held[4] >= now.timestamp() - USAGE_DAYS * DAY]
        self._held, self._held_recently = np.concatenate([kept, read[:, old]], axis=1), read[:, ~old]

    def used(self, holdings: Iterable[HeldGpus], now: float) -> dict[tuple[int, int], tuple[float, ...]]:
        """By (user, group): GPU-seconds held in the last 24 hours, in the 24 before, and so on for 30 days."""
        live = np.array([(user, group, gpus, since, now) for user, group, since, gpus in holdings]).reshape(-1, 5).T
        user, group, gpus, start, end = np.concatenate([self._held, self._held_recently, live], axis=1)
        if not len(user):
            return {}
        # Each pair as one complex number: ``unique`` sorts those ten times as fast as rows.
        pairs, place = np.unique(user + 1j * group, return_inverse=True)
        youngest, oldest = (np.clip((now - moment) / DAY, 0, USAGE_DAYS) for moment in (end, start))
        first = np.floor(youngest)
        total = np.zeros(len(pairs) * USAGE_DAYS)
        for later in range(USAGE_DAYS):
            day = first + later
            here = (day < oldest) & (day < USAGE_DAYS)
            if not here.any():
                break
            part = np.minimum(oldest[here], day[here] + 1) - np.maximum(youngest[here], day[here])
            slot = place[here] * USAGE_DAYS + day[here].astype(np.int64)
            total += np.bincount(slot, part * gpus[here] * DAY, len(total))
        days = np.round(total.reshape(len(pairs), USAGE_DAYS), 1).tolist()
        return {(int(pair.real), int(pair.imag)): tuple(row) for pair, row in zip(pairs.tolist(), days, strict=True)}

    # How long programs ran

    def _refresh_runs(self, since: datetime, still: datetime) -> None:
        rows = (
            Attempt.objects.filter(job__state=JobState.SUCCEEDED, job__finished_at__gte=since)
            .values_list(
                "job",
                "job__finished_at",
                "job__project",
                "job__launcher",
                "job__entry",
                "job__arguments",
                "job__submitted_by",
                "job__resumable",
                "outcome",
            )
            .annotate(
                seconds=Sum(F("allocations__released_at") - F("allocations__allocated_at")),
                first=Min("allocations__allocated_at"),
                last=Max("allocations__released_at"),
            )
            .order_by("job__finished_at", "job", "number")
        )
        self._runs.clear_recent()
        for finished, script, arguments, people, run in _runs_of(rows):
            self._groups[script].add(arguments)
            for key in ((script, arguments), script, people):
                self._runs.add(key, run, settled=finished < still)

    def _runs_like(self, key: Hashable) -> tuple[PastRun, ...]:
        known = self._runs.newest(key)
        if known and known[0].finished < self._oldest:  # they are in order
            known = [run for run in known if run.finished >= self._oldest]
        return tuple(known)

    def speeds(self, script: Script, max_gpus: int, gpus_per_node: int) -> Speeds:
        """From measured steps, else from runs of the program with equal arguments on different numbers of GPUs."""
        steps = [each for each in self._steps.get(script, {}).values() if each.at >= self._oldest]
        if measured := measured_speeds(steps, max_gpus, gpus_per_node):
            return measured
        by_arguments = (self._runs_like((script, arguments)) for arguments in sorted(self._groups.get(script, ())))
        return Speeds(_curve(tuple(by_arguments), max_gpus))

    def max_gpus_used(self, script: Script) -> int:
        """Of its runs that are known; 1 when there are none."""
        return ceil(max((run.gpus for run in self._runs_like(script)), default=1.0))

    def like(self, script: Script, arguments: str, people: tuple[int, int], curve: Curve | None) -> "RuntimeSample":
        """The most similar runs there are: with equal arguments, of the program, of the same person and project.

        ``curve`` says what those runs made of their GPUs, so it reaches as far as they did (``max_gpus_used``).
        """
        for key in ((script, arguments), script, people):
            if runs := self._runs_like(key):
                return _like(runs, curve.speeds if curve and key != people else ())
        return RuntimeSample.of(())

    # How long steps took

    def _refresh_steps(self, since: datetime) -> None:
        job = ("attempt__job__project", "attempt__job__launcher", "attempt__job__entry")
        rows = StepStat.objects.filter(at__gte=since, reports__gte=MIN_REPORTS)
        for number, project, launcher, entry, *values in rows.values_list("pk", *job, *Steps._fields):
            self._steps[project, launcher, entry][number] = Steps(*values)
        for script, some in self._steps.items():
            if len(some) > 2 * ROWS_KEPT:  # a scheduler leads for months
                newest = sorted(some.items(), key=lambda item: item[1].at)[-ROWS_KEPT:]
                self._steps[script] = dict(newest)

    # How long until the first line

    def _refresh_begins(self, since: datetime, still: datetime) -> None:
        rows = (
            LogStream.objects.filter(first_at__gte=since)
            .exclude(name="setup")
            .values_list(
                "container__attempt",
                "container__attempt__job__project",
                "container__attempt__job__launcher",
                "container__attempt__job__entry",
                "container__attempt__created_at",
            )
            .annotate(first=Min("first_at"))
            .order_by("first", "container__attempt")
        )
        self._begins.clear_recent()
        for attempt, project, launcher, entry, placed, first in rows:
            if attempt in self._begun:
                continue
            settled = first < still
            if settled:
                self._begun.add(attempt)
            for key in ((project, launcher, entry), None):
                self._begins.add(key, (first, (first - placed).total_seconds()), settled=settled)

    def begin_seconds(self, script: Script) -> float | None:
        """From being placed to its first line: the median of the program, else of all; None when nobody knows."""
        return self._median(self._begins, script, None)

    # How long it stands still when its GPUs change

    def _refresh_changes(self, since: datetime, still: datetime) -> None:
        job = ("driver__attempt__job__project", "driver__attempt__job__launcher", "driver__attempt__job__entry")
        rows = RankGroup.objects.filter(at__gte=since, cost_seconds__isnull=False).order_by("at", "pk")
        self._changes.clear_recent()
        for at, seconds, project, launcher, entry in rows.values_list("at", "cost_seconds", *job):
            for key in ((project, launcher, entry), launcher):
                self._changes.add(key, (at, seconds), settled=at < still)

    def change_seconds(self, script: Script) -> float | None:
        """The median of the program, else of all with its launcher; None when nobody knows."""
        return self._median(self._changes, script, script[1])

    def _median(self, kept: "RecentItems[tuple[datetime, float]]", *keys: Hashable) -> float | None:
        for key in keys:
            if known := [seconds for at, seconds in kept.newest(key) if at >= self._oldest]:
                return round(median(known), 1)
        return None


class RecentItems(Generic[Item]):
    """The newest items by key, those that may still change apart from the others."""

    def __init__(self) -> None:
        self._settled: dict[Hashable, deque[Item]] = defaultdict(lambda: deque(maxlen=RUNS_KEPT))
        self._recent: dict[Hashable, list[Item]] = {}

    def clear_recent(self) -> None:
        self._recent = defaultdict(list)

    def add(self, key: Hashable, item: Item, *, settled: bool) -> None:
        (self._settled if settled else self._recent)[key].append(item)

    def newest(self, key: Hashable) -> list[Item]:
        return [*self._settled.get(key, ()), *self._recent.get(key, ())][-RUNS_KEPT:]


def _runs_of(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[datetime, Script, str, tuple[int, int], PastRun]]:
    """One for each job of (job, finished, project, ..., outcome, GPU time, from, to) of its attempts in their order.

    What an attempt did counts if the next one went on from it.
    """
    for _, group in groupby(rows, key=lambda row: row[0]):
        attempts = list(group)
        _, finished, project, launcher, entry, arguments, owner, resumable, *_ = attempts[-1]
        seconds = gpu_seconds = 0.0
        for *_, outcome, held, start, end in attempts:
            if held and (outcome == Outcome.SUCCEEDED or (resumable and outcome in GOES_ON)):
                seconds += (end - start).total_seconds()
                gpu_seconds += held.total_seconds()
        if seconds > 0 and gpu_seconds > 0:
            run = PastRun(finished, max(1.0, gpu_seconds / seconds), seconds)
            yield finished, (project, launcher, entry), json.dumps(arguments), (owner, project), run


def speed_on(gpus: float, curve: Curve | None) -> float:
    """Between whole numbers of GPUs as a straight line."""
    return float(_speeds(np.array([gpus]), curve.speeds if curve else ())[0])


def _speeds(gpus: NDArray[np.float64], speeds: Sequence[float]) -> NDArray[np.float64]:
    return np.interp(gpus, np.arange(1, len(speeds) + 1), speeds) if speeds else gpus**DEFAULT_EXPONENT


@lru_cache(PROGRAMS_REMEMBERED)
def _curve(groups: tuple[tuple[PastRun, ...], ...], max_gpus: int) -> Curve | None:
    return performance.from_runs([[(run.gpus, run.seconds) for run in runs] for runs in groups], max_gpus)


@lru_cache(PROGRAMS_REMEMBERED)
def _like(runs: tuple[PastRun, ...], speeds: tuple[float, ...]) -> "RuntimeSample":
    gpus, seconds = np.array([(run.gpus, run.seconds) for run in runs]).T
    return RuntimeSample.of((seconds * _speeds(gpus, speeds)).tolist())


@dataclass(frozen=True)
class RuntimeSample:
    """How much work runs were that a job is like."""

    lengths: tuple[float, ...]
    """Seconds on one GPU, the shortest first."""
    error: float
    """Relative, of taking their median for another one."""

    @classmethod
    def of(cls, lengths: Iterable[float]) -> "RuntimeSample":
        known = tuple(sorted(lengths))
        spread = UNKNOWN_SPREAD
        if len(known) > 1:
            logs = [log(length) for length in known]
            mean = sum(logs) / len(logs)
            spread = sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))
        return cls(known, max(0.05, spread * sqrt(1 + 1 / len(known))) if known else 0.0)

    def remaining(self, done: float) -> Estimate | None:
        """What is left after ``done`` seconds of work; None when there are no such runs.

        Of those that were longer, the median of what they had left then; if none was, the usual difference of two.
        """
        if not self.lengths:
            return None
        longer = self.lengths[bisect_right(self.lengths, done) :]
        value = median(longer) - done if longer else max(1.0, self.error * done)
        return Estimate(round(value, 1), "history", round(min(5.0, self.error * (value + done) / value), 3))
