"""Why a job waits: one plain, true sentence for the user who waits, a different one for each cause.

Recorded cycles contain these sentences, and a replay compares them: a changed sentence shows as a difference.
"""

from collections.abc import Mapping

from scheduling.toolkit.capacity import Capacity
from scheduling.types import Job, JobId, Limit, Snapshot

UNEXPLAINED = "It waits."
"""The reason where no one reads it (``Snapshot.explain``)."""


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def hours(seconds: float) -> str:
    """Return a duration in words: seconds, minutes, hours or days."""
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


def impossible(job: Job, capacity: Capacity) -> str:
    """Return why the job could not start even if it were alone on the open nodes; empty when it could.

    Such a job holds no other job up, under any policy.
    """
    if job.blocked:
        return job.blocked
    if not capacity.nodes:
        return "No node is open for new work now: all are lost, drained or not approved yet."
    scope = capacity.scope(job)
    if not scope.nodes:
        return "None of the nodes it can run on is open for new work now."
    maximum = scope.max_gpus(job)
    if job.min_gpus > maximum:
        where = "the nodes it can run on have" if job.spread else "the largest node it can run on has"
        together = "at once" if job.spread else "on one node"
        return f"It needs {gpus(job.min_gpus)} {together}, but {where} only {maximum}."
    for limit, _ in capacity.limits_of(job):
        if job.min_gpus > limit.max_gpus:
            return (
                f"It needs {gpus(job.min_gpus)}, but the limit for {limit.name} is {limit.max_gpus}: "
                "submit it with fewer, or ask an admin."
            )
    return ""


def limited(job: Job, capacity: Capacity) -> str:
    """Return which limit keeps the job from starting now, or "". Only jobs of its owner or group can change that."""
    for limit, room in capacity.limits_of(job):
        if job.min_gpus > room:
            return _limit_reached(job, limit, room, promised=capacity.promises(limit))
    return ""


def limit_reached_by(job: Job, snapshot: Snapshot, sizes: Mapping[JobId, int], held: Mapping[JobId, int]) -> str:
    """Return which limit leaves too few GPUs for the job when others get these ``sizes``, or "".

    ``held`` has the GPUs that jobs hold now.
    """
    kept = any(node.kept for node in snapshot.nodes)  # for growth that is delayed
    for limit in snapshot.limits:
        if job.id in limit.jobs:
            given = sum(max(sizes.get(other, 0), held.get(other, 0)) for other in limit.jobs)
            room = limit.max_gpus - limit.leaving - limit.elsewhere - given
            if job.min_gpus > room:
                more = kept or given > sum(held.get(other, 0) for other in limit.jobs)
                return _limit_reached(job, limit, room, promised=more)
    return ""


def _limit_reached(job: Job, limit: Limit, room: int, *, promised: bool) -> str:
    held = limit.max_gpus - room
    taken = "in use or promised" if promised else "in use"
    return (
        f"The limit of {gpus(limit.max_gpus)} for {limit.name} is reached: "
        f"{held} {'is' if held == 1 else 'are'} {taken} and it needs {job.min_gpus}."
    )


def shortage(job: Job, capacity: Capacity, ahead: int) -> str:
    """Return that too few GPUs are free, or too few of them together."""
    left, node = capacity.left(job), capacity.fullest(job)
    free = "free for it" if _keeps(job, capacity) else "free"
    maximum, name = (capacity.free[node.id], node.name) if node is not None else (0, "")
    if left <= 0:
        short = _none_free(job, capacity)
    elif left < job.min_gpus:
        short = f"it needs {gpus(job.min_gpus)} at once and only {left} {'is' if left == 1 else 'are'} {free}"
    elif job.spread or maximum >= job.min_gpus:
        short = f"under this policy it does not start yet, though {gpus(left)} {'is' if left == 1 else 'are'} free"
    else:
        short = f"it needs {gpus(job.min_gpus)} at once; the largest group of free ones is {maximum}, on node {name}"
    return _sentence(f"{jobs(ahead)} ahead of it and {short}" if ahead else short)


def _none_free(job: Job, capacity: Capacity) -> str:
    scope = capacity.scope(job)
    whole = "the only GPU" if scope.total == 1 else f"all {scope.total} GPUs"
    where = "" if scope.allowed is None else " of the nodes it can run on"
    taken = "in use or kept for jobs ahead of it" if _keeps(job, capacity) else "in use"
    total = scope.total
    return f"{whole}{where} {'is' if total == 1 else 'are'} {taken}"


def _keeps(job: Job, capacity: Capacity) -> bool:
    """Whether free GPUs of nodes that it can run on are kept for jobs ahead of it, in its layer or a higher one."""
    allowed = capacity.scope(job).allowed
    return any(allowed is None or node in allowed for node in capacity.kept)


def in_line(first: Job, ahead: int) -> str:
    """Return that the first job of the queue comes before, even if GPUs are free."""
    return f"{jobs(ahead)} ahead of it and jobs start strictly in order; the first waits for {gpus(first.min_gpus)}."


def would_hold_up(first: Job, ahead: int, seconds: float | None) -> str:
    """Return that the job could delay the first of the queue, which others may overtake only without delaying it."""
    when = "" if seconds is None else f", expected in about {max(1, round(seconds / 60))} min"
    return f"{jobs(ahead)} ahead of it, and starting now it could hold up the first, which waits for {gpus(first.min_gpus)}{when}."


def outserved(reason: str, job: Job) -> str:
    """Add to a reason that the job was stopped, or waits, because it has had more GPU time than others."""
    return f"{reason.rstrip('.')}; it has had {job.served_gpu_seconds / 3600:.1f} GPU-hours, and jobs that had fewer go first."


def in_turns(reason: str, seconds: int) -> str:
    """Add to a reason that jobs that can be stopped make room at the end of their time slice."""
    return f"{reason.rstrip('.')}; jobs that can be stopped make room after about {max(1, round(seconds / 60))} min."


def promised(count: int) -> str:
    """Return that other jobs are releasing GPUs for this job."""
    return f"{gpus(count)} {'is' if count == 1 else 'are'} being given back by other jobs; then it starts."


def awaiting(job: Job, capacity: Capacity, missing: int) -> str:
    """Explain that a job will start on GPUs of which ``missing`` are not free yet.

    Another job may have started on some of those, so the sentence counts only GPUs that are being released.
    """
    coming = min(missing, capacity.coming_for(job))
    return promised(coming) if coming else shortage(job, capacity, 0)


def saving(job: Job, now: float, have: int, count: int) -> str:
    """Return that the job holds the reservation: GPUs are kept for it as they become free."""
    waited = hours(max(0.0, now - job.submitted_at - job.run_seconds))
    return (
        f"It has waited for {waited} and needs {gpus(count)} at once, so GPUs are saved for it as they come free: "
        f"{have} of {count} so far."
    )


def behind_saved(count: int) -> str:
    """Return that GPUs are free, but kept for the job that holds the reservation."""
    return (
        f"{gpus(count)} {'is' if count == 1 else 'are'} being saved for a job that has waited too long, "
        "and too few others are free."
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
