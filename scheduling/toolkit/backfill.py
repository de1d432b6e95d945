"""Backfilling behind one reservation, so that large jobs are not passed over for ever.

A policy that starts whatever fits lets small jobs overtake a large one for as long as small jobs arrive. EASY
backfilling (Lifka 1995) is the usual remedy: the first job in the queue that does not fit reserves the GPUs that will be
free soonest, and others may overtake it only where they do not delay it. Here the queue is in the order of the policy,
and the first job reserves only after it has waited for some time, because GPUs that are being saved may stay idle.

Differences from EASY, all ours: where a length is unknown, a running job is expected to run as long again as it has, at
least a GPU-hour (``estimates``); saved GPUs are lent to jobs that can be stopped, which release them when the first
job can start; and the reservation stays with its job until that has started, even if another job is first by then.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from scheduling.messages import Message
from scheduling.renamed import renamed
from scheduling.toolkit import estimates, placement, reasons
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.toolkit.levels import Levels
from scheduling.toolkit.resources import NOTHING, beyond_share, extra_after, with_extra, with_more
from scheduling.types import Job, JobId, Limit, Node, NodeId, Placement, Plan, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"around": "plan_with_reservation", "Hold": "BackfillReservation"})

RESERVED, LENT, PROMISED = "reserved for", "lent to", "promised to"
"""Keys in the state of a plan: the job that holds the reservation, the jobs on GPUs saved for it, and the jobs for which
other GPUs were being released."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The decision of a policy without a reservation."""

    plan: Plan
    order: Sequence[Job]
    """All jobs, the most deserving first."""
    left_out: frozenset[JobId]
    """Waiting jobs that get nothing although they could run in an empty cluster."""
    promised: frozenset[JobId]
    """Waiting jobs for which GPUs are being released."""

    @property
    def line(self) -> list[Job]:
        """The jobs that are left out, the most deserving first."""
        return [job for job in self.order if job.id in self.left_out]

    def ahead_of(self, first: Job) -> frozenset[JobId]:
        """Return the waiting jobs before ``first`` that get GPUs now or soon."""
        before = takewhile(lambda job: job.id != first.id, self.order)
        return frozenset(job.id for job in before if job.id in self.promised or job.id in self.plan.target)


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """The GPUs reserved for a job."""

    job: Job
    where: Placement
    at: float
    """When all of them are expected to be free."""
    here: Placement = field(default_factory=dict)
    """The part of ``where`` that is free or being released already."""
    remains: Mapping[JobId, Placement] = field(default_factory=dict)
    """What running jobs keep that must release GPUs now; empty for a job that stops."""


MIN_LOAN_RESTARTS = 10.0
"""A loan must be expected to last this many times the duration of a restart."""
Arrange = Callable[[Snapshot, "BackfillReservation | None"], Arrangement]
"""The decision of a policy. With a reservation, the reserved GPUs are not free, and the job that it is for is blocked."""


def plan_with_reservation(
    arrange: Arrange, snapshot: Snapshot, after_seconds: float, size: Callable[[Job], int]
) -> Plan:
    """Return the plan of ``arrange``, with a reservation for its first job that has waited for ``after_seconds``.

    ``size`` returns the number of GPUs with which a waiting job starts. With 0 seconds nothing is ever reserved.
    """
    usual = arrange(snapshot, None)
    first = _reservation_candidate(snapshot, usual, after_seconds) if after_seconds > 0 else None
    if first is None or first.id in usual.plan.target:
        return usual.plan
    lent = _running_borrowers(snapshot, usual.plan.target)
    if first.id in usual.promised:
        return replace(usual.plan, state=_reservation_state(first, lent, usual.promised))
    ahead = frozenset(snapshot.state.get(PROMISED, ()))
    if snapshot.state.get(RESERVED) != first.id:
        ahead = usual.ahead_of(first)
    reservation = _find_reservation(snapshot, first, size(first), lent, ahead)
    if reservation is None:
        return usual.plan
    if reservation.at > snapshot.now and not reservation.here:
        return replace(usual.plan, state=_reservation_state(first, lent, usual.promised))  # nothing can be saved yet
    return _plan_with_loans(arrange, _without_losses(snapshot, usual.plan, reservation), reservation, size)


