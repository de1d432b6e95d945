"""The lab's recent history: who held GPUs, how long programs ran, and how long they took to start and to resize.

A scheduler keeps one ``History`` as long as it leads, and reads only what is new. A fresh one reads everything and gives
the same answers. What is older than ``SETTLED_AFTER`` counts as settled: no transaction commits that long after its
timestamps.
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
from portal.jobs.rules import CHECKPOINTED_OUTCOMES
from portal.scheduler.throughput import MIN_REPORTS, ROWS_KEPT, Speeds, Steps, measured_speeds
from scheduling.toolkit import performance
from scheduling.toolkit.estimates import DEFAULT_EXPONENT
from scheduling.types import Curve, Estimate, Job

USAGE_DAYS = 30
PROGRAM_DAYS = 90
DAY = 86_400.0
SETTLED_AFTER = timedelta(minutes=10)
RUNS_KEPT = 50
"""Runs kept by key: the newest show how the program behaves now."""
MAX_CACHED_PROGRAMS = 4096
"""Cached results: they depend on the runs alone, so equal runs are not evaluated again in each cycle."""
DEFAULT_SPREAD = 0.5
"""The relative spread of a program's run lengths that is assumed after a single run."""

Item = TypeVar("Item")
Script = tuple[int, str, str]
"""Project, launcher and entry: the same program across code versions."""


class PastRun(NamedTuple):
    """A job that succeeded."""

    finished: datetime
    gpus: float
    """The mean number of GPUs."""
    seconds: float


class HeldGpus(NamedTuple):
    """GPUs held now by the jobs of one user, for one group (0: none), since a moment."""

    user: int
    group: int
    since: float
    gpus: int = 1
    """Times the share factor of their attempt."""


