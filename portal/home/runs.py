"""A user's own jobs on the home page: those that wait and run, and those that finished recently.

``finished_at`` is null in the unfinished states and in no other: naming it lets the database use the index of a user's jobs
by that time, whatever number of jobs they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from portal.accounts.models import User
from portal.jobs.curves import remaining_seconds
from portal.jobs.job_list import with_list_columns
from portal.jobs.models import UNFINISHED_STATES, Attempt, Job, JobState, Progress
from portal.jobs.sparklines import Sparkline, sparklines_of
from portal.monitoring.board import in_minutes

MAX_ACTIVE = 10
MAX_RECENT = 5


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """How far a running attempt is: by the reports of its training if it makes any, otherwise by its time limit."""

    attempt: Attempt
    progress: Progress | None
    now: datetime

    @property
    def limit_left(self) -> timedelta | None:
        """Return the time until its time limit; None before it has started."""
        if self.attempt.started_at is None:
            return None
        limit = timedelta(seconds=self.attempt.job.time_limit_seconds - self.attempt.counted_seconds)
        return limit - (self.now - self.attempt.started_at)

    @property
    def training_left(self) -> timedelta | None:
        """Return the time that its training still needs at the speed of the last steps; None if it is not reported."""
        seconds = remaining_seconds(self.progress) if self.progress is not None else None
        return None if seconds is None else timedelta(seconds=seconds)


def live_attempts(user: User, now: datetime) -> dict[int, LiveAttempt]:
    """Return the live attempts of a user's jobs by job, with their progress. Two queries."""
    mine = Job.objects.visible_to(user).filter(submitted_by=user, state=JobState.RUNNING, finished_at=None)
    attempts = list(Attempt.objects.filter(ended_at=None, job__in=mine).select_related("job").defer("job__env_vars"))
    progress = {row.attempt_id: row for row in Progress.objects.filter(attempt__in=attempts).defer("per_rank")}
    return {each.job_id: LiveAttempt(each, progress.get(each.pk), now) for each in attempts}


@dataclass(frozen=True, slots=True)
class Run:
    """A row of the card."""

    job: Job
    live: LiveAttempt | None = None
    curve: Sparkline = field(default_factory=list)
    """The values of its main curve, such as its loss; empty without one."""

    @property
    def trained_percent(self) -> float | None:
        done = self.live.progress.done if self.live and self.live.progress else None
        return None if done is None else round(100 * done, 1)

    @property
    def limit_percent(self) -> float | None:
        """Return how much of its time limit is used."""
        left = self.live.limit_left if self.live else None
        if left is None:
            return None
        return round(min(100.0, max(0.0, 100 - 100 * left.total_seconds() / self.job.time_limit_seconds)), 1)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until its training is done; without reports of that, until its time limit."""
        if self.live is None:
            return None
        left = self.live.training_left or self.live.limit_left
        return None if left is None else left.total_seconds()

    @property
    def time_left(self) -> str:
        """Return the time left without seconds, so that the row changes once a minute."""
        seconds = self.seconds_left
        return "" if seconds is None else in_minutes(timedelta(seconds=max(0.0, seconds)))


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
    """Return the runs of a user. Two queries, and those of their curves."""
    mine = with_list_columns(Job.objects.visible_to(user).filter(submitted_by=user))
    active = mine.filter(finished_at=None, state__in=UNFINISHED_STATES)[:MAX_ACTIVE]
    recent = mine.filter(finished_at__isnull=False).order_by("-finished_at")  # those of FINISHED_STATES, by an index
    shown = [list(active), list(recent[:MAX_RECENT])]
    curves = sparklines_of(job for jobs in shown for job in jobs)
    return Runs(*([Run(job, live.get(job.pk), curves.get(job.pk, [])) for job in jobs] for jobs in shown))