def expected_seconds(job: Job, gpus: int, now: float, *, guess: bool = False) -> float:
    """Return the seconds until the end of a job, from its length or its time limit, whichever is sooner.

    Infinite when neither is known, unless ``guess``.
    """
    seconds = float("inf")
    if guess or estimates.work(job).source != "default":
        seconds = estimates.remaining_seconds(job, gpus)
    if job.longest_seconds is not None:
        began = job.started_at if job.running and job.started_at is not None else now
        seconds = min(seconds, began + job.longest_seconds - now)
    return max(0.0, seconds)


def _reservation_candidate(snapshot: Snapshot, usual: Arrangement, after_seconds: float) -> Job | None:
    """Return the job that holds the reservation, or the first in the queue if it has waited for long enough."""
    capacity = Capacity(snapshot)
    holder = next((job for job in snapshot.jobs if job.id == snapshot.state.get(RESERVED)), None)
    if holder is not None and holder.waiting:
        held_back = reasons.impossible(holder, capacity) or reasons.limited(holder, capacity)
        if not held_back:
            return holder
    for job in usual.line:
        if not reasons.limited(job, capacity):
            waited = snapshot.now - job.submitted_at - job.run_seconds
            return job if waited >= after_seconds else None
    return None


def _find_reservation(
    snapshot: Snapshot, job: Job, count: int, lent: Iterable[JobId], ahead: frozenset[JobId]
) -> BackfillReservation | None:
    """Return the GPUs that will be free soonest for the job, after those of the waiting jobs ``ahead`` of it.

    None when there will never be enough.
    """
    ledger = Capacity(snapshot, coming=True)
    for other in in_queue_order(other for other in snapshot.jobs if other.waiting and other.id in ahead):
        if other.id != job.id and (where := ledger.best_fit(other, other.min_gpus)):
            ledger.give(other, where)
    allowed = ledger.scope(job).allowed
    free = Levels(ledger.levels(job))
    if (where := placement.place(free, count, spread=job.spread, allowed=allowed)) is not None:
        return BackfillReservation(job, where, snapshot.now, where)
    returned: list[tuple[Job, Placement]] = []
    running = [other for other in snapshot.jobs if other.running]
    for other in sorted(running, key=lambda other: (other.id in lent, other.lost_gpu_seconds_if_stopped, other.id)):
        if other.id in lent:
            returned.append((other, ledger.evict(other)))
        elif ledger.spare(other):
            while ledger.spare(other):
                ledger.ask_back(other)
            returned.append((other, placement.minus(other.now_on, ledger.held[other.id])))
    where = placement.place(ledger.levels(job), count, spread=job.spread, allowed=allowed)
    if where is not None:
        return BackfillReservation(
            job,
            where,
            snapshot.now,
            _overlap(where, free),
            _remaining_placements(returned, placement.minus(where, free), lent),
        )
    ends = sorted(
        (snapshot.now + expected_seconds(other, other.gpus, snapshot.now, guess=True), other.id)
        for other in running
        if other.id not in lent
    )
    known = {other.id: other for other in running}
    for at, id in ends:
        ledger.evict(known[id])
        where = placement.place(ledger.levels(job), count, spread=job.spread, allowed=allowed)
        if where is not None:
            return BackfillReservation(job, where, at, _overlap(where, free))
    return None


def _remaining_placements(
    returned: Iterable[tuple[Job, Placement]], missing: Mapping[NodeId, int], lent: Iterable[JobId]
) -> dict[JobId, Placement]:
    """Return what each job keeps that must release some of the ``missing`` GPUs: elastic ones first, which need not stop."""
    needed = Counter(missing)
    remains: dict[JobId, Placement] = {}
    for job, gives in returned:
        give = {node: min(gpus, needed[node]) for node, gpus in gives.items() if needed[node] > 0}
        if give:
            remains[job.id] = {} if job.id in lent else placement.minus(job.now_on, give)
            needed -= Counter(give)
    return remains


