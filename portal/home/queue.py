"""The next jobs of the lab, with the times at which they probably start."""

from dataclasses import dataclass

from portal.accounts.models import User
from portal.forecast.services import forecasts_of
from portal.hues import Mark, mark_of_person, mark_of_project
from portal.jobs.models import Job
from portal.jobs.queue import may_see_queue, next_in_queue, waiting_jobs
from portal.sentences.short_reasons import short_reason

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job, as far as the reader may know: of another project's only who waits and the expected start."""

    job: Job | None
    """None when the reader may not see it."""
    person: Mark | None
    """None when the reader may not know, either."""
    project: Mark | None
    starts: str
    """``starts in 20 to 40 min``; empty while there is no forecast."""
    mine: bool

    @property
    def reason(self) -> str:
        """Return why it waits in short: the job's page has all of it."""
        return short_reason(self.job.waiting_reason) if self.job is not None else ""


@dataclass(frozen=True, slots=True)
class Queue:
    rows: list[Waiting]
    count: int

    @property
    def left_out(self) -> int:
        return self.count - len(self.rows)


def queue_for(user: User) -> Queue:
    """Return the first jobs in the order of the queue. Four or five queries."""
    names_people = may_see_queue(user)
    rows = next_in_queue(user, SHOWN)
    starts = forecasts_of([row.job for row in rows])
    found = []
    for row in rows:
        forecast, job = starts.get(row.job.pk), row.job
        short = forecast.short if forecast and not forecast.stale else ""
        by = job.submitted_by
        person = mark_of_person(by.pk, by.username, by.first_name, by.last_name)
        if not row.visible:
            found.append(Waiting(None, person if names_people else None, None, short, mine=False))
            continue
        found.append(Waiting(job, person, mark_of_project(job.project_id, job.project.name), short, row.mine))
    return Queue(found, waiting_jobs().count())
