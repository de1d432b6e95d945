"""The next jobs of the lab, with the times at which they probably start."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from portal.accounts.models import User
from portal.forecast.services import forecasts_of
from portal.hues import Mark, mark_of_person, mark_of_project
from portal.jobs.models import Job, JobState
from portal.jobs.occupancy import visible_job_ids

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job, as far as the reader may know: of another project's job only the expected start."""

    job: Job | None
    person: Mark | None
    project: Mark | None
    starts: str
    """``starts in 20 to 40 min``; empty while there is no forecast."""
    mine: bool

    @property
    def reason(self) -> str:
        """Return the first part of why it waits: the job's page has all of it."""
        why = self.job.why_waiting if self.job is not None else ""
        first, cut, _ = why.partition(";")
        return f"{first}." if cut else why


@dataclass(frozen=True, slots=True)
class Queue:
    rows: list[Waiting]
    count: int

    @property
    def left_out(self) -> int:
        return self.count - len(self.rows)


def queue_for(user: User, now: datetime) -> Queue:
    """Return the first jobs in the order of the queue. Four queries."""
    waiting = Job.objects.filter(state=JobState.QUEUED, intent=Job.Intent.RUN)
    rows = waiting.select_related("project", "submitted_by").defer("description", "arguments", "env_vars")
    first = list(rows.order_by(F("queue_position").asc(nulls_last=True), "pk")[:SHOWN])
    starts = forecasts_of(first)
    known = visible_job_ids(user, [job.pk for job in first]) if first else set()
    found = []
    for job in first:
        forecast = starts.get(job.pk)
        short = forecast.short if forecast and not forecast.stale else ""
        if job.pk not in known:
            found.append(Waiting(None, None, None, short, mine=False))
            continue
        by = job.submitted_by
        person = mark_of_person(by.pk, by.username, by.first_name, by.last_name)
        project = mark_of_project(job.project_id, job.project.name)
        found.append(Waiting(job, person, project, short, by.pk == user.pk))
    return Queue(found, waiting.count())
