"""The one way to ask a policy: whatever it is, the lab's calendar and tiers hold around it.

The live loop, the simulator, the preview of a switch and "what would help" all come through here.
"""

from collections.abc import Set
from dataclasses import replace
from functools import partial

from scheduling import damping, reservations, tiers
from scheduling.toolkit.projected_state import project
from scheduling.types import Job, JobId, Plan, Policy, Snapshot

TRIES = 4


def decide(policy: Policy, snapshot: Snapshot) -> Plan:
    """Pure like the policy itself. In a lab without reservations and tiers it is the policy's own plan.

    Nobody is disturbed in vain: a job that would get the very same GPUs back in the next turn keeps them. Policies that
    count GPUs without looking at nodes can go to and fro like that, where groups of free ones fall apart.
    """
    pinned: set[JobId] = set()
    for _ in range(TRIES):
        plan = _decide(policy, _pin(snapshot, pinned))
        losing = _losing(snapshot, plan)
        if not losing:
            return plan
        then = _decide(policy, replace(project(snapshot, plan), damping_seconds=0.0, explain=False))
        futile = {job.id for job in losing if dict(then.target.get(job.id, {})) == dict(job.now_on)}
        if not futile:
            return plan
        pinned |= futile
    return _decide(policy, _pin(snapshot, pinned | {job.id for job in losing}))


def _decide(policy: Policy, snapshot: Snapshot) -> Plan:
    def plan(view: Snapshot) -> Plan:
        return damping.around(partial(tiers.plan, policy), view, growth=not hasattr(policy, "grow_after_seconds"))

    return reservations.around(plan, snapshot)


def _losing(snapshot: Snapshot, plan: Plan) -> list[Job]:
    """Running jobs that lose a GPU."""
    losing = []
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        if target is not job.now_on and job.running and any(target.get(node, 0) < n for node, n in job.now_on.items()):
            losing.append(job)
    return losing


def _pin(snapshot: Snapshot, jobs: Set[JobId]) -> Snapshot:
    """The same world in which these jobs keep what they have."""
    if not jobs:
        return snapshot
    return replace(
        snapshot,
        jobs=tuple(
            replace(job, preemptible=False, elastic=False, base=job.now_on) if job.id in jobs else job
            for job in snapshot.jobs
        ),
    )
