"""The lab's past, as input of simulations and as it really was.

Each job is submitted when it was, asks for what it asked for, and has the work that it turned out to have: the time that
its attempts trained, on so many GPUs, weighted by the speed curve that the portal knows for its program. Attempts that
failed count (they would fail again); attempts that were stopped count if the next one resumed from them; attempts that
were lost with a node do not count: in the simulation nodes come and go as they did.

What is unknown is assumed: a job that was cancelled, or has not ended yet, runs half as long again or as long as others of
its program, and is not compared. Policies get what the lab knows about its programs today, never a job's real length.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from django.db.models import Count, Min, Q, QuerySet

from portal.accounts.models import User
from portal.cluster.models import Gpu, Node
from portal.cluster.pools import GpuCount, Pool, PoolId, is_part_of_gpu, pool_id, pools_of, pools_on
from portal.environments.models import NodeEnvironment
from portal.jobs.models import Allocation, Attempt, Job, JobEvent, JobState, Outcome
from portal.jobs.rules import CHECKPOINTED_OUTCOMES
from portal.scheduler import snapshot as snapshots
from portal.scheduler.job_history import History
from portal.scheduler.resource_use import with_shares
from portal.scheduler.snapshot import Row
from portal.usage.models import CapacitySpell
from scheduling import types
from scheduling.simulate import Loss, Plain, Submission, lasts, linear
from scheduling.toolkit.estimates import DEFAULT_EXPONENT

ENDED_BY_THEMSELVES = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""Attempts that ended by themselves: under any policy they would have had that much work."""
UNKNOWN_END_FACTOR = 1.5
"""The assumed total work of a job whose end is unknown, as a factor on the work it has done."""
MIN_WORK = 60.0


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU that an attempt held. Times are in seconds since the epoch."""

    node: PoolId
    part: int
    since: float
    asked_back: float | None
    until: float | None


@dataclass(slots=True)
class PastAttempt:
    """An attempt of a past job."""

    created: float
    started: float | None
    ended: float | None
    outcome: str
    held: list[HeldGpu] = field(default_factory=list)

    def training_spans(self, until: float) -> Iterator[tuple[float, float, int]]:
        """Yield (from, to, GPUs) of its training: after its start, on GPUs that were not requested back."""
        first = self.started if self.started is not None else self.ended or until
        ends = [min(x for x in (gpu.asked_back, gpu.until, until) if x is not None) for gpu in self.held]
        spans = [(max(first, gpu.since), end) for gpu, end in zip(self.held, ends, strict=True)]
        edges = sorted({edge for start, end in spans if end > start for edge in (start, end)})
        for start, end in zip(edges, edges[1:], strict=False):
            gpus = sum(since <= start and until_ >= end for since, until_ in spans)
            if gpus:
                yield start, end, gpus

    def has_useful_work(self, resumable: bool) -> bool:
        """Return whether its work counts, because no later attempt repeated it."""
        if self.outcome in CHECKPOINTED_OUTCOMES:
            return resumable
        return self.outcome not in (Outcome.LOST, Outcome.ERROR)


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job of the past: the input of the simulation, and what really happened to it."""

    submission: Submission
    owner: str
    group: str
    ended: float | None
    first_started: float | None
    gpu_seconds: float
    """GPU time held within the window."""
    lost_gpu_seconds: float
    """The part of it without useful work: while it started and stopped, and work lost when it was stopped or lost."""
    preemptions: int
    restarts: int
    resizes: int
    compared: bool
    """Whether it ended by itself, so that turnaround and waiting time can be compared."""


@dataclass(frozen=True, slots=True)
class World:
    """The input of a simulation, and what its result is compared with."""

    start: float
    end: float
    nodes: Sequence[types.Node]
    losses: Sequence[Loss]
    capacity_gpu_seconds: float
    """GPU time that nodes offered within the window."""
    jobs: Sequence[PastJob]
    limits: Sequence[types.Limit]
    accounts: Sequence[types.Account]
    reservations: Sequence[types.Reservation]


class JobRow(NamedTuple):
    """The columns that are read of a job, with those that a policy sees in ``row``."""

    row: Row
    state: str
    intent: str
    finished_at: datetime | None


