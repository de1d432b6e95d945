"""A user's own jobs on the home page: those that wait and run, and those that finished recently.

``finished_at`` is null in the unfinished states and in no other: naming it lets the database use the index of a user's jobs
by that time, whatever number of jobs they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Case, When

from portal.accounts.models import User
from portal.jobs.job_list import with_list_columns
from portal.jobs.models import UNFINISHED_STATES, Attempt, Job, JobState
from portal.jobs.progress import JobProgress, progress_of_many
from portal.jobs.sparklines import Sparkline, sparklines_of
from portal.monitoring.board import in_minutes

MAX_ACTIVE = 10
MAX_RECENT = 5


class LiveAttempt(NamedTuple):
    attempt: Attempt
    progress: JobProgress | None
    """None before it has started."""


def live_attempts(user: User, now: datetime) -> dict[int, LiveAttempt]:
    """Return the live attempts of a user's jobs by job, with their progress. Two queries."""
    mine = Job.objects.visible_to(user).filter(submitted_by=user, state=JobState.RUNNING, finished_at=None)
    attempts = list(Attempt.objects.filter(ended_at=None, job__in=mine).select_related("job").defer("job__env_vars"))
    progress = progress_of_many(attempts, now)
    return {each.job_id: LiveAttempt(each, progress.get(each.job_id)) for each in attempts}


@dataclass(frozen=True, slots=True)
class Run:
    """A row of the card."""

    job: Job
    progress: JobProgress | None = None
    """None unless it runs and has started."""
    curve: Sparkline = field(default_factory=list)
    """The values of its main curve, such as its loss; empty without one."""

    @property
    def time_left(self) -> str:
        """Return the time left without seconds, so that the row changes once a minute: of its work, or of its time limit."""
        if self.progress is None:
            return ""
        return in_minutes(max(timedelta(), self.progress.work_left or self.progress.limit_left))


@dataclass(frozen=True, slots=True)
class Runs:
    active: list[Run]
    recent: list[Run]

    @property
    def jobs(self) -> list[Job]:
        return [run.job for run in (*self.active, *self.recent)]

    @property
    def running(self) -> int:
        return sum(run.job.state == JobState.RUNNING for run in self.active)


def runs_of(user: User, live: Mapping[int, LiveAttempt]) -> Runs:
    """Return the runs of a user, those that run first. Two queries, and those of their curves."""
    mine = with_list_columns(Job.objects.visible_to(user).filter(submitted_by=user))
    waits = Case(When(state=JobState.RUNNING, then=0), default=1)
    active = mine.filter(finished_at=None, state__in=UNFINISHED_STATES).order_by(waits, "-pk")[:MAX_ACTIVE]
    recent = mine.filter(finished_at__isnull=False).order_by("-finished_at")  # those of FINISHED_STATES, by an index
    shown = [list(active), list(recent[:MAX_RECENT])]
    curves = sparklines_of(job for jobs in shown for job in jobs)
    progress = {number: each.progress for number, each in live.items()}
    return Runs(*([Run(job, progress.get(job.pk), curves.get(job.pk, [])) for job in jobs] for jobs in shown))
