"""Damping: a job that was just placed is not stopped, and no job grows into GPUs that were idle only for a moment.

It takes half a minute from the start of a job to its first step, so a stop within that time wastes all that it held.
Policies and tiers see such a job as one that cannot be stopped, so that their plans and reasons agree with what happens.
Elastic jobs still release what is above their minimum at once: a shrink loses no work, and the job that waits for those
GPUs starts within seconds. To need fewer shrinks, a running job grows only when the policy has wanted that for some
seconds; until then the GPUs are kept, and jobs that arrive in the meantime may start on them.

Reservations are not damped, because a user asked for them; drains, cancellations and time limits bypass the policy.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scheduling.types import Job, JobId, NodeId, Placement, Plan, Snapshot

GROW_AFTER_SECONDS = 10.0
"""The duration of a resize where it was not measured, and the default of ``elastic_fifo``."""
GROWTH_WISHES_KEY = "left over"
"""The key in the state of a plan for the times since when running jobs could have grown."""


def plan_with_damping(plan: Callable[[Snapshot], Plan], snapshot: Snapshot, *, growth: bool = True) -> Plan:
    """Return the decision of ``plan``, damped; unchanged without a damping time.

    ``growth`` is false for a policy that delays growth itself.
    """
    wishes: Mapping[JobId, float] = snapshot.state.get(GROWTH_WISHES_KEY, {})
    if GROWTH_WISHES_KEY in snapshot.state:
        snapshot = replace(
            snapshot, state={key: value for key, value in snapshot.state.items() if key != GROWTH_WISHES_KEY}
        )
    done = plan(snapshot)
    if not snapshot.damping_seconds:
        return done
    if growth:
        done = _delay_growth(plan, snapshot, done, wishes)
    ends = [job.started_at + snapshot.damping_seconds for job in _young_jobs(snapshot) if job.started_at is not None]
    return _decide_again_by(done, ends) if done.reasons else done


def _delay_growth(
    plan: Callable[[Snapshot], Plan], snapshot: Snapshot, done: Plan, wishes: Mapping[JobId, float]
) -> Plan:
    """Remove from ``done`` the growth that was not wanted for long enough."""
    now, early = snapshot.now, dict[JobId, Job]()
    kept: Counter[NodeId] = Counter()
    for job in snapshot.jobs:
        more = _growth_by_node(job, done.target.get(job.id, {}))
        if more and min(wishes.get(job.id, now), now) + GROW_AFTER_SECONDS > now:  # clocks are set back
            early[job.id] = job
            kept.update(more)
    if not early:
        return done
    if snapshot.explain and done.reasons:
        done = plan(_keep_gpus(snapshot, kept))  # the same plan, with reasons that mention the GPUs kept
    since = {id: min(wishes.get(id, now), now) for id in early}
    batches = {id: early[id].batch if id in early else size for id, size in done.batches.items()}
    done = replace(
        done,
        target={id: early[id].now_on if id in early else where for id, where in done.target.items()},
        batches={id: size for id, size in batches.items() if size},
        state={**done.state, GROWTH_WISHES_KEY: since},
    )
    return _decide_again_by(done, [at + GROW_AFTER_SECONDS for at in since.values()])


def _decide_again_by(plan: Plan, times: Iterable[float]) -> Plan:
    """Return the plan with ``again_at`` no later than the first of these times."""
    first = min((*times, *([plan.again_at] if plan.again_at is not None else [])), default=None)
    return plan if first == plan.again_at else replace(plan, again_at=first)


def protect_young_jobs(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the jobs that were just placed marked as not preemptible."""
    young = {job.id for job in _young_jobs(snapshot)}
    if not young:
        return snapshot
    jobs = tuple(replace(job, preemptible=False) if job.id in young else job for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs)


def _young_jobs(snapshot: Snapshot) -> list[Job]:
    """Return the running preemptible jobs that were placed less than the damping time ago."""
    now, seconds = snapshot.now, snapshot.damping_seconds
    if not seconds:
        return []
    return [
        job
        for job in snapshot.jobs
        if job.running
        and job.preemptible
        and job.started_at is not None
        and job.started_at <= now < job.started_at + seconds
    ]


def _growth_by_node(job: Job, target: Placement) -> dict[NodeId, int]:
    """Return the GPUs that a running job would take in addition to all it holds; none below its minimum."""
    if target is job.now_on or not job.running or job.gpus < job.min_gpus:
        return {}
    if any(target.get(node, 0) < gpus for node, gpus in job.now_on.items()):
        return {}
    return {node: more for node, gpus in target.items() if (more := gpus - job.now_on.get(node, 0)) > 0}


def _keep_gpus(snapshot: Snapshot, kept: Mapping[NodeId, int]) -> Snapshot:
    """Return the snapshot with these GPUs marked as kept."""
    nodes = tuple(replace(node, kept=node.kept + kept.get(node.id, 0)) for node in snapshot.nodes)
    return replace(snapshot, nodes=nodes)