@dataclass
class History:
    """The lab's recent history (see above). Call ``refresh`` before reading it."""

    settled_until: datetime | None = None
    _held: NDArray[np.float64] = field(default_factory=lambda: np.empty((5, 0)))
    """Rows: user, group, GPUs times the share factor, from, to."""
    _held_recently: NDArray[np.float64] = field(default_factory=lambda: np.empty((5, 0)))
    _runs: "RecentItems[PastRun]" = field(default_factory=lambda: RecentItems())
    _startup_times: "RecentItems[tuple[datetime, float]]" = field(default_factory=lambda: RecentItems())
    _started_attempts: set[int] = field(default_factory=set)
    """Attempts whose first line of output is settled."""
    _resize_times: "RecentItems[tuple[datetime, float]]" = field(default_factory=lambda: RecentItems())
    _arguments: dict[Script, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The arguments with which each program was run."""
    _steps: dict[Script, dict[int, Steps]] = field(default_factory=lambda: defaultdict(dict))
    """By program, then by primary key."""
    new_jobs: dict[int, tuple[Hashable, Job]] = field(default_factory=dict)
    """Jobs that had no GPU yet in the last snapshot, with the facts they were made from: most of a long queue does not change."""

    def refresh(self, now: datetime) -> None:
        """Read what is new, in five queries."""
        since, settled_before = self.settled_until or now - timedelta(days=PROGRAM_DAYS), now - SETTLED_AFTER
        self._oldest = now - timedelta(days=PROGRAM_DAYS)
        try:
            self._refresh_holdings(since, settled_before, now)
            self._refresh_runs(since, settled_before)
            self._refresh_startup_times(since, settled_before)
            self._refresh_resize_times(since, settled_before)
            self._refresh_steps(since)
        except BaseException:
            self.__dict__.update(History().__dict__)  # a history that was read only in part would count things twice
            raise
        self.settled_until = max(since, settled_before)

    # Who held GPUs

    def _refresh_holdings(self, since: datetime, settled_before: datetime, now: datetime) -> None:
        first = max(since, now - timedelta(days=USAGE_DAYS))
        rows = (
            Allocation.objects.filter(released_at__gte=first)
            .values_list(
                "attempt__job__submitted_by",
                "attempt__job__group",
                "attempt__share_factor",
                "allocated_at",
                "released_at",
            )
            .annotate(gpus=Count("pk"))
            .order_by()
        )
        read = (
            np.array(
                [
                    (user, group or 0, factor * gpus, start.timestamp(), end.timestamp())
                    for user, group, factor, start, end, gpus in rows
                ]
            )
            .reshape(-1, 5)
            .T
        )
        old = read[4] < settled_before.timestamp()
        kept = self._held[:, self._held[4] >= now.timestamp() - USAGE_DAYS * DAY]
        self._held, self._held_recently = np.concatenate([kept, read[:, old]], axis=1), read[:, ~old]

    def gpu_seconds_by_day(self, holdings: Iterable[HeldGpus], now: float) -> dict[tuple[int, int], tuple[float, ...]]:
        """Return by (user, group) the GPU-seconds held in the last 24 hours, in the 24 before, and so on: 30 numbers.

        Each counts as often as the share factor of its attempt.
        """
        live = np.array([(user, group, gpus, since, now) for user, group, since, gpus in holdings]).reshape(-1, 5).T
        user, group, gpus, start, end = np.concatenate([self._held, self._held_recently, live], axis=1)
        if not len(user):
            return {}
        # Each pair as one complex number: ``unique`` sorts these ten times as fast as rows.
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

    def _refresh_runs(self, since: datetime, settled_before: datetime) -> None:
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
        for finished, script, arguments, people, run in _merge_attempts(rows):
            self._arguments[script].add(arguments)
            for key in ((script, arguments), script, people):
                self._runs.add(key, run, settled=finished < settled_before)

    def _recent_runs(self, key: Hashable) -> tuple[PastRun, ...]:
        known = self._runs.newest(key)
        if known and known[0].finished < self._oldest:  # they are in order
            known = [run for run in known if run.finished >= self._oldest]
        return tuple(known)

    def speeds(self, script: Script, max_gpus: int, gpus_per_node: int) -> Speeds:
        """Return the speeds of a program: from measured steps, else from runs with equal arguments on other GPU counts."""
        steps = [each for each in self._steps.get(script, {}).values() if each.at >= self._oldest]
        if measured := measured_speeds(steps, max_gpus, gpus_per_node):
            return measured
        by_arguments = (self._recent_runs((script, arguments)) for arguments in sorted(self._arguments.get(script, ())))
        return Speeds(_curve_from_runs(tuple(by_arguments), max_gpus))

    def max_gpus_used(self, script: Script) -> int:
        """Return the largest GPU count of the program's known runs; 1 when there are none."""
        return ceil(max((run.gpus for run in self._recent_runs(script)), default=1.0))

    def similar_runs(
        self, script: Script, arguments: str, people: tuple[int, int], curve: Curve | None
    ) -> "RuntimeSample":
        """Return the most similar runs: with equal arguments, else of the program, else of the same user and project.

        ``curve`` has the speeds of those runs, up to as many GPUs as they used (``max_gpus_used``).
        """
        for key in ((script, arguments), script, people):
            if runs := self._recent_runs(key):
                return _runtime_sample(runs, curve.speeds if curve and key != people else ())
        return RuntimeSample.of(())

    # How long steps take

    def _refresh_steps(self, since: datetime) -> None:
        job = ("attempt__job__project", "attempt__job__launcher", "attempt__job__entry")
        rows = StepStat.objects.filter(at__gte=since, reports__gte=MIN_REPORTS)
        for number, project, launcher, entry, *values in rows.values_list("pk", *job, *Steps._fields):
            self._steps[project, launcher, entry][number] = Steps(*values)
        for script, some in self._steps.items():
            if len(some) > 2 * ROWS_KEPT:  # a scheduler leads for months
                newest = sorted(some.items(), key=lambda item: item[1].at)[-ROWS_KEPT:]
                self._steps[script] = dict(newest)

    # How long programs take to start

    def _refresh_startup_times(self, since: datetime, settled_before: datetime) -> None:
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
        self._startup_times.clear_recent()
        for attempt, project, launcher, entry, placed, first in rows:
            if attempt in self._started_attempts:
                continue
            settled = first < settled_before
            if settled:
                self._started_attempts.add(attempt)
            for key in ((project, launcher, entry), None):
                self._startup_times.add(key, (first, (first - placed).total_seconds()), settled=settled)

    def startup_seconds(self, script: Script) -> float | None:
        """Return the seconds from placement to the first output: the program's median, else that of all programs.

        None when nothing is known.
        """
        return self._median(self._startup_times, script, None)

    # How long training pauses when a job's GPUs change

    def _refresh_resize_times(self, since: datetime, settled_before: datetime) -> None:
        job = ("driver__attempt__job__project", "driver__attempt__job__launcher", "driver__attempt__job__entry")
        rows = RankGroup.objects.filter(at__gte=since, cost_seconds__isnull=False).order_by("at", "pk")
        self._resize_times.clear_recent()
        for at, seconds, project, launcher, entry in rows.values_list("at", "cost_seconds", *job):
            for key in ((project, launcher, entry), launcher):
                self._resize_times.add(key, (at, seconds), settled=at < settled_before)

    def measured_resize_seconds(self, script: Script) -> float | None:
        """Return the seconds that a resize takes: the program's median, else its launcher's; None when unknown."""
        return self._median(self._resize_times, script, script[1])

    def _median(self, kept: "RecentItems[tuple[datetime, float]]", *keys: Hashable) -> float | None:
        for key in keys:
            if known := [seconds for at, seconds in kept.newest(key) if at >= self._oldest]:
                return round(median(known), 1)
        return None


class RecentItems(Generic[Item]):
    """The newest items by key; those that may still change are kept apart from the settled ones."""

    def __init__(self) -> None:
        self._settled: dict[Hashable, deque[Item]] = defaultdict(lambda: deque(maxlen=RUNS_KEPT))
        self._recent: dict[Hashable, list[Item]] = {}

    def clear_recent(self) -> None:
        self._recent = defaultdict(list)

    def add(self, key: Hashable, item: Item, *, settled: bool) -> None:
        (self._settled if settled else self._recent)[key].append(item)

    def newest(self, key: Hashable) -> list[Item]:
        return [*self._settled.get(key, ()), *self._recent.get(key, ())][-RUNS_KEPT:]


def _merge_attempts(
    rows: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[datetime, Script, str, tuple[int, int], PastRun]]:
    """Yield one run for each job from rows (job, finished, project, ..., outcome, GPU time, from, to) of its attempts.

    The rows are in the order of the attempts. The work of an attempt counts if the next one continued from it.
    """
    for _, group in groupby(rows, key=lambda row: row[0]):
        attempts = list(group)
        _, finished, project, launcher, entry, arguments, owner, resumable, *_ = attempts[-1]
        seconds = gpu_seconds = 0.0
        for *_, outcome, held, start, end in attempts:
            if held and (outcome == Outcome.SUCCEEDED or (resumable and outcome in CHECKPOINTED_OUTCOMES)):
                seconds += (end - start).total_seconds()
                gpu_seconds += held.total_seconds()
        if seconds > 0 and gpu_seconds > 0:
            run = PastRun(finished, max(1.0, gpu_seconds / seconds), seconds)
            yield finished, (project, launcher, entry), json.dumps(arguments), (owner, project), run


def speed_on(gpus: float, curve: Curve | None) -> float:
    """Return the speed on so many GPUs, interpolated linearly between whole numbers."""
    return float(_speeds(np.array([gpus]), curve.speeds if curve else ())[0])


def _speeds(gpus: NDArray[np.float64], speeds: Sequence[float]) -> NDArray[np.float64]:
    return np.interp(gpus, np.arange(1, len(speeds) + 1), speeds) if speeds else gpus**DEFAULT_EXPONENT


@lru_cache(MAX_CACHED_PROGRAMS)
def _curve_from_runs(groups: tuple[tuple[PastRun, ...], ...], max_gpus: int) -> Curve | None:
    return performance.curve_from_runs([[(run.gpus, run.seconds) for run in runs] for runs in groups], max_gpus)


@lru_cache(MAX_CACHED_PROGRAMS)
def _runtime_sample(runs: tuple[PastRun, ...], speeds: tuple[float, ...]) -> "RuntimeSample":
    gpus, seconds = np.array([(run.gpus, run.seconds) for run in runs]).T
    return RuntimeSample.of((seconds * _speeds(gpus, speeds)).tolist())


@dataclass(frozen=True)
class RuntimeSample:
    """The lengths of the runs that a job resembles."""

    lengths: tuple[float, ...]
    """Seconds on one GPU, the shortest first."""
    error: float
    """The relative error of their median as an estimate for another run."""

    @classmethod
    def of(cls, lengths: Iterable[float]) -> "RuntimeSample":
        known = tuple(sorted(lengths))
        spread = DEFAULT_SPREAD
        if len(known) > 1:
            logs = [log(length) for length in known]
            mean = sum(logs) / len(logs)
            spread = sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))
        return cls(known, max(0.05, spread * sqrt(1 + 1 / len(known))) if known else 0.0)

    def remaining(self, done: float) -> Estimate | None:
        """Estimate the work left after ``done`` seconds of it; None when there are no similar runs.

        It is the median of what the longer runs had left at that point; if none was longer, the usual spread.
        """
        if not self.lengths:
            return None
        longer = self.lengths[bisect_right(self.lengths, done) :]
        value = median(longer) - done if longer else max(1.0, self.error * done)
        return Estimate(round(value, 1), "history", round(min(5.0, self.error * (value + done) / value), 3))
