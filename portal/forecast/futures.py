"""When waiting jobs may get their GPUs: simulations of several futures from a snapshot, under the policy in force.

The length of a job is not known in advance. Each future draws another length for every job, as uncertain as its estimate;
the draws are spread evenly over the distribution (a Latin hypercube), so that 20 of them are as good as 100 independent
ones. All else is the simulator's: the same policy, the same checks, the same rules for releasing GPUs. Jobs that are
submitted later are not included.

For a job of which no similar one has run, no distribution is known either. Two further futures take the extremes: all such
jobs end at once, or only at their time limits. Where the start of a job depends on that, these two bound it, wider where the
draws of the other lengths go beyond.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple
from zlib import crc32

import numpy as np

from scheduling.simulate import Options, Submission, assumed, simulate
from scheduling.toolkit import estimates
from scheduling.types import Job, JobId, Plan, Policy, Snapshot

DRAWS = 20
MIN_DRAWS = 5
"""With fewer there is no useful range: each future may take no more than its share of the time for so many."""
HORIZON_SECONDS = 24 * 3600
SECONDS = 6.0
WINDOW_PARTS = (0.02, 0.05, 0.1)
"""Coarser simulation when time is short: an hour ahead, decisions are made every minute, every 3 or every 6 minutes."""
MAX_WINDOW_AFTER_SECONDS = 4 * 3600.0
"""Seconds after which the windows grow no further."""
MIN_ERROR = 0.1
"""The relative error assumed for a length that was given as certain."""
LOW, HIGH = 0.1, 0.9
AT_ONCE, AT_THE_LIMIT = 1e-6, 1e9
"""Factors of the assumed length of a job of unknown length, at the two extremes: it ends at once, or at its time limit."""
MIN_UNCERTAINTY_SECONDS = 300.0
UNCERTAIN_SHARE = 0.5
"""A start depends on unknown lengths if they move it by more than five minutes and by this part of the longest wait."""
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Futures:
    """The result of the simulations."""

    until: float
    """The moment that all futures reached."""
    starts: Mapping[JobId, tuple[float, ...]]
    """By job, its start in each future, sorted; infinite where it did not start until then."""
    draws: int
    bounds: Mapping[JobId, tuple[float, float]] = field(default_factory=dict)
    """The earliest and the latest start of the jobs whose start depends on unknown lengths."""
    kinds: Mapping[JobId, tuple[str, ...]] = field(default_factory=dict)
    """The kinds of GPUs on which jobs started, the most frequent one first, in a lab that has several."""

    def range_of(self, job: JobId) -> tuple[float, float]:
        """Return the range within which the job starts in 80 % of the futures, or within its bounds.

        The bounds are those of typical lengths of the other jobs, which the draws vary: the range has both.
        """
        starts = self.starts[job]
        last = len(starts) - 1
        low, high = starts[math.floor(LOW * last)], starts[math.ceil(HIGH * last)]
        least, most = self.bounds.get(job, (low, high))
        return min(low, least), max(high, most)


def simulate_futures(
    policy: Policy,
    snapshot: Snapshot,
    jobs: Collection[JobId],
    *,
    draws: int = DRAWS,
    min_draws: int = MIN_DRAWS,
    horizon: float = HORIZON_SECONDS,
    seconds: float = SECONDS,
    with_bounds: bool = True,
) -> Futures:
    """Simulate the futures of waiting jobs, as many and as far as there is time for.

    If time is short they become coarser the further ahead they are, else fewer, else shorter. Equal snapshots give equal
    futures as long as time suffices. Without ``with_bounds``, the extremes of unknown lengths are not simulated. Raises
    ``InvalidPlanError`` when the policy makes a plan that breaks a rule.
    """
    began = time.perf_counter()
    until = snapshot.now + horizon
    part = 0.0
    seen: list[_Future] = []
    lengths = {job.id: _length_factors(job, draws) for job in snapshot.jobs}
    unknown = {job.id for job in snapshot.jobs if job.work is None}
    extremes = (AT_ONCE, AT_THE_LIMIT) if unknown and with_bounds else ()
    for draw in _balanced_order(draws):
        spent = time.perf_counter() - began
        if len(seen) >= min_draws and spent + (1 + len(extremes)) * spent / len(seen) > seconds:
            break
        longer = {id: row[draw] for id, row in lengths.items()}
        if not seen:
            future = _simulate_one(policy, snapshot, jobs, longer, until, seconds / draws, 0.0)
            spent = time.perf_counter() - began
            if future.reached < until:
                part = _window_part(future.decisions * (seconds - spent) / spent / min_draws, until - snapshot.now)
        if seen or part:
            share = max(0.0, seconds - spent) / max(1, min_draws - len(seen))
            future = _simulate_one(policy, snapshot, jobs, longer, until, share, part)
        seen.append(future)
        until = min(until, future.reached)
    bounds = []
    for factor in extremes:
        longer = {id: factor if id in unknown else 1.0 for id in lengths}
        share = max(seconds - (time.perf_counter() - began), spent / len(seen))
        future = _simulate_one(policy, snapshot, jobs, longer, until, share, part)
        bounds.append(future.starts)
        until = min(until, future.reached)
    rows = {job: sorted(future.starts.get(job, NEVER) for future in seen) for job in jobs}
    known = {job: tuple(at if at <= until else NEVER for at in row) for job, row in rows.items()}
    bounds_of = _uncertain_starts(jobs, bounds, snapshot.now, until)
    return Futures(until, known, len(seen), bounds_of, _kinds_of_starts(snapshot, seen))


def _kinds_of_starts(snapshot: Snapshot, futures: Sequence["_Future"]) -> dict[JobId, tuple[str, ...]]:
    """Return the kinds of GPUs on which each job starts, the most frequent one first; none where there is only one."""
    if len({node.kind for node in snapshot.nodes}) < 2:
        return {}
    counts: dict[JobId, Counter[str]] = defaultdict(Counter)
    for future in futures:
        for job, kinds in future.kinds.items():
            counts[job].update(sorted(kinds))
    return {job: tuple(kind for kind, _ in count.most_common()) for job, count in counts.items()}


def _uncertain_starts(
    jobs: Collection[JobId], bounds: Sequence[Mapping[JobId, float]], now: float, until: float
) -> dict[JobId, tuple[float, float]]:
    """Return the bounds of the jobs whose start depends on unknown lengths.

    Under some policies a job starts later when others end sooner, so either extreme may be the earlier one.
    """
    found = {}
    for job in jobs if bounds else ():
        low, high = sorted(starts.get(job, NEVER) for starts in bounds)
        low, high = (at if at <= until else NEVER for at in (low, high))
        farthest = min(high, until)
        if low < high and farthest - low > max(MIN_UNCERTAINTY_SECONDS, UNCERTAIN_SHARE * (farthest - now)):
            found[job] = low, high
    return found


def _window_part(decisions: float, horizon: float) -> float:
    """Return the finest window part with which this many decisions are likely to reach the horizon."""

    def needed(part: float) -> float:
        growing = math.log(max(1.0, min(horizon, MAX_WINDOW_AFTER_SECONDS) / 60)) / part
        return growing + max(0.0, horizon - MAX_WINDOW_AFTER_SECONDS) / (part * MAX_WINDOW_AFTER_SECONDS)

    return next((part for part in WINDOW_PARTS if needed(part) <= decisions), WINDOW_PARTS[-1])


def _balanced_order(draws: int) -> list[int]:
    """Return every draw once, in an order whose first ones are balanced if there is no time for the rest."""
    return [int(draw) for draw in np.random.default_rng(draws).permutation(draws)]


def _length_factors(job: Job, draws: int) -> list[float]:
    """Return factors for the remaining length of a job: lognormal around the estimate, one for each quantile."""
    error = max(MIN_ERROR, estimates.work(job).error)
    sigma = math.sqrt(math.log(1 + error * error))
    normal = NormalDist()
    even = [math.exp(sigma * normal.inv_cdf((number + 0.5) / draws)) for number in range(draws)]
    return [even[place] for place in np.random.default_rng(crc32(job.id.encode())).permutation(draws)]


class _Future(NamedTuple):
    """The result of one simulation."""

    starts: Mapping[JobId, float]
    kinds: Mapping[JobId, Collection[str]]
    """The kinds of GPUs on which each of them starts."""
    reached: float
    """The moment up to which it was simulated."""
    decisions: int


class _StopSimulation(Exception):  # noqa: N818
    """Ends a simulation when all starts are known or the time is up."""


def _simulate_one(
    policy: Policy,
    snapshot: Snapshot,
    jobs: Collection[JobId],
    longer: Mapping[JobId, float],
    until: float,
    seconds: float,
    part: float,
) -> _Future:
    kinds: dict[JobId, set[str]] = {}
    kind_of = {node.id: node.kind for node in snapshot.nodes}
    deadline = time.perf_counter() + seconds
    waiting, starts, reached, decisions = set(jobs), dict[JobId, float](), until, 0

    def look(seen: Snapshot, plan: Plan) -> None:
        nonlocal reached, decisions
        decisions += 1
        for job in [job for job in waiting if any(plan.target.get(job, {}).values())]:
            starts[job] = seen.now
            kinds[job] = {kind_of[node] for node, gpus in plan.target[job].items() if gpus}
            waiting.discard(job)
        if not waiting:
            raise _StopSimulation
        if time.perf_counter() > deadline:
            reached = seen.now
            raise _StopSimulation

    try:
        simulate(
            policy,
            snapshot.nodes,
            [Submission(job, assumed(job, longer=longer[job.id])) for job in snapshot.jobs],
            now=snapshot.now,
            limits=snapshot.limits,
            accounts=snapshot.accounts,
            reservations=snapshot.reservations,
            options=Options(
                state=snapshot.state,
                until=until,
                patience_seconds=snapshot.patience_seconds,
                damping_seconds=snapshot.damping_seconds,
                window_part=part,
                max_window_seconds=part * MAX_WINDOW_AFTER_SECONDS,
            ),
            on_turn=look,
        )
    except _StopSimulation:
        pass
    return _Future(starts, kinds, reached, decisions)
