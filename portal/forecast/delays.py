"""Which waiting jobs would start later if a job ran longer, and what of that a user may see.

Two lines of futures are compared: in both the job runs until its time limit, which is raised in one of them. All other jobs
last equally long in both, so what differs is what the longer time would cost others if the job uses all of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db import transaction

from portal.accounts.models import User
from portal.forecast.futures import HORIZON_SECONDS, NEVER, Futures, simulate_futures
from portal.forecast.services import line_to_simulate, policy_and_snapshot
from portal.jobs.models import Job
from portal.jobs.occupancy import visible_job_ids
from portal.jobs.queue import may_see_queue
from portal.jobs.time_extensions.models import TimeExtension
from portal.jobs.time_extensions.services import Delays
from portal.user_slots import UserSlots
from scheduling import types
from scheduling.simulate import InvalidPlanError
from scheduling.toolkit import estimates
from scheduling.types import JobId, Policy, Snapshot

MAX_JOBS = 100
"""The first jobs of the queue are looked at."""
DRAWS = 5
FUTURES_SECONDS = 1.5
"""Time for each of the two lines of futures."""
MIN_DELAY_SECONDS = 120.0
MIN_DELAY_SHARE = 0.1
"""A start is later only by at least two minutes and this part of the wait: simulations of the distant future are coarser."""
USES_ALL = 1.5
"""The job has work for this many times its longer limit, so that the limit ends it in each future."""
MAX_CONCURRENT = 2
"""Comparisons at once in this process; each takes seconds of processor time."""
_slots = UserSlots(MAX_CONCURRENT)


@dataclass(frozen=True, slots=True)
class DelayedJob:
    """A waiting job that would start later, as one reader may see it."""

    seconds: int | None
    """How much later; None: no longer within the time that was simulated."""
    job: Job | None
    """None where the reader may see neither the job nor the queue."""
    visible: bool
    """The reader may see the job's project; otherwise show neither its number nor its name."""
    mine: bool

    @property
    def person(self) -> str:
        """Whose job it is; empty where the reader may not know that."""
        return self.job.submitted_by.username if self.job else ""


# --- computing ---------------------------------------------------------------------------------------------------


def delays_if_granted(job: Job, seconds: int, user: User) -> Delays | None:
    """Return whom more time for a job would delay at most; None when the scheduler cannot decide, no policy plan is valid, or the job is not simulated.

    Takes at most a few seconds, and must not be called in a transaction: no lock is held in the meantime. Raises BusyError
    when the user or too many others have one computed already.
    """
    with _slots.hold(user.pk):
        try:
            policy, seen = policy_and_snapshot()
            return compare(policy, seen, str(job.pk), seconds)
        except (ValueError, InvalidPlanError):
            return None


def compare(policy: Policy, seen: Snapshot, job: JobId, seconds: float) -> Delays | None:
    """Return which waiting jobs start later when the time limit of a job is raised by ``seconds``, in the order of the queue.

    None for a job that is not simulated: it is on hold, or waits behind too many others.
    """
    line, _, simulated = line_to_simulate(seen, MAX_JOBS)
    others = [each for each in line if each != job]
    at = datetime.fromtimestamp(seen.now, UTC)
    row = next((each for each in simulated.jobs if each.id == job), None)
    if row is None:
        return None
    if not others:
        return Delays((), at)
    as_is = _futures(policy, _with_limit(simulated, row, 0.0), others)
    granted = _futures(policy, _with_limit(simulated, row, seconds), others)
    until = min(as_is.until, granted.until)
    found = {each: _delay(as_is.starts[each], granted.starts[each], seen.now, until) for each in others}
    return Delays([(int(each), late) for each, late in found.items() if late != 0], at)


def _with_limit(snapshot: Snapshot, job: types.Job, more: float) -> Snapshot:
    """Return the snapshot in which the job may run longer, and has work until then."""
    limit = (job.longest_seconds or 0.0) + more
    left = max(0.0, (job.started_at or snapshot.now) + limit - snapshot.now)
    work = types.Estimate(USES_ALL * left * estimates.speed(job, max(job.gpus, job.max_gpus)))
    changed = replace(job, longest_seconds=limit, work=work)
    return replace(snapshot, jobs=tuple(changed if each.id == job.id else each for each in snapshot.jobs))


def _futures(policy: Policy, snapshot: Snapshot, jobs: Sequence[JobId]) -> Futures:
    return simulate_futures(
        policy,
        snapshot,
        jobs,
        draws=DRAWS,
        min_draws=DRAWS,
        horizon=HORIZON_SECONDS,
        seconds=FUTURES_SECONDS,
        with_bounds=False,
    )


def _delay(as_is: Sequence[float], granted: Sequence[float], now: float, until: float) -> int | None:
    """Return how much later a job starts in the middle one of its futures, rounded; 0 when not clearly later, None for never."""
    before, after = (sorted(at if at <= until else NEVER for at in row)[len(row) // 2] for row in (as_is, granted))
    if before == NEVER:
        return 0
    if after == NEVER:
        return None
    late = after - before
    return round(late / 60) * 60 if late >= max(MIN_DELAY_SECONDS, MIN_DELAY_SHARE * (before - now)) else 0


def renew(request: TimeExtension, user: User) -> bool:
    """Compute again whom a request would delay, and store that; return whether it could be computed. Raises BusyError."""
    found = delays_if_granted(request.job, request.seconds, user)
    if found is None:
        return False
    with transaction.atomic():
        open_request = TimeExtension.objects.filter(pk=request.pk, status=TimeExtension.Status.ASKED)
        open_request.update(delays=found.as_json(), delays_at=found.at)
    return True


# --- showing -----------------------------------------------------------------------------------------------------


def as_seen_by(user: User, requests: Iterable[TimeExtension]) -> Mapping[int, list[DelayedJob]]:
    """Return by request whom it would delay, as a user may see that; requests without a forecast are left out.

    The number of queries does not depend on how many there are.
    """
    found = {each.pk: each.delays for each in requests if each.delays is not None}
    shown = _seen(user, [(int(job), late) for rows in found.values() for job, late in rows])
    return {pk: [shown[int(job), late] for job, late in rows] for pk, rows in found.items()}


def seen_by(user: User, delays: Delays) -> list[DelayedJob]:
    """Return the jobs of a new comparison as a user may see them."""
    shown = _seen(user, delays.jobs)
    return [shown[each] for each in delays.jobs]


def _seen(user: User, delays: Sequence[tuple[int, int | None]]) -> dict[tuple[int, int | None], DelayedJob]:
    ids = {job for job, _ in delays}
    visible = visible_job_ids(user, ids) if ids else set()
    known = ids if ids and may_see_queue(user) else visible
    jobs = Job.objects.select_related("submitted_by", "project").in_bulk(known) if known else {}

    def show(pk: int, late: int | None) -> DelayedJob:
        job = jobs.get(pk)
        return DelayedJob(late, job, pk in visible, job is not None and job.submitted_by_id == user.pk)

    return {each: show(*each) for each in delays}


def longest(delays: Iterable[DelayedJob]) -> int | None:
    """Return the longest delay in seconds; None where a job would no longer start within the time that was simulated."""
    worst = max((math.inf if each.seconds is None else each.seconds for each in delays), default=0)
    return None if worst == math.inf else int(worst)
