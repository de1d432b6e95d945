"""Damping: a job that was just placed is not stopped, whatever the policy.

A start costs half a minute until the first step, so a stop that soon after it wastes all that was held. Policies and tiers
see such a job as one that cannot be stopped, so that their plans and reasons agree with what happens. Elastic jobs still
give back what is beyond their least at once: a shrink wastes no work, and the job that waits for those GPUs starts in
seconds. Reservations are not damped, because a person asked for them; drains, cancels and time limits pass no policy.
"""

from dataclasses import replace

from scheduling.types import Job, Plan, Snapshot


def shielded(snapshot: Snapshot) -> Snapshot:
    """Return the same world in which jobs that were just placed cannot be stopped."""
    young = {job.id for job in _young(snapshot)}
    if not young:
        return snapshot
    jobs = tuple(replace(job, preemptible=False) if job.id in young else job for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs)


def looked_at_again(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add to a plan that lets jobs wait the time when the first shield of a running job ends."""
    if not plan.reasons:
        return plan
    ends = [job.started_at + snapshot.damping_seconds for job in _young(snapshot) if job.started_at is not None]
    again_at = min((*ends, *([plan.again_at] if plan.again_at is not None else [])), default=None)
    return plan if again_at == plan.again_at else replace(plan, again_at=again_at)


def _young(snapshot: Snapshot) -> list[Job]:
    """Running jobs that could be stopped, but for being placed less than the damping time ago."""
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
