"""What a job's page shows of the job after which it starts, and of those that start after it."""

from dataclasses import dataclass

from portal.accounts.models import User
from portal.jobs.models import Job, JobState

MAX_CHILDREN = 10


@dataclass(frozen=True, slots=True)
class Chain:
    """The neighbours of a job that one reader may see."""

    parent_id: int | None
    parent: Job | None
    """None if the reader may not see it."""
    children: tuple[Job, ...]
    more: int
    """Children that are not listed."""
    may_have_more: bool
    """Another job can be submitted to start after this one."""


def chain_of(reader: User, job: Job) -> Chain:
    """Return the neighbours of a job, in three queries at most."""
    visible = Job.objects.visible_to(reader).only("name", "state")
    parent = visible.filter(pk=job.after_id).first() if job.after_id else None
    children = list(visible.filter(after=job.pk).order_by("pk")[: MAX_CHILDREN + 1])
    more = visible.filter(after=job.pk).count() - MAX_CHILDREN if len(children) > MAX_CHILDREN else 0
    ended_badly = job.state in (JobState.FAILED, JobState.CANCELLED) or job.intent == Job.Intent.CANCEL
    return Chain(job.after_id, parent, tuple(children[:MAX_CHILDREN]), more, not ended_badly)