def read(start: datetime, end: datetime) -> World:
    """Read the lab's past between two moments, in a constant number of queries."""
    found = [
        JobRow(Row.of(values[: len(Row._fields)]), *values[len(Row._fields) :])
        for values in _jobs(start, end).values_list(*Row._fields, "state", "intent", "finished_at")
    ]
    pools = _read_pools()
    attempts = _attempts_of(start, end, {pool.id for there in pools.values() for pool in there})
    on_hold = _read_holds(start, end)
    came = {each.row.id: _waiting_since(each, attempts[each.row.id], on_hold[each.row.id]) for each in found}
    rows = [each.row._replace(submitted_at=came[each.row.id], ready_at=None) for each in found]
    past = snapshots.past_snapshot(rows, start, History(), pools)
    names = dict(User.objects.filter(pk__in={row.submitted_by_id for row in rows}).values_list("pk", "username"))
    prepared = _read_ready_nodes(pools)
    window = (start.timestamp(), end.timestamp())
    jobs = []
    for each, job in zip(found, past.jobs, strict=True):
        where = prepared.nodes.get(each.row.environment_id, frozenset())
        one = _past_job(each, job, attempts[each.row.id], where, prepared, on_hold[each.row.id], window)
        if one is not None:
            jobs.append(replace(one, owner=names.get(each.row.submitted_by_id, "")))
    nodes, losses, capacity = _nodes(*window, jobs, pools)
    if any(each.submission.job.has_demands for each in jobs):
        nodes = with_shares(nodes)
    known = frozenset(node.id for node in nodes)
    jobs = [_restrict_nodes(each, known) for each in jobs]
    reservations = tuple(each for each in past.reservations if each.node in known)
    return World(*window, nodes, losses, capacity, jobs, past.limits, past.accounts, reservations)


def _restrict_nodes(each: PastJob, known: frozenset[str]) -> PastJob:
    """Restrict the nodes of a job to those that exist in the simulation."""
    job = each.submission.job
    nodes = None if job.nodes is None else (job.nodes & known) or None
    return replace(each, submission=replace(each.submission, job=replace(job, nodes=nodes)))


def _jobs(start: datetime, end: datetime) -> QuerySet[Job]:
    there = Job.objects.filter(submitted_at__lt=end).filter(Q(finished_at=None) | Q(finished_at__gt=start))
    # Jobs that never left the wait for another one have wanted no GPUs.
    return there.filter(Q(after=None) | Q(ready_at__lt=end)).order_by("submitted_at", "pk")


def _attempts_of(start: datetime, end: datetime, pools: Collection[PoolId]) -> Mapping[int, list[PastAttempt]]:
    jobs = _jobs(start, end).order_by().values("pk")
    found: dict[int, list[PastAttempt]] = defaultdict(list)
    by_pk: dict[int, PastAttempt] = {}
    attempts = Attempt.objects.filter(job__in=jobs).order_by("job", "number")
    for pk, job, created, started, ended, outcome in attempts.values_list(
        "pk", "job", "created_at", "started_at", "ended_at", "outcome"
    ):
        by_pk[pk] = PastAttempt(created.timestamp(), _to_timestamp(started), _to_timestamp(ended), outcome)
        found[job].append(by_pk[pk])
    held = Allocation.objects.filter(attempt__job__in=jobs).order_by("pk")
    for attempt, node, model, part, since, asked_back, until in held.values_list(
        "attempt", "gpu__node", "gpu__model", "container__index", "allocated_at", "requested_back_at", "released_at"
    ):
        if attempt in by_pk:
            pool = pool_id(node, model, pools)
            by_pk[attempt].held.append(
                HeldGpu(pool, part, since.timestamp(), _to_timestamp(asked_back), _to_timestamp(until))
            )
    return found


def _read_holds(start: datetime, end: datetime) -> Mapping[int, list[tuple[float, bool]]]:
    """Return by job when it was put on hold (True) and released (False)."""
    found: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    events = JobEvent.objects.filter(job__in=_jobs(start, end).order_by().values("pk"), kind__in=["held", "released"])
    for job, at, kind in events.order_by("job", "seq").values_list("job", "at", "kind"):
        found[job].append((at.timestamp(), kind == "held"))
    return found


def _waiting_since(each: JobRow, attempts: Sequence[PastAttempt], on_hold: Sequence[tuple[float, bool]]) -> datetime:
    """Return when a job began to wait for GPUs: at its submission or when the job before it had succeeded, or when it was
    released before it first had GPUs."""
    first = attempts[0].created if attempts else float("inf")
    released = [at for at, held in on_hold if not held and at <= first]
    began = each.row.ready_at or each.row.submitted_at
    return max(began, datetime.fromtimestamp(released[-1], began.tzinfo)) if released else began


class ReadyNodes(NamedTuple):
    nodes: Mapping[int, frozenset[str]]
    """By environment, the nodes on which it is ready."""
    out_of_reach: frozenset[str]


def _read_ready_nodes(pools: Mapping[int, Sequence[Pool]]) -> ReadyNodes:
    ready: dict[int, set[PoolId]] = defaultdict(set)
    unreachable: set[PoolId] = set()
    rows = NodeEnvironment.objects.filter(state=NodeEnvironment.State.READY)
    for environment, node, facts in rows.values_list("environment", "node", "node__facts"):
        there = pools_on([node], pools)
        ready[environment] |= there
        if not facts.get("ring_address"):
            unreachable |= there
    return ReadyNodes({key: frozenset(nodes) for key, nodes in ready.items()}, frozenset(unreachable))


