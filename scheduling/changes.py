"""The changes that a plan makes to each job, in the words of users."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scheduling.messages import Message
from scheduling.toolkit.placement import without_empty_nodes
from scheduling.types import Job, JobId, Placement, Snapshot

Kind = Literal["preempted", "restarts", "shrinks", "moves", "grows", "starts", "waits", "goes on"]
KINDS: tuple[Kind, ...] = ("preempted", "restarts", "shrinks", "moves", "grows", "starts", "waits", "goes on")
"""The most disruptive first. *restarts*: stopped and started with other GPUs; *moves*: to as many other GPUs."""
DISRUPTIVE_KINDS: frozenset[Kind] = frozenset({"preempted", "restarts", "shrinks", "moves", "grows"})
"""The kinds of change that disturb a running job."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """What a plan changes for one job."""

    job: JobId
    kind: Kind
    before: Placement
    after: Placement
    reason: Message | None = None
    """Why the job waits, for a waiting job."""


def changes(
    snapshot: Snapshot, target: Mapping[JobId, Placement], reasons: Mapping[JobId, Message]
) -> tuple[JobChange, ...]:
    """Return one change per job that is not being stopped, the most disruptive first, then in the order of the queue."""
    found = [
        (KINDS.index(kind), job.queue_key, JobChange(job.id, kind, job.now_on, after, reasons.get(job.id)))
        for job in snapshot.jobs
        if not job.stopping
        for after in [without_empty_nodes(target.get(job.id, {}))]
        for kind in [kind_of(job, after)]
    ]
    return tuple(change for *_, change in sorted(found, key=lambda one: one[:2]))


def kind_of(job: Job, after: Placement) -> Kind:
    """Return the kind of change from the current GPUs of a job to ``after``."""
    if not job.now_on:
        return "starts" if after else "waits"
    if not after:
        return "preempted"
    if after == job.now_on:
        return "goes on"
    if not job.elastic or any(after.get(node, 0) < gpus for node, gpus in job.base.items()):
        return "restarts"
    more = sum(after.values()) - job.gpus
    return "moves" if not more else "grows" if more > 0 else "shrinks"
