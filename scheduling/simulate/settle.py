"""Turning a policy until it changes nothing more, as if GPUs asked back were free at once.

For worlds in which a whole allocation is applied in one stroke: rounds of 60 seconds, and ``manage.py decide``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from scheduling.check import violations
from scheduling.decide import decide
from scheduling.types import Job, JobId, Placement, Plan, Policy, Snapshot

MOST_TURNS = 30
"""The laws hold every policy to come to rest within so many."""


class Refused(Exception):  # noqa: N818
    """The policy made a plan that breaks a rule: a mistake of the policy, never of its user."""


def settle(
    policy: Policy, snapshot: Snapshot, *, ask: Callable[[Snapshot], Plan] | None = None, movable: bool = False
) -> tuple[Plan, Snapshot]:
    """The last plan, and the world at rest that it describes.

    ``ask`` replaces ``decide``, to measure or record it. With ``movable`` no job has a base: each may change all
    its GPUs at once. Raises ``Refused`` for a plan that breaks a rule.
    """
    ask = ask or partial(decide, policy)
    at_first = {job.id: job for job in snapshot.jobs}
    for _ in range(MOST_TURNS):
        plan = ask(snapshot)
        if wrong := violations(snapshot, plan):
            raise Refused(" ".join(wrong[:10]))
        after = applied(snapshot, plan, at_first, movable=movable)
        if after.jobs == snapshot.jobs:
            return plan, after
        snapshot = after
    return plan, snapshot


def applied(
    snapshot: Snapshot, plan: Plan, at_first: Mapping[JobId, Job] | None = None, *, movable: bool = False
) -> Snapshot:
    """The world after the plan, with everything given back at once.

    A job that is back on the GPUs it had ``at_first`` is as if nothing had happened to it.
    """
    jobs = []
    held = dict.fromkeys((node.id for node in snapshot.nodes), 0)
    for job in snapshot.jobs:
        target = clean(plan.target.get(job.id, {}))
        batch = plan.batches.get(job.id, job.batch) if target else job.batch
        if target != job.now_on:
            before = (at_first or {}).get(job.id)
            if before is not None and before.now_on == target:
                job = before
            else:
                job = _moved(job, target, snapshot.now, movable=movable)
        if batch != job.batch:
            job = replace(job, batch=batch)
        for node, gpus in job.now_on.items():
            held[node] += gpus
        jobs.append(job)
    nodes = tuple(
        node if node.free == node.total - held[node.id] and not node.leaving
        else replace(node, free=node.total - held[node.id], leaving=0)
        for node in snapshot.nodes
    )  # fmt: skip
    limits = tuple(replace(limit, leaving=0) if limit.leaving else limit for limit in snapshot.limits)
    return replace(snapshot, nodes=nodes, jobs=tuple(jobs), limits=limits, state=plan.state)


def _moved(job: Job, target: Placement, now: float, *, movable: bool) -> Job:
    started = bool(target) and not job.now_on
    ran = job.first_started_at is not None
    return replace(
        job,
        now_on=target,
        base=base_of(job, target, movable=movable) if started or not target else job.base,
        since=now,
        started_at=now if started else job.started_at if target else None,
        first_started_at=now if started and not ran else job.first_started_at,
        restarts=job.restarts + (started and ran),
    )


def base_of(job: Job, target: Placement, *, movable: bool = False) -> Placement:
    """What a job that starts on ``target`` cannot give back without a restart; see "Elastic jobs on GPUs"."""
    if movable or not target:
        return {}
    if not job.elastic:
        return target
    home = min(target, key=lambda node: (-target[node], node))
    return {home: min(target[home], job.min_gpus)}


def clean(target: Placement) -> Placement:
    return target if all(target.values()) else {node: gpus for node, gpus in target.items() if gpus}