def _read_pools() -> dict[int, list[Pool]]:
    """Return the pools of all nodes with the GPUs that they ever had: which were there when is in ``CapacitySpell``."""
    rows = Gpu.objects.order_by().values_list("node", "model")
    return pools_of(map(GpuCount._make, rows.annotate(gpus=Count("pk"), memory=Min("memory_mib"))))


# --- one job -----------------------------------------------------------------------------------------------------


def _past_job(
    each: JobRow,
    job: types.Job,
    attempts: Sequence[PastAttempt],
    ready: frozenset[str],
    prepared: ReadyNodes,
    on_hold: Sequence[tuple[float, bool]],
    window: tuple[float, float],
) -> PastJob | None:
    """Return the past job; None for one that wanted no GPUs in the window."""
    start, end = window
    row, attempts = each.row, [one for one in attempts if one.created < end]
    over = each.finished_at is not None and each.finished_at.timestamp() <= end
    wanted = over or each.intent == Job.Intent.RUN or each.state == JobState.RUNNING
    if not wanted and not attempts:
        return None
    curve = job.speed or linear(job.max_gpus, DEFAULT_EXPONENT)
    done = _useful_work(attempts, curve, row.resumable, end)
    before = _useful_work(attempts, curve, row.resumable, start)
    ended_itself = over and each.state in (JobState.SUCCEEDED, JobState.FAILED)
    if ended_itself and done <= 0:
        return None  # it never trained: the lab was at fault
    gave_up = None
    total = done
    if not ended_itself:
        known = job.work.value if job.work else 0.0
        if over or not wanted:
            gave_up = each.finished_at.timestamp() if each.finished_at else max(one.ended or end for one in attempts)
            if gave_up <= start:
                return None
        alone = lasts(row.time_limit_seconds, job.min_gpus, curve).work
        total = max(known, UNKNOWN_END_FACTOR * done, MIN_WORK) if known or done else alone
    first = min((gpu.since for one in attempts for gpu in one.held), default=None)
    used = frozenset(gpu.node for one in attempts for gpu in one.held)
    several = any(len({gpu.node for gpu in one.held}) > 1 for one in attempts)
    nodes = ready | used
    begins = next((one.started - one.created for one in attempts if one.started is not None), 0.0)
    # Each of its attempts had this time limit; a job that ended by itself is not cut off because it gets fewer GPUs.
    longest = float(row.time_limit_seconds * max(1, sum(one.outcome in ENDED_BY_THEMSELVES for one in attempts)))
    if ended_itself:
        longest = max(longest, 1.1 * total / lasts(1.0, job.min_gpus, curve).work + begins + MIN_WORK)
    job = replace(
        _job_at_start(job, attempts, start),
        nodes=nodes or None,
        spread=job.spread and (several or prepared.out_of_reach.isdisjoint(nodes)),
        longest_seconds=longest,
        work=job.work and replace(job.work, value=max(1.0, job.work.value - before)),
    )
    held_after = any(held and first is not None and at >= first for at, held in on_hold)
    return PastJob(
        submission=Submission(
            job,
            Plain(total, curve, done=min(1.0, before / total), knowledge="none"),
            start_seconds=max(0.0, begins),
            checkpoint_seconds=None if row.resumable else float("inf"),
            cancelled_at=gave_up,
        ),
        owner="",
        group=job.group.removeprefix("group "),
        ended=each.finished_at.timestamp() if over and each.finished_at else None,
        first_started=first,
        gpu_seconds=sum(_held_gpu_seconds(one, start, end) for one in attempts),
        lost_gpu_seconds=sum(_lost_gpu_seconds(one, row.resumable, start, end) for one in attempts),
        preemptions=sum(one.outcome == Outcome.PREEMPTED and start < (one.ended or end) <= end for one in attempts),
        restarts=sum(one.created >= start for one in attempts[1:]),
        resizes=sum(_count_resizes(one, start, end) for one in attempts),
        compared=ended_itself and not held_after,
    )