def _without_losses(snapshot: Snapshot, usual: Plan, reservation: BackfillReservation) -> Snapshot:
    """Return a snapshot in which saving GPUs stops no job that would keep its own without that.

    Otherwise a policy that stops jobs for others would replace the saved GPUs by those of running jobs. Jobs on loan stay
    as they are.
    """
    if reservation.at <= snapshot.now:
        return snapshot
    lent = frozenset(snapshot.state.get(LENT, ()))
    kept = {
        job.id
        for job in snapshot.jobs
        if job.running and not job.elastic and sum(usual.target.get(job.id, {}).values()) >= job.gpus
    } - lent
    jobs = [replace(job, preemptible=False) if job.id in kept else job for job in snapshot.jobs]
    return replace(snapshot, jobs=tuple(jobs))


def _plan_with_loans(
    arrange: Arrange, snapshot: Snapshot, reservation: BackfillReservation, size: Callable[[Job], int]
) -> Plan:
    """Return the plan in which no other job gets reserved GPUs, except on loan."""
    first, saved = reservation.job, _overlap(reservation.here, Capacity(snapshot).levels(reservation.job))
    lent = _running_borrowers(snapshot, reservation.remains, without=True)
    starts = reservation.at <= snapshot.now and dict(saved) == dict(reservation.where)
    others = _snapshot_for_others(snapshot, reservation, saved)
    rest = arrange(others, reservation)
    target, why, batches = dict(rest.plan.target), dict(rest.plan.reasons), dict(rest.plan.batches)
    lent &= target.keys()
    if reservation.at > snapshot.now and (able := _possible_borrowers(snapshot, rest.line, reservation, size)):
        idle = Counter(saved) + _idle_gpus(others, target)
        loans = arrange(_snapshot_for_borrowers(snapshot, able, idle, target), None).plan
        target.update(loans.target)
        batches.update(loans.batches)
        lent |= {job.id for job in able if job.preemptible and job.id in loans.target}
    if starts:
        target[first.id] = reservation.where
        if first.free_speed:
            batches[first.id] = estimates.batch(first, size(first))
    reserved = {} if starts else _reservation_state(first, lent, rest.promised)
    why = {id: reason for id, reason in why.items() if id not in target}
    return replace(rest.plan, target=target, reasons=why, batches=batches, state=reserved)


def _snapshot_for_others(snapshot: Snapshot, reservation: BackfillReservation, saved: Placement) -> Snapshot:
    """Return the snapshot for the other jobs: without the reserved GPUs, and with the job of the reservation blocked."""
    known = {job.id: job for job in snapshot.jobs}
    gone = {
        job.id: placement.minus(job.now_on, reservation.remains[job.id])
        for job in snapshot.jobs
        if job.id in reservation.remains
    }
    given: Counter[NodeId] = Counter()
    for where in gone.values():
        given.update(where)
    nodes = []
    for node in snapshot.nodes:
        free = saved.get(node.id, 0)
        surplus = given[node.id] + reservation.here.get(node.id, 0) - reservation.where.get(node.id, 0)
        coming = reservation.here.get(node.id, 0) - free
        more = max(0, surplus) if given[node.id] else 0
        rest = replace(node, free=node.free - free, leaving=node.leaving - coming + more)
        its_own, released = beyond_share(reservation.job, node), NOTHING
        for id, where in gone.items():
            released = released.plus(beyond_share(known[id], node), where.get(node.id, 0))
        if given[node.id]:
            coming += reservation.where.get(node.id, 0) - reservation.here.get(node.id, 0)
        nodes.append(with_more(rest, NOTHING.plus(its_own, -free), released.plus(its_own, -coming)))
    jobs = []
    for job in snapshot.jobs:
        if job.id == reservation.job.id:
            job = replace(job, blocked=_waiting_reason(snapshot, reservation, saved))
        elif job.id in gone:
            left = reservation.remains[job.id]
            job = replace(job, now_on=left, stopping=not left)
        jobs.append(job)
    sizes = {job: sum(where.values()) for job, where in gone.items()}
    takes = {reservation.job.id: sum(reservation.where.values())} if reservation.at <= snapshot.now else {}
    limits = [
        replace(
            limit,
            leaving=limit.leaving + _gpus_under_limit(limit, sizes),
            elsewhere=limit.elsewhere + _gpus_under_limit(limit, takes),
        )
        for limit in snapshot.limits
    ]
    return replace(snapshot, nodes=tuple(nodes), jobs=tuple(jobs), limits=tuple(limits))


