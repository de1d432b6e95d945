"""The only way to ask a policy: requests for GPUs, the lab's reservations, tiers, damping and places of data apply to every policy.

The scheduler, the simulator, the preview of a switch and "what would help" all use it.
"""

from collections.abc import Set
from dataclasses import replace
from functools import partial

from scheduling import damping, gpu_requests, reservations, tiers
from scheduling.affordable import plan_what_is_affordable
from scheduling.data_locality import prefer_cached_data
from scheduling.messages import Text
from scheduling.toolkit.projected_state import project
from scheduling.types import Job, JobId, Plan, Policy, Snapshot

MAX_ATTEMPTS = 4


def decide(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the plan of the policy under the rules of the lab; without reservations and tiers, the policy's own plan.

    It is as pure as the policy. Between equal nodes, a job starts where its data is.
    """
    return prefer_cached_data(snapshot, _decide_without_futile_stops(policy, snapshot))


def _decide_without_futile_stops(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return a plan in which no job is disturbed without need: one that would get the same GPUs back in the next cycle keeps
    them. Policies that count GPUs without looking at nodes can oscillate like that where free GPUs are scattered."""
    snapshot = gpu_requests.with_accepted_nodes(snapshot)
    pinned: set[JobId] = set()
    for _ in range(MAX_ATTEMPTS):
        plan = _decide_once(policy, _pin_jobs(snapshot, pinned))
        losing = _jobs_losing_gpus(snapshot, plan)
        if not losing:
            return plan
        then = _decide_once(policy, replace(project(snapshot, plan), damping_seconds=0.0, explain=False))
        futile = {job.id for job in losing if dict(then.target.get(job.id, {})) == dict(job.now_on)}
        if not futile:
            return plan
        pinned |= futile
    return _decide_once(policy, _pin_jobs(snapshot, pinned | {job.id for job in losing}))


def _decide_once(policy: Policy, snapshot: Snapshot) -> Plan:
    def plan(view: Snapshot) -> Plan:
        return _with_messages(
            damping.plan_with_damping(
                partial(tiers.plan, policy), view, growth=not hasattr(policy, "grow_after_seconds")
            )
        )

    def plan_of_requests(view: Snapshot) -> Plan:
        return gpu_requests.plan_with_gpu_requests(plan, view)

    return plan_what_is_affordable(partial(reservations.plan_with_reservations, plan_of_requests), snapshot)


def _with_messages(plan: Plan) -> Plan:
    """Return the plan with messages for reasons; those of a lab's own policy may be plain sentences."""
    if not any(isinstance(reason, str) for reason in plan.reasons.values()):
        return plan
    reasons = {job: Text(reason) if isinstance(reason, str) else reason for job, reason in plan.reasons.items()}
    return replace(plan, reasons=reasons)


def _jobs_losing_gpus(snapshot: Snapshot, plan: Plan) -> list[Job]:
    """Return the running jobs that lose a GPU."""
    losing = []
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        if target is not job.now_on and job.running and any(target.get(node, 0) < n for node, n in job.now_on.items()):
            losing.append(job)
    return losing


def _pin_jobs(snapshot: Snapshot, jobs: Set[JobId]) -> Snapshot:
    """Return the snapshot with these jobs fixed to the GPUs that they hold."""
    if not jobs:
        return snapshot
    return replace(
        snapshot,
        jobs=tuple(
            replace(job, preemptible=False, elastic=False, base=job.now_on) if job.id in jobs else job
            for job in snapshot.jobs
        ),
    )
