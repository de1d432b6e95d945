"""Builds a plan from the number of GPUs that each job should have: shared by all policies that decide in counts.

Such a policy ranks the jobs and chooses how many GPUs each should have. What remains is the same for all: find nodes,
take GPUs only from jobs that can release them, stop no job without need, start what fits now, and give each waiting job
its reason.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduling.messages import Message
from scheduling.renamed import renamed
from scheduling.toolkit import placement, reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.placement import minus
from scheduling.types import Job, JobId, NodeId, Placement, Plan, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__,
        {
            "realise": "build_plan",
            "act": "apply_now",
            "line_up": "release_preemptible",
            "stand_in_line": "admit_in_order",
            "part": "available_part",
        },
    )


def build_plan(
    snapshot: Snapshot,
    order: Sequence[Job],
    wanted: Mapping[JobId, int],
    *,
    why: Mapping[JobId, Message] | None = None,
    state: Mapping[str, Any] | None = None,
    batches: Mapping[JobId, int] | None = None,
    short: Callable[[Job, Capacity, int], Message] = reasons.shortage,
    again_at: float | None = None,
) -> Plan:
    """Return the plan that comes closest to ``wanted`` GPUs per job.

    ``order`` has every running and waiting job, the most deserving first; a job with 0 in ``wanted``, or left out of it,
    should have none. ``why`` has the policy's own reasons for jobs that it lets wait. ``short`` returns the reason of a
    job for which too few GPUs are left, given how many jobs are ahead of it. It is called for every job that should have
    GPUs and finds no place; for the others only if reasons are read (``Snapshot.explain``).

    A running preemptible job that should have none is stopped only for a job before it in the order that fits in its
    place; an elastic one is resized in place; any other keeps what it holds. GPUs of stopped and shrunk jobs are not free
    yet: the job that gets them waits with that as its reason, and no other job gets them.
    """
    why = dict(why or {})
    later = Capacity(snapshot, coming=True)
    running = [job for job in order if job.running]
    _shrink_running(later, running, wanted)
    served, line, stopped = _allocate_waiting(later, order, wanted, why, snapshot.explain)
    for job in (*running, *served):
        if job.elastic and job.id in later.held:
            while later.count(job) < min(wanted.get(job.id, 0), job.max_gpus) and later.grow(job):
                pass
    now = apply_now(snapshot, later, running, served, stopped, why)
    for ahead, job in enumerate(line):
        explain = snapshot.explain or wanted.get(job.id)
        why.setdefault(job.id, short(job, now, ahead) if explain else reasons.UNEXPLAINED)
    chosen = {job: size for job, size in (batches or {}).items() if job in now.held}
    return Plan(now.held, why, state or {}, chosen, again_at, now.reserved)


def release_preemptible(snapshot: Snapshot, *, preempt: bool = True) -> tuple[Capacity, set[JobId]]:
    """Return a ledger in which preemptible running jobs hold nothing, and the ids of these jobs.

    It is for counting, not for placing. Jobs with GPUs on a closed node keep them: no other job could use those.
    """
    ledger = Capacity(snapshot, coming=True)
    again = set()
    for job in snapshot.jobs:
        if preempt and job.running and job.preemptible and ledger.nodes.keys() >= job.now_on.keys():
            ledger.evict(job)
            again.add(job.id)
    return ledger, again


def admit_in_order(
    snapshot: Snapshot, order: Sequence[Job], size: Callable[[Job], int]
) -> tuple[dict[JobId, int], Capacity]:
    """Return the jobs that get GPUs when all preemptible ones queue again, with their sizes, and the ledger.

    In order, each job gets ``size`` or nothing, and those that do not fit are skipped. Jobs that cannot be stopped come
    before all others, wherever they are in the order.
    """
    ledger, again = release_preemptible(snapshot)
    wanted: dict[JobId, int] = {}
    unfit: set[Hashable] = set()
    for job in order:
        if job.running and job.id not in again:
            wanted[job.id] = size(job)
            while ledger.count(job) > wanted[job.id] and ledger.spare(job):
                ledger.ask_back(job)
            while job.elastic and ledger.count(job) < wanted[job.id] and ledger.grow(job):
                pass
    for job in order:
        if job.id not in again and (not job.waiting or job.blocked):
            continue
        count = size(job)
        key = (count, ledger.fit_key(job))
        if key in unfit:
            continue
        if where := ledger.fit(job, count):
            ledger.give(job, where)
            wanted[job.id] = count
        else:
            unfit.add(key)
    return wanted, ledger


def apply_now(
    snapshot: Snapshot,
    later: Capacity,
    running: Iterable[Job],
    served: Iterable[Job],
    stopped: Iterable[Job],
    why: dict[JobId, Message],
) -> Capacity:
    """Carry out as much of the ledger ``later`` as is possible now; return that ledger, and add reasons for ``served``."""
    now = Capacity(snapshot)
    gone = {job.id for job in stopped}
    for job in stopped:
        now.evict(job)
    staying = [job for job in running if job.id not in gone and later.held[job.id] is not job.now_on]
    shrink_to(now, later, staying)
    for job in served:
        if missing := start(job, now, later.held[job.id]):
            why[job.id] = reasons.awaiting(job, now, missing)
    for job in staying:
        if more := available_part(minus(later.held[job.id], job.now_on), now, job):
            now.give(job, more)
    return now


def shrink_to(now: Capacity, later: Capacity, running: Iterable[Job]) -> None:
    """Ask running jobs for the GPUs that they no longer hold in ``later``."""
    for job in running:
        for node, gpus in minus(job.now_on, later.held[job.id]).items():
            for _ in range(gpus):
                now.ask_back(job, node)


def start(job: Job, now: Capacity, wanted: Placement) -> int:
    """Start a job if enough GPUs are free, and keep the free ones for it otherwise; return how many are missing.

    An elastic job starts with its minimum or more and grows later. Any other job keeps its size, so it waits for all of
    it, unless as many GPUs on as few nodes are free elsewhere.
    """
    here = available_part(wanted, now, job)
    if suffices(job, here, wanted):
        now.give(job, here)
        return 0
    now.reserve(here, job)
    if start_elsewhere(job, now, wanted, here):
        return 0
    return placement.total(wanted) - placement.total(here)


def suffices(job: Job, here: Placement, wanted: Placement) -> bool:
    """Return whether a job can start on the part of its GPUs that is free: all of them, or the minimum of an elastic job."""
    count = placement.total(here)
    return count == placement.total(wanted) or (job.elastic and count >= job.min_gpus)


def start_elsewhere(job: Job, now: Capacity, wanted: Placement, here: Placement) -> bool:
    """Start a job if as many GPUs as it wants are free on as few nodes; ``here`` is reserved for it, and used as well."""
    now.unreserve(here, job)
    elsewhere = now.fit(job, placement.total(wanted))
    if elsewhere is None or len(elsewhere) > len(wanted):
        now.reserve(here, job)
        return False
    now.give(job, elsewhere)
    return True


def available_part(wanted: Placement, now: Capacity, job: Job) -> Placement:
    """Return as much of ``wanted`` as is free now and within the limits of the job."""
    levels = now.levels(job)
    free = {node: min(gpus, levels.get(node, 0)) for node, gpus in wanted.items()}
    count = min(placement.total(free), now.room(job))
    return placement.place(free, count, spread=True) or {}


def _shrink_running(later: Capacity, running: Iterable[Job], wanted: Mapping[JobId, int]) -> None:
    for job in running:
        if not job.elastic:
            continue
        minimum = max(wanted.get(job.id, 0), job.min_gpus)
        if not wanted.get(job.id, 0) and job.preemptible:
            continue  # it is stopped as a whole, or not at all
        while later.count(job) > minimum and later.spare(job):
            later.ask_back(job)


def _allocate_waiting(
    later: Capacity, order: Sequence[Job], wanted: Mapping[JobId, int], why: dict[JobId, Message], explain: bool
) -> tuple[list[Job], list[Job], list[Job]]:
    """Give waiting jobs their GPUs in ``later`` and stop others where needed; return (served, waiting, stopped)."""
    served: list[Job] = []
    line: list[Job] = []
    stopped: list[Job] = []
    victims = [
        (number, job)
        for number, job in enumerate(order)
        if job.running and job.preemptible and not wanted.get(job.id, 0)
    ]
    gone: set[JobId] = set()
    unfit: set[Hashable] = set()
    possible: set[Hashable] = set()
    for number, job in enumerate(order):
        if job.now_on or job.stopping or job.id in why:
            continue
        if not (explain or wanted.get(job.id)):
            line.append(job)
            continue
        alike = later.fit_key(job)
        if job.blocked or alike not in possible:
            if alone := reasons.impossible(job, later):
                why[job.id] = alone
                continue
            possible.add(alike)
        count = min(max(wanted.get(job.id, 0), job.min_gpus), job.max_gpus) if wanted.get(job.id, 0) else 0
        minimum = job.min_gpus if job.elastic else count
        key = (minimum, alike)
        where = None
        if count and key not in unfit:
            where = _fit(later, job, minimum, count)
            if where is None and (last := _jobs_to_stop(later, job, minimum, victims, gone, number)):
                for victim in last:
                    later.evict(victim)
                stopped += last
                gone.update(victim.id for victim in last)
                while victims and victims[-1][1].id in gone:
                    victims.pop()
                where = _fit(later, job, minimum, count)
        if where is None:
            if count:
                unfit.add(key)
            if limited := reasons.limited(job, later):
                why[job.id] = limited
            else:
                line.append(job)
            continue
        later.give(job, where)
        served.append(job)
    return served, line, stopped


def _fit(later: Capacity, job: Job, minimum: int, maximum: int) -> Placement | None:
    return later.fit(job, maximum) or (later.best_fit(job, maximum) if minimum < maximum else None)


def _jobs_to_stop(
    later: Capacity, job: Job, count: int, candidates: Sequence[tuple[int, Job]], gone: set[JobId], rank: int
) -> list[Job]:
    """Return the jobs to stop so that ``job`` fits with ``count`` GPUs: the last in the order, and no more than necessary.

    ``candidates`` are (place in the order, job); those before ``rank`` and those in ``gone`` are left out. Empty when
    stopping all of them would not help.
    """
    if later.resources is not None:
        return _jobs_to_stop_by_trial(later, job, count, candidates, gone, rank)
    allowed = later.scope(job).allowed
    tight = [(limit.jobs, count - room) for limit, room in later.limits_of(job) if count > room]
    lacks = [lack for _, lack in tight]
    total = later.left(job)
    node = None if job.spread else later.free.tightest(count, allowed)
    freed: dict[NodeId, int] = {}
    looked: list[Job] = []
    for place, victim in reversed(candidates):
        if place < rank:
            return []
        if victim.id in gone:
            continue
        looked.append(victim)
        for here, gpus in victim.now_on.items():
            if here in later.free and (allowed is None or here in allowed):
                freed[here] = freed.get(here, 0) + gpus
                total += gpus
                if not job.spread and node is None and later.free[here] + freed[here] >= count:
                    node = here
        for index, (jobs, _) in enumerate(tight):
            lacks[index] -= victim.gpus if victim.id in jobs else 0
        if (total >= count if job.spread else node is not None) and all(lack <= 0 for lack in lacks):
            break
    else:
        return []
    surplus = (total if node is None else later.free[node] + freed.get(node, 0)) - count
    needed: list[Job] = []
    for victim in reversed(looked):
        gives = sum(gpus for here, gpus in victim.now_on.items() if (here in freed if node is None else here == node))
        under = [victim.gpus if victim.id in jobs else 0 for jobs, _ in tight]
        if gives <= surplus and all(lack + gpus <= 0 for lack, gpus in zip(lacks, under, strict=True)):
            surplus -= gives
            lacks = [lack + gpus for lack, gpus in zip(lacks, under, strict=True)]
        else:
            needed.append(victim)
    return needed


def _jobs_to_stop_by_trial(
    later: Capacity, job: Job, count: int, candidates: Sequence[tuple[int, Job]], gone: set[JobId], rank: int
) -> list[Job]:
    """Return the same where processors and memory count, too: stop one after the other in a draft until the job fits."""
    draft = later.copy()
    tried: list[Job] = []
    for place, victim in reversed(candidates):
        if place < rank:
            return []
        if victim.id in gone:
            continue
        draft.evict(victim)
        tried.append(victim)
        if draft.fit(job, count) is not None:
            break
    else:
        return []
    needed: list[Job] = []
    for victim in reversed(tried):
        draft.give(victim, victim.now_on)
        if draft.fit(job, count) is None:
            draft.evict(victim)
            needed.append(victim)
    return needed
