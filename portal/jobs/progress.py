"""How far a running job is: by what its code reports, or else by its time limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from portal.jobs.curves import remaining_seconds
from portal.jobs.models import Attempt, Progress


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Of a job whose attempt has started."""

    done: float | None
    """The part of its work that is done, from 0 to 1; None if its code does not report that."""
    work_left: timedelta | None
    """The time that its work still takes at the speed of the last steps, if it is known."""
    time_limit: timedelta
    limit_left: timedelta
    """The time until its time limit ends the attempt; negative past it."""

    @property
    def by_limit(self) -> bool:
        """Whether only the time limit is known."""
        return self.done is None

    @property
    def limit_percent(self) -> float:
        """Return how much of the time limit is used."""
        if not self.time_limit:
            return 100.0
        return min(100.0, max(0.0, 100 - 100 * (self.limit_left / self.time_limit)))

    @property
    def percent(self) -> float:
        """Return how much of its work is done; without reports of that, how much of the time limit is used."""
        return self.limit_percent if self.done is None else 100 * self.done

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds of what ``percent`` is about that are left."""
        left = self.limit_left if self.by_limit else self.work_left
        return None if left is None else max(0.0, left.total_seconds())

    @property
    def exceeds_limit(self) -> bool:
        """Whether the time limit ends the job before its work is done, at its present pace."""
        return self.work_left is not None and self.work_left > self.limit_left


def progress_of(live: Attempt) -> JobProgress | None:
    """Return the progress of a running attempt; None before it has started."""
    return progress_of_many([live], timezone.now()).get(live.job_id)


def progress_of_many(live: Sequence[Attempt], now: datetime) -> dict[int, JobProgress]:
    """Return the progress of running attempts, which have their jobs, by the number of the job.

    One query. Attempts that have not started are left out.
    """
    reported = {row.attempt_id: row for row in Progress.objects.filter(attempt__in=live).defer("per_rank")}
    return {
        each.job_id: _progress(each, each.started_at, reported.get(each.pk), now)
        for each in live
        if each.started_at is not None
    }


def _progress(live: Attempt, started_at: datetime, row: Progress | None, now: datetime) -> JobProgress:
    left = remaining_seconds(row) if row is not None else None
    return JobProgress(
        row.done if row is not None else None,
        None if left is None else timedelta(seconds=left),
        timedelta(seconds=live.job.time_limit_seconds),
        timedelta(seconds=live.job.time_limit_seconds - live.counted_seconds) - (now - started_at),
    )
