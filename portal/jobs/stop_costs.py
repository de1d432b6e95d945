"""What running jobs lose when they are stopped now, and from where they restart."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Max

from portal.jobs.models import Attempt, CheckpointSet, Job
from portal.sentences.stops import StopCost


def stop_costs(jobs: Iterable[int], now: datetime) -> dict[int, StopCost]:
    """Return what each running job of these would lose, by its number, with three queries."""
    numbers = list(jobs)
    started = dict(
        Attempt.objects.filter(job__in=numbers, ended_at=None, started_at__isnull=False)
        .values_list("job")
        .annotate(started=Max("started_at"))
    )
    taken = dict(CheckpointSet.objects.filter(job__in=numbers).values_list("job", "taken_at"))
    resumable = dict(Job.objects.filter(pk__in=started).values_list("pk", "resumable"))
    return {
        job: StopCost(
            resumable[job],
            max(0.0, (now - since).total_seconds()),
            max(0.0, (now - taken[job]).total_seconds()) if job in taken else None,
        )
        for job, since in started.items()
    }
