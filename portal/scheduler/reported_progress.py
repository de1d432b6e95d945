"""What training runs have reported of their progress, and the work that is left by it."""

from collections.abc import Set
from typing import NamedTuple

from django.db.models import Q

from portal.jobs.metrics import seconds_left
from portal.jobs.models import Progress
from portal.scheduler.job_history import speed_on
from scheduling import types

MIN_PROGRESS_ERROR, EARLY_ERROR = 0.05, 0.01
"""Relative errors of the remaining time that a training run reports: in its first hundredth it is unknown."""


class ReportedProgress(NamedTuple):
    """The progress that a training run has reported."""

    done: float
    step: int
    step_seconds: float
    ranks: int
    batch: int
    total: int | None

    def remaining(self, speed: types.Curve | None) -> types.Estimate:
        """Estimate the remaining seconds on one GPU from its pace; ``speed`` is that with its present batch size.

        The estimate is less certain at the beginning than at the end.
        """
        seconds = seconds_left(self.done, self.step, self.batch, self.total, self.step_seconds)
        error = min(1.0, MIN_PROGRESS_ERROR + EARLY_ERROR / self.done)
        return types.Estimate(round(seconds * speed_on(self.ranks, speed), 1), "measured", round(error, 3))


def read_progress(begun: Set[int]) -> dict[int, ReportedProgress]:
    """Return by job the progress of its last attempt that counts: the present one, or one that the next resumes."""
    goes_on = Q(attempt__ended_at__isnull=True) | Q(attempt__job__resumable=True)
    rows = Progress.objects.filter(goes_on, attempt__job__in=begun, done__gt=0, step_seconds__gt=0, ranks__gt=0)
    facts = "done", "step", "step_seconds", "ranks", "batch", "total"
    ordered = rows.order_by("attempt__number").values_list("attempt__job", *facts)
    return {job: ReportedProgress(*values) for job, *values in ordered}
