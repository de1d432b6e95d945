"""The way from present placements to those a policy aims at, over the turns that giving back takes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduling.renamed import renamed
from scheduling.toolkit import placement, reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.plan_builder import minus, part, start
from scheduling.types import Job, JobId, Placement, Plan, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"world": "world_digest"})

PATIENCE_SECONDS = 600
"""A change that takes longer than this is decided anew: somebody does not give back what was asked."""


def carry_out(
    snapshot: Snapshot,
    order: Sequence[Job],
    target: Mapping[JobId, Placement],
    why: Mapping[JobId, str],
    state: Mapping[str, Any],
    batches: Mapping[JobId, int] | None = None,
    again_at: float | None = None,
) -> Plan:
    """As much of ``target`` as can be done with what is free now; the rest is asked back and waited for.

    A job that moves goes at once if its new place is free, else it first gives up what it will not keep; if that is
    more than it can spare it is stopped, and starts again as soon as the others have left.
    """
    now, why = Capacity(snapshot), dict(why)
    for job in order:
        if job.running and target.get(job.id, {}) != job.now_on:
            _let_go(job, target.get(job.id, {}), now)
    ahead = 0
    for job in order:
        wanted = target.get(job.id, {})
        if job.running and job.id in now.held:
            if more := part(minus(wanted, now.held[job.id]), now, job):
                now.give(job, more)
        elif job.waiting and wanted and (missing := start(job, now, wanted)):
            why[job.id] = reasons.awaiting(job, now, missing)
    for job in order:
        if job.waiting and not target.get(job.id) and job.id not in why:
            why[job.id] = reasons.limited(job, now) or reasons.shortage(job, now, ahead)
            ahead += 1
    elsewhere = {job.id: now.held[job.id] for job in order if job.waiting and _is_elsewhere(job, target, now)}
    if elsewhere and "aim" in state:
        state = {**state, "aim": {**state["aim"], **elsewhere}}
    sizes = {job: size for job, size in (batches or {}).items() if job in now.held}
    return Plan(now.held, why, state, sizes, again_at, now.reserved)


def _is_elsewhere(job: Job, target: Mapping[JobId, Placement], now: Capacity) -> bool:
    """Whether a job starts on other GPUs than those it was to have."""
    return bool(minus(now.held.get(job.id, {}), target.get(job.id, {})))


def _let_go(job: Job, wanted: Placement, now: Capacity) -> None:
    if not wanted:
        now.evict(job)
        return
    new = minus(wanted, job.now_on)
    keep = {node: min(gpus, wanted[node]) for node, gpus in job.now_on.items() if node in wanted}
    keeps_base = all(keep.get(node, 0) >= gpus for node, gpus in job.base.items())
    if keeps_base and all(now.free.get(node, 0) >= gpus for node, gpus in new.items()) and _total(new) <= now.room(job):
        now.held[job.id] = keep
        now.give(job, new)
    elif keeps_base and keep and _total(keep) >= min(job.min_gpus, job.gpus):
        now.held[job.id] = keep
    elif job.preemptible:
        now.evict(job)
        now.reserve(part(wanted, now, job))


_total = placement.total


def world_digest(snapshot: Snapshot) -> str:
    """Equal for snapshots that hold the same jobs and nodes, wherever the jobs are by now."""
    jobs = sorted((job.id, job.min_gpus, job.max_gpus, job.priority, bool(job.blocked)) for job in snapshot.jobs)
    nodes = sorted((node.id, node.total, node.open) for node in snapshot.nodes)
    limits = sorted((limit.name, limit.max_gpus - limit.elsewhere) for limit in snapshot.limits)
    return hashlib.sha256(repr((jobs, nodes, limits)).encode()).hexdigest()[:16]


def remember(snapshot: Snapshot, target: Mapping[JobId, Placement], batches: Mapping[JobId, int]) -> dict[str, Any]:
    """What ``recall`` needs to go on with this target in later turns."""
    aim = {job: dict(where) for job, where in target.items()}
    return {"world": world_digest(snapshot), "at": snapshot.now, "aim": aim, "batches": dict(batches)}


def recall(snapshot: Snapshot, seconds: float) -> tuple[dict[JobId, Placement], dict[JobId, int]] | None:
    """The target of an earlier turn and its batches, while the world is the same and it is younger than ``seconds``,
    or still under way.

    Giving back takes several turns: without this, each of them would decide anew from a half-changed world.
    """
    state = snapshot.state
    if state.get("world") != world_digest(snapshot):
        return None
    aim: dict[JobId, Placement] = state["aim"]
    age = snapshot.now - state["at"]
    reached = all(aim.get(job.id, {}) == job.now_on for job in snapshot.jobs)
    fresh = 0 <= age < seconds or (not reached and 0 <= age < PATIENCE_SECONDS)
    return (aim, state["batches"]) if fresh and _sound(snapshot, aim) else None


def _sound(snapshot: Snapshot, aim: Mapping[JobId, Placement]) -> bool:
    left = {node.id: node.total for node in snapshot.nodes}
    for job in snapshot.jobs:
        where = aim.get(job.id, {})
        if job.running and where != job.now_on and not job.elastic and (where or not job.preemptible):
            return False
        for node, gpus in where.items():
            left[node] = left.get(node, 0) - gpus
    return min(left.values(), default=0) >= 0
