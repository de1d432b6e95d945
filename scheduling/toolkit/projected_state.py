"""The state after a plan: it has been carried out, all GPUs asked back are free, and nothing else has happened."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduling.renamed import renamed
from scheduling.toolkit.job_updates import updated_job
from scheduling.toolkit.placement import without_empty_nodes
from scheduling.toolkit.resources import NOTHING, Amount, beyond_share, extra_of, matter, with_extra
from scheduling.types import Job, JobId, NodeId, Placement, Plan, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"after": "project", "clean": "without_empty_nodes"})


def project(
    snapshot: Snapshot, plan: Plan, at_first: Mapping[JobId, Job] | None = None, *, movable: bool = False
) -> Snapshot:
    """Return the snapshot after the plan.

    A job that is back on the GPUs it had ``at_first`` is as if nothing had happened to it. With ``movable`` no job has a
    base: each may change all its GPUs at once.
    """
    jobs = []
    back: dict[NodeId, int] = {}
    beyond: dict[NodeId, Amount] = {}
    known = {node.id: node for node in snapshot.nodes} if matter(snapshot) else {}
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        target = target if target is job.now_on else without_empty_nodes(target)
        batch = plan.batches.get(job.id, job.batch) if target else job.batch
        if target is not job.now_on and target != job.now_on:
            for node, gpus in job.now_on.items():
                back[node] = back.get(node, 0) + gpus
            for node, gpus in target.items():
                back[node] = back.get(node, 0) - gpus
            for node in {*job.now_on, *target} & known.keys():
                less = job.now_on.get(node, 0) - target.get(node, 0)
                beyond[node] = beyond.get(node, NOTHING).plus(beyond_share(job, known[node]), less)
            before = (at_first or {}).get(job.id)
            if before is not None and before.now_on == target:
                job = before
            else:
                job = _with_target(job, target, snapshot.now, movable=movable)
        if batch != job.batch:
            job = updated_job(job, batch=batch)
        jobs.append(job)
    nodes = tuple(
        replace(node, free=node.free + node.leaving + back.get(node.id, 0), leaving=0)
        if node.leaving or back.get(node.id)
        else node
        for node in snapshot.nodes
    )
    if known:
        nodes = tuple(
            with_extra(node, extra_of(known[node.id], coming=True).plus(beyond.get(node.id, NOTHING))) for node in nodes
        )
    limits = tuple(replace(limit, leaving=0) if limit.leaving else limit for limit in snapshot.limits)
    return replace(snapshot, nodes=nodes, jobs=tuple(jobs), limits=limits, state=plan.state)


def _with_target(job: Job, target: Placement, now: float, *, movable: bool) -> Job:
    started = bool(target) and not job.now_on
    ran = job.first_started_at is not None
    return updated_job(
        job,
        now_on=target,
        base=base_of(job, target, movable=movable) if started or not target else job.base,
        since=now,
        started_at=now if started else job.started_at if target else None,
        first_started_at=now if started and not ran else job.first_started_at,
        restarts=job.restarts + (started and ran),
    )


def base_of(job: Job, target: Placement, *, movable: bool = False) -> Placement:
    """Return the GPUs that a job started on ``target`` cannot release without a restart; see "Elastic jobs on GPUs"."""
    if movable or not target:
        return {}
    if not job.elastic:
        return target
    home = min(target, key=lambda node: (-target[node], node))
    return {home: min(target[home], job.min_gpus)}
