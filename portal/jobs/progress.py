"""How far a running job is: by what its code reports, or else by its time limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from portal.jobs.curves import remaining_seconds
from portal.jobs.models import Attempt, Job, Progress


@dataclass(frozen=True, slots=True)
class JobProgress:
    """``percent`` from 0 to 100 and the remaining time, of the work or (``by_limit``) of the time limit."""

    percent: float
    seconds_left: float | None
    by_limit: bool
    limit_at: datetime
    """When the time limit ends the attempt."""

    @property
    def exceeds_limit(self) -> bool:
        """Whether the time limit ends the job before its work is done, at its present pace."""
        if self.by_limit or self.seconds_left is None:
            return False
        return timezone.now() + timedelta(seconds=self.seconds_left) > self.limit_at


def progress_of(job: Job, live: Attempt) -> JobProgress | None:
    """Return the progress of a job in its running attempt; None before the attempt has started."""
    return progress_of_many([(job, live)]).get(job.pk)


def progress_of_many(running: Sequence[tuple[Job, Attempt]]) -> dict[int, JobProgress]:
    """Return the progress of jobs, by their number, in one query. Jobs that have not started are left out."""
    now = timezone.now()
    reported = {row.attempt_id: row for row in Progress.objects.filter(attempt__in=[live.pk for _, live in running])}
    found = {}
    for job, live in running:
        if live.started_at is None:
            continue
        allowed = max(0, job.time_limit_seconds - live.counted_seconds)
        ends = live.started_at + timedelta(seconds=allowed)
        row = reported.get(live.pk)
        if row is not None and row.done is not None:
            found[job.pk] = JobProgress(100 * row.done, remaining_seconds(row), False, ends)
        else:
            used = job.time_limit_seconds - max(0.0, (ends - now).total_seconds())
            percent = 100 * used / job.time_limit_seconds if job.time_limit_seconds else 100.0
            found[job.pk] = JobProgress(min(100.0, percent), max(0.0, (ends - now).total_seconds()), True, ends)
    return found