def _job_at_start(job: types.Job, attempts: Sequence[PastAttempt], start: float) -> types.Job:
    """Return the job as it was when the window began, with the part of it that had already run."""
    earlier = [one for one in attempts if one.created < start]
    if not earlier:
        return job
    held = [gpu for one in earlier for gpu in one.held if gpu.since < start]
    last = earlier[-1]
    running = [gpu for gpu in last.held if gpu.since < start and min(_release_times(gpu)) > start]
    now_on: dict[str, int] = defaultdict(int)
    base: dict[str, int] = defaultdict(int)
    for gpu in running:
        now_on[gpu.node] += 1
        base[gpu.node] += not job.elastic or gpu.part == min(each.part for each in running)
    return replace(
        job,
        now_on=dict(sorted(now_on.items())),
        base={node: gpus for node, gpus in sorted(base.items()) if gpus},
        started_at=last.created if running else None,
        first_started_at=min((gpu.since for gpu in held), default=None),
        since=max((gpu.since for gpu in held), default=None),
        served_gpu_seconds=sum(_held_gpu_seconds(one, 0.0, start) for one in earlier),
        run_seconds=sum(min(one.ended or start, start) - one.created for one in earlier),
        restarts=len(earlier) - 1,
    )


def _release_times(gpu: HeldGpu) -> tuple[float, float]:
    return (
        float("inf") if gpu.asked_back is None else gpu.asked_back,
        float("inf") if gpu.until is None else gpu.until,
    )


def _useful_work(attempts: Sequence[PastAttempt], curve: types.Curve, resumable: bool, until: float) -> float:
    """Return the work that counts, in seconds on one GPU."""
    spans = (span for one in attempts if one.has_useful_work(resumable) for span in one.training_spans(until))
    return sum(lasts(end - start, gpus, curve).work for start, end, gpus in spans)


def _held_gpu_seconds(one: PastAttempt, start: float, end: float) -> float:
    return sum(max(0.0, min(_clipped_end(gpu.until, end), end) - max(gpu.since, start)) for gpu in one.held)


def _lost_gpu_seconds(one: PastAttempt, resumable: bool, start: float, end: float) -> float:
    held = _held_gpu_seconds(one, start, end)
    if not one.has_useful_work(resumable):
        return held
    trained = sum(gpus * max(0.0, until - max(since, start)) for since, until, gpus in one.training_spans(end))
    return max(0.0, held - trained)


def _count_resizes(one: PastAttempt, start: float, end: float) -> int:
    """Return how often the attempt's GPUs changed while it ran."""
    first = min((gpu.since for gpu in one.held), default=0.0)
    stop = one.ended if one.ended is not None else float("inf")
    moments = {gpu.since for gpu in one.held if gpu.since > first + 1}
    moments |= {gpu.asked_back for gpu in one.held if gpu.asked_back is not None and (gpu.until or stop) < stop - 1}
    return len({round(at) for at in moments if start <= at < end})


# --- nodes -------------------------------------------------------------------------------------------------------


def _nodes(
    start: float, end: float, jobs: Sequence[PastJob], pools: Mapping[int, Sequence[Pool]]
) -> tuple[tuple[types.Node, ...], tuple[Loss, ...], float]:
    """Return the nodes that offered GPUs in the window, when they did not, and the total GPU time that they offered."""
    known = {pool.id: pool for found in pools.values() for pool in found}
    spells: dict[PoolId, list[tuple[int, float, float]]] = defaultdict(list)
    rows = CapacitySpell.objects.filter(since__lt=_to_datetime(end)).filter(
        Q(until=None) | Q(until__gt=_to_datetime(start))
    )
    for gpu, place, model, since, until in rows.values_list("gpu", "gpu__node", "gpu__model", "since", "until"):
        offer = gpu, max(start, since.timestamp()), _clipped_end(_to_timestamp(until), end)
        spells[pool_id(place, model, known)].append(offer)
    used: Counter[PoolId] = Counter()
    for each in jobs:
        used.update(each.submission.job.now_on)
    there = sorted((known[id] for id in {*spells, *used}), key=lambda pool: (pool.node, pool.id))
    names = dict(Node.objects.filter(pk__in={pool.node for pool in there}).values_list("pk", "name"))
    nodes, losses, capacity = [], [], 0.0
    for pool in there:
        offers = spells[pool.id]
        total = max(len({gpu for gpu, _, _ in offers}), used[pool.id])
        name = f"{names[pool.node]} ({pool.model})" if pool.is_part else names[pool.node]
        nodes.append(
            types.Node(
                pool.id,
                name,
                total,
                total,
                kind=pool.model,
                gpu_memory_mib=pool.memory_mib,
                parts_of_gpus=is_part_of_gpu(pool.model),
                part_of=str(pool.node) if pool.is_part else "",
            )
        )
        capacity += sum(max(0.0, until - since) for _, since, until in offers)
        away = start
        for first, last in _merge_spans((since, until) for _, since, until in offers):
            if first > away + 1:
                losses.append(Loss(pool.id, away, first))
            away = last
        if offers and away < end - 1:
            losses.append(Loss(pool.id, away))
    return tuple(nodes), tuple(losses), capacity


def _merge_spans(spans: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        else:
            joined.append((since, until))
    return joined


def _to_timestamp(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _clipped_end(moment: float | None, end: float) -> float:
    return end if moment is None else min(moment, end)