def _possible_borrowers(
    snapshot: Snapshot, line: Iterable[Job], reservation: BackfillReservation, size: Callable[[Job], int]
) -> list[Job]:
    """Return the waiting jobs that may use saved GPUs: they can be stopped, or will have ended in time."""
    seconds = reservation.at - snapshot.now
    return [
        job
        for job in line
        if (job.preemptible and MIN_LOAN_RESTARTS * job.restart_seconds < seconds)
        or expected_seconds(job, size(job), snapshot.now) <= seconds
    ]


def _idle_gpus(snapshot: Snapshot, target: Mapping[JobId, Placement]) -> Counter[NodeId]:
    """Return the free GPUs that no job gets: a job on several nodes may need some of them in addition to saved ones."""
    idle = Counter({node.id: node.free for node in snapshot.nodes})
    for job in snapshot.jobs:
        for node, gpus in target.get(job.id, {}).items():
            idle[node] -= max(0, gpus - job.now_on.get(node, 0))
    return +idle


def _snapshot_for_borrowers(
    snapshot: Snapshot, able: Sequence[Job], idle: Mapping[NodeId, int], target: Mapping[JobId, Placement]
) -> Snapshot:
    """Return the snapshot for the jobs that may borrow: it has only the saved GPUs, and those that no job gets."""
    theirs = {job.id for job in able}
    held = {
        job.id: max(job.gpus, sum(target.get(job.id, {}).values())) for job in snapshot.jobs if job.id not in theirs
    }
    extra = extra_after(snapshot, target)
    nodes = tuple(with_extra(_node_with_free(node, idle.get(node.id, 0)), extra[node.id]) for node in snapshot.nodes)
    limits = tuple(
        replace(limit, jobs=limit.jobs & theirs, elsewhere=limit.elsewhere + _gpus_under_limit(limit, held))
        for limit in snapshot.limits
    )
    return replace(snapshot, nodes=nodes, jobs=tuple(able), limits=limits)


def _node_with_free(node: Node, free: int) -> Node:
    return replace(node, free=free, leaving=0)


def _waiting_reason(snapshot: Snapshot, reservation: BackfillReservation, saved: Placement) -> Message:
    """Return why the job that holds the reservation waits."""
    count = sum(reservation.where.values())
    if reservation.at <= snapshot.now:
        return reasons.Promised(count - sum(saved.values()))
    return reasons.saving(reservation.job, snapshot.now, sum(saved.values()), count)


def _running_borrowers(snapshot: Snapshot, those: Mapping[JobId, Any], *, without: bool = False) -> set[JobId]:
    """Return the running jobs on borrowed GPUs that are in ``those``, or that are not, with ``without``."""
    borrowed = frozenset(snapshot.state.get(LENT, ()))
    return {
        job.id
        for job in snapshot.jobs
        if job.id in borrowed and job.running and job.preemptible and (job.id in those) != without
    }


def _reservation_state(first: Job, lent: Iterable[JobId], promised: Iterable[JobId]) -> dict[str, Any]:
    return {RESERVED: first.id, LENT: sorted(lent), PROMISED: sorted(set(promised) - {first.id})}


def _gpus_under_limit(limit: Limit, sizes: Mapping[JobId, int]) -> int:
    return sum(gpus for job, gpus in sizes.items() if job in limit.jobs)


def _overlap(one: Placement, other: Placement) -> dict[NodeId, int]:
    both = {node: min(gpus, other.get(node, 0)) for node, gpus in one.items()}
    return {node: gpus for node, gpus in both.items() if gpus > 0}
