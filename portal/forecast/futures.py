"""When waiting jobs may get their GPUs: the policy in force lives on from a snapshot, in several futures.

Nobody knows how long a job takes. Each future draws another length for every job, as uncertain as its estimate is; the
draws are spread evenly over what is likely (a Latin hypercube), so that 20 tell what 100 loose ones would. All else is
the simulator's: the same policy, the same check, the same rules of giving back. Jobs that come later are not foreseen.
"""

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from zlib import crc32

import numpy as np

from scheduling.simulate import Options, Submission, assumed, simulate
from scheduling.toolkit import estimates
from scheduling.types import Job, JobId, Plan, Policy, Snapshot

DRAWS = 20
LEAST_DRAWS = 5
"""With fewer there is no range to speak of: each future may take no more than its share of the time for so many."""
HORIZON_SECONDS = 24 * 3600
SECONDS = 6.0
WINDOW_PARTS = (0.02, 0.05, 0.1)
"""Where there is no time to be exact in all futures: what lies an hour ahead is decided to the minute, to three, to six."""
WIDEST_AFTER = 4 * 3600.0
"""From then on the windows grow no more."""
LEAST_ERROR = 0.1
"""Of a length that somebody was sure of."""
LOW, HIGH = 0.1, 0.9
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Futures:
    until: float
    """All futures reached this moment."""
    starts: Mapping[JobId, tuple[float, ...]]
    """By job one moment for each future, sorted; infinite where it did not start until then."""
    draws: int

    def range_of(self, job: JobId) -> tuple[float, float]:
        """In 80 % of the futures it starts within this range."""
        starts = self.starts[job]
        last = len(starts) - 1
        return starts[math.floor(LOW * last)], starts[math.ceil(HIGH * last)]


def live_on(
    policy: Policy,
    snapshot: Snapshot,
    jobs: Collection[JobId],
    *,
    draws: int = DRAWS,
    least_draws: int = LEAST_DRAWS,
    horizon: float = HORIZON_SECONDS,
    seconds: float = SECONDS,
) -> Futures:
    """The futures of waiting jobs, as many and as far as there is time for: exact ones; or else coarser the further
    ahead; or else fewer; or else not so far. Equal snapshots give equal futures as long as time suffices.
    Raises ``Refused`` when the policy makes a plan that breaks a rule."""
    began = time.perf_counter()
    until = snapshot.now + horizon
    part = 0.0
    seen: list[Mapping[JobId, float]] = []
    lengths = {job.id: _lengths(job, draws) for job in snapshot.jobs}
    for draw in _spread_out(draws):
        spent = time.perf_counter() - began
        if len(seen) >= least_draws and spent + spent / len(seen) > seconds:
            break
        longer = {id: row[draw] for id, row in lengths.items()}
        if not seen:
            starts, reached, turns = _one(policy, snapshot, jobs, longer, until, seconds / draws, 0.0)
            spent = time.perf_counter() - began
            if reached < until:
                part = _coarse(turns * (seconds - spent) / spent / least_draws, until - snapshot.now)
        if seen or part:
            share = max(0.0, seconds - spent) / max(1, least_draws - len(seen))
            starts, reached, _ = _one(policy, snapshot, jobs, longer, until, share, part)
        seen.append(starts)
        until = min(until, reached)
    rows = {job: sorted(starts.get(job, NEVER) for starts in seen) for job in jobs}
    known = {job: tuple(at if at <= until else NEVER for at in row) for job, row in rows.items()}
    return Futures(until, known, len(seen))


def _coarse(turns: float, horizon: float) -> float:
    """The least coarse part with which so many turns are likely to reach the horizon."""

    def needed(part: float) -> float:
        growing = math.log(max(1.0, min(horizon, WIDEST_AFTER) / 60)) / part
        return growing + max(0.0, horizon - WIDEST_AFTER) / (part * WIDEST_AFTER)

    return next((part for part in WINDOW_PARTS if needed(part) <= turns), WINDOW_PARTS[-1])


def _spread_out(draws: int) -> list[int]:
    """Each draw once; those done first do not lean to one side, should there be no time for the rest."""
    return [int(draw) for draw in np.random.default_rng(draws).permutation(draws)]


def _lengths(job: Job, draws: int) -> list[float]:
    """Factors on what is left of it: lognormal around the estimate, each part of the distribution once."""
    error = max(LEAST_ERROR, estimates.work(job).error)
    sigma = math.sqrt(math.log(1 + error * error))
    normal = NormalDist()
    even = [math.exp(sigma * normal.inv_cdf((number + 0.5) / draws)) for number in range(draws)]
    return [even[place] for place in np.random.default_rng(crc32(job.id.encode())).permutation(draws)]


class _StopSimulation(Exception):  # noqa: N818
    """All that was asked is known, or the time is up."""


def _one(
    policy: Policy,
    snapshot: Snapshot,
    jobs: Collection[JobId],
    longer: Mapping[JobId, float],
    until: float,
    seconds: float,
    part: float,
) -> tuple[dict[JobId, float], float, int]:
    """When each job starts in one future, how far that was looked at, and in how many turns."""
    deadline = time.perf_counter() + seconds
    waiting, starts, reached, turns = set(jobs), dict[JobId, float](), until, 0

    def look(seen: Snapshot, plan: Plan) -> None:
        nonlocal reached, turns
        turns += 1
        for job in [job for job in waiting if any(plan.target.get(job, {}).values())]:
            starts[job] = seen.now
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
                most_window_seconds=part * WIDEST_AFTER,
            ),
            on_turn=look,
        )
    except _StopSimulation:
        pass
    return starts, reached, turns
