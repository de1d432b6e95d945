"""Moves from the current placements to the target of a policy, over the cycles that releasing GPUs takes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduling.messages import Message
from scheduling.renamed import renamed
from scheduling.toolkit import placement, reasons, resources
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.placement import minus
from scheduling.toolkit.plan_builder import available_part, start_elsewhere, suffices
from scheduling.types import Job, JobId, Placement, Plan, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"world": "world_digest"})

MAX_CHANGE_SECONDS = 600
"""A change that takes longer than this is decided again: some job does not release what it was asked for."""


def carry_out(
    snapshot: Snapshot,
    order: Sequence[Job],
    target: Mapping[JobId, Placement],
    why: Mapping[JobId, Message],
    state: Mapping[str, Any],
    batches: Mapping[JobId, int] | None = None,
    again_at: float | None = None,
) -> Plan:
    """Return the plan that does as much of ``target`` as the free GPUs allow, and asks jobs to release the rest.

    A job that moves does so at once if its new GPUs are free; otherwise it first releases those that it will not keep.
    If those are more than it can spare, it is stopped, and restarts as soon as the other jobs have left. A job whose GPUs
    are not free yet may start on others that the target gives to no job.
    """
    if resources.matter(snapshot):
        target = _fitting_target(snapshot, order, target, why)
    now, why = Capacity(snapshot), dict(why)
    for job in order:
        if job.running and target.get(job.id, {}) != job.now_on:
            _release_gpus(job, target.get(job.id, {}), now)
    late: list[tuple[Job, Placement]] = []
    for job in order:
        wanted = target.get(job.id, {})
        if job.running and job.id in now.held:
            if more := available_part(minus(wanted, now.held[job.id]), now, job):
                now.give(job, more)
        elif job.waiting and wanted:
            here = available_part(wanted, now, job)
            if suffices(job, here, wanted):
                now.give(job, here)
            else:
                now.reserve(here, job)
                late.append((job, here))
    for job, here in late:  # what the target gives to others is reserved now
        if not start_elsewhere(job, now, target[job.id], here):
            why[job.id] = reasons.awaiting(job, now, _total(target[job.id]) - _total(here))
    ahead = 0
    for job in order:
        if job.waiting and not target.get(job.id) and job.id not in why:
            why[job.id] = reasons.limited(job, now) or reasons.shortage(job, now, ahead)
            ahead += 1
    elsewhere = {job.id: now.held[job.id] for job in order if job.waiting and _starts_elsewhere(job, target, now)}
    if elsewhere and "aim" in state:
        state = {**state, "aim": {**state["aim"], **elsewhere}}
    sizes = {job: size for job, size in (batches or {}).items() if job in now.held}
    return Plan(now.held, why, state, sizes, again_at, now.reserved)


def _fitting_target(
    snapshot: Snapshot, order: Sequence[Job], target: Mapping[JobId, Placement], why: Mapping[JobId, Message]
) -> dict[JobId, Placement]:
    """Return the target without what processors and memory do not suffice for: the search for it counts GPUs alone.

    In order, each job gets what the target adds to its GPUs, or as many GPUs elsewhere; waiting jobs that the target
    leaves out without a reason get what remains.
    """
    ledger = Capacity(snapshot, coming=True)
    changed = [job for job in order if job.running and target.get(job.id, {}) != job.now_on]
    for job in sorted(changed, key=lambda job: job.preemptible):
        wanted = target.get(job.id, {})
        ledger.evict(job)
        ledger.give(job, {node: min(gpus, wanted[node]) for node, gpus in job.now_on.items() if node in wanted})
        if not job.preemptible:
            _give_rest(job, wanted, ledger)
    movers = {job.id for job in changed if job.preemptible}
    for job in order:
        wanted = target.get(job.id, {})
        if job.id in movers:
            _give_rest(job, wanted, ledger)
        elif job.waiting and wanted:
            here = available_part(wanted, ledger, job)
            where = here if suffices(job, here, wanted) else ledger.fit(job, _total(wanted))
            if where := where or (ledger.best_fit(job, _total(wanted)) if job.elastic else None):
                ledger.give(job, where)
    for job in order:
        left_out = job.waiting and not (job.blocked or target.get(job.id) or job.id in why)
        if left_out and (where := ledger.best_fit(job, job.asked)):
            ledger.give(job, where)
    return {**target, **{job.id: ledger.held.get(job.id, {}) for job in order if not job.stopping}}


def _give_rest(job: Job, wanted: Placement, ledger: Capacity) -> None:
    """Give a running job that keeps some of its GPUs what is left of the others; if that is too little, it stops or stays."""
    if more := available_part(minus(wanted, ledger.held[job.id]), ledger, job):
        ledger.give(job, more)
    count, enough = ledger.count(job), _total(wanted)
    if count < (min(job.min_gpus, job.gpus, enough) if job.elastic else enough):
        ledger.evict(job)
        if not job.preemptible:
            ledger.give(job, job.now_on)


def _starts_elsewhere(job: Job, target: Mapping[JobId, Placement], now: Capacity) -> bool:
    """Whether a job starts on other GPUs than those of its target."""
    return bool(minus(now.held.get(job.id, {}), target.get(job.id, {})))


def _release_gpus(job: Job, wanted: Placement, now: Capacity) -> None:
    if not wanted:
        now.evict(job)
        return
    new = minus(wanted, job.now_on)
    keep = {node: min(gpus, wanted[node]) for node, gpus in job.now_on.items() if node in wanted}
    keeps_base = all(keep.get(node, 0) >= gpus for node, gpus in job.base.items())
    levels = now.levels(job)
    if keeps_base and all(levels.get(node, 0) >= gpus for node, gpus in new.items()) and _total(new) <= now.room(job):
        now.held[job.id] = keep
        now.give(job, new)
    elif keeps_base and keep and _total(keep) >= min(job.min_gpus, job.gpus):
        now.held[job.id] = keep
    elif job.preemptible:
        now.evict(job)
        now.reserve(available_part(wanted, now, job), job)


_total = placement.total


def world_digest(snapshot: Snapshot, *, demands: bool = True) -> str:
    """Return a digest that is equal for snapshots with the same jobs, nodes and limits, whatever the placements.

    Without ``demands`` it leaves out the processors and memory that jobs ask for: a search that is seeded with it makes the
    same random choices when a job asks for exactly its share.
    """
    jobs = sorted(
        (job.id, job.min_gpus, job.max_gpus, job.priority, bool(job.blocked), *(_demands(job) if demands else ()))
        for job in snapshot.jobs
    )
    nodes = sorted((node.id, node.total, node.open) for node in snapshot.nodes)
    limits = sorted((limit.name, limit.max_gpus - limit.elsewhere) for limit in snapshot.limits)
    return hashlib.sha256(repr((jobs, nodes, limits)).encode()).hexdigest()[:16]


def _demands(job: Job) -> Sequence[int | None]:
    """Return what the job needs per GPU; nothing for a job without demands, so that old digests stay valid."""
    return resources.demand_of(job) if job.has_demands else ()


def remember(snapshot: Snapshot, target: Mapping[JobId, Placement], batches: Mapping[JobId, int]) -> dict[str, Any]:
    """Return the state that ``recall`` needs to continue with this target in later cycles."""
    aim = {job: dict(where) for job, where in target.items()}
    return {"world": world_digest(snapshot), "at": snapshot.now, "aim": aim, "batches": dict(batches)}


def recall(snapshot: Snapshot, seconds: float) -> tuple[dict[JobId, Placement], dict[JobId, int]] | None:
    """Return the target of an earlier cycle and its batches, or None.

    It is valid while jobs, nodes and limits are the same and it is younger than ``seconds`` or not reached yet. Releasing
    GPUs takes several cycles: without this, each of them would decide again from a half-changed state.
    """
    state = snapshot.state
    if state.get("world") != world_digest(snapshot):
        return None
    aim: dict[JobId, Placement] = state["aim"]
    age = snapshot.now - state["at"]
    reached = all(aim.get(job.id, {}) == job.now_on for job in snapshot.jobs)
    fresh = 0 <= age < seconds or (not reached and 0 <= age < MAX_CHANGE_SECONDS)
    return (aim, state["batches"]) if fresh and _is_feasible(snapshot, aim) else None


def _is_feasible(snapshot: Snapshot, aim: Mapping[JobId, Placement]) -> bool:
    """Whether the GPUs suffice for the target, and its jobs may change; ``carry_out`` looks at processors and memory."""
    left = {node.id: node.total for node in snapshot.nodes}
    for job in snapshot.jobs:
        where = aim.get(job.id, {})
        if job.running and where != job.now_on and not job.elastic and (where or not job.preemptible):
            return False
        for node, gpus in where.items():
            left[node] = left.get(node, 0) - gpus
    return min(left.values(), default=0) >= 0
