"""The queue of the lab: all jobs that run or wait, in the order in which the scheduler considers them.

Members see who waits, why, and who holds GPUs, unless an admin has restricted that; the title and number of a job only
where they may see its project.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, IntegerField, QuerySet, Value, When
from django.db.models.functions import Coalesce

from portal.accounts.models import LabSettings, User
from portal.jobs.dependencies import WAITING_CODES
from portal.jobs.job_list import TIER_ORDER, with_list_columns
from portal.jobs.models import Job, JobState
from portal.jobs.occupancy import visible_job_ids
from portal.sentences import sentence_of

MAX_ROWS = 500
"""The API counts more rows and does not list them."""
PUBLIC_TEXTS = {"code", "node", "title", "resource"}
"""The parameters of reasons that name nodes and environments."""
LIMIT_REASONS, LIMIT_TEXTS = {"limit_reached", "above_limit"}, {"name"}
"""These name the person of the row, or their group."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A job of the lab as one reader may see it."""

    job: Job
    visible: bool
    """The reader may see its project; otherwise show neither its number nor a word of it."""
    mine: bool

    @property
    def title(self) -> str:
        return self.job.name if self.visible else "private project"

    @property
    def person(self) -> str:
        return str(self.job.submitted_by.username)

    @property
    def running(self) -> bool:
        return self.job.state == JobState.RUNNING

    @property
    def held_gpus(self) -> int:
        return int(getattr(self.job, "held_gpus", 0))

    @property
    def reason(self) -> Any:
        """The message why it waits; of jobs that the reader may not see only what is a fact of the lab."""
        reason = self.job.waiting_reason
        if self.running:
            return ""
        if not self.visible and isinstance(reason, dict) and reason.get("code") in WAITING_CODES:
            return reason | {"after": None}
        return reason if self.visible or is_public_reason(reason) else ""

    @property
    def why(self) -> str:
        """Why it waits, as a sentence."""
        return sentence_of(self.reason)


def is_public_reason(content: Any) -> bool:
    """Return whether a reason consists of numbers and names of nodes, environments and owners of limits.

    Other texts, such as what a node reported about a job or what a policy of the lab wrote, stay with those who may see it.
    """
    if isinstance(content, dict):
        allowed = PUBLIC_TEXTS | (LIMIT_TEXTS if content.get("code") in LIMIT_REASONS else set())
        return all(name in allowed or is_public_reason(value) for name, value in content.items())
    if isinstance(content, list):
        return all(is_public_reason(each) for each in content)
    return content is None or isinstance(content, int | float)


@dataclass(frozen=True, slots=True)
class LabQueue:
    rows: tuple[QueueRow, ...]
    running: int
    waiting: int

    @property
    def left_out(self) -> int:
        """Jobs that are counted and not listed."""
        return self.running + self.waiting - len(self.rows)


def may_see_queue(user: User) -> bool:
    """Return whether a user may see the jobs of the whole lab, without the titles of other projects."""
    return user.is_admin or LabSettings.current().queue_for_members


def lab_queue(reader: User, limit: int = MAX_ROWS) -> list[QueueRow]:
    """Return the first rows of the queue: jobs that run, oldest start first, then those that wait, by their place.

    Two queries. The caller has asked ``may_see_queue``.
    """
    return rows_as_seen_by(reader, list(jobs_in_queue()[:limit]))


def jobs_in_queue() -> QuerySet[Job]:
    """Return the jobs that run or wait in the order of the queue, with the columns of lists."""
    unfinished = Job.objects.filter(state__in=(JobState.RUNNING, JobState.QUEUED))
    return with_list_columns(in_queue_order(unfinished))


def next_in_queue(reader: User, limit: int) -> list[QueueRow]:
    """Return the first jobs that wait for GPUs, in two queries."""
    return rows_as_seen_by(reader, list(with_list_columns(in_queue_order(waiting_jobs()))[:limit]))


def waiting_jobs() -> QuerySet[Job]:
    """Return the jobs that wait for GPUs."""
    return Job.objects.filter(state=JobState.QUEUED, intent=Job.Intent.RUN)


def whole_queue(reader: User) -> LabQueue:
    """Return the queue with the number of jobs, in four queries."""
    return LabQueue(tuple(lab_queue(reader)), *count_in_queue())


def count_in_queue() -> tuple[int, int]:
    """Return how many jobs run and how many wait, in two queries."""
    states = Job.objects.order_by()
    return states.filter(state=JobState.RUNNING).count(), states.filter(state=JobState.QUEUED).count()


def in_queue_order(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Order jobs as the scheduler considers them; those that run come first."""
    tiers = [When(tier=tier, then=Value(place)) for place, tier in enumerate(TIER_ORDER)]
    return jobs.order_by(
        Case(When(state=JobState.RUNNING, then=Value(0)), default=Value(1), output_field=IntegerField()),
        Case(When(state=JobState.RUNNING, then=F("started_at"))),
        F("queue_position").asc(nulls_last=True),  # a new job has no place before the next cycle
        "opportunistic",
        Case(*tiers, default=Value(len(tiers)), output_field=IntegerField()),
        "-priority",
        Coalesce("ready_at", "submitted_at"),
        "pk",
    )


def rows_as_seen_by(reader: User, jobs: Sequence[Job]) -> list[QueueRow]:
    """Return jobs as a reader may see them. One query."""
    known = visible_job_ids(reader, [job.pk for job in jobs])
    return [QueueRow(job, job.pk in known, job.submitted_by_id == reader.pk) for job in jobs]
