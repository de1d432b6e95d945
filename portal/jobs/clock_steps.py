"""Corrects the times from which limits are counted after a step of the wall clock.

Time limits, patience with containers that start or stop, and what users are charged for are differences between now and
a stored time. When the clock is set by an hour, each of them would be wrong by an hour: jobs would run into their time
limits, or GPUs would be held an hour for nothing. So the stored times of live attempts are moved with the clock. Histories
are not changed; reservations and deadlines mean the wall clock.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Least

from portal.cluster.models import Node
from portal.jobs.clock import TOLERANCE_SECONDS, ClockStep, WallClock
from portal.jobs.models import Allocation, Attempt, Container, Job, JobState

logger = logging.getLogger(__name__)

TOLERANCE = timedelta(seconds=TOLERANCE_SECONDS)
MOVED_TIMES: dict[type[models.Model], tuple[str, ...]] = {
    Attempt: ("created_at", "started_at"),
    Container: ("assigned_at", "state_since", "running_at", "stop_requested_at", "exited_at"),
    Allocation: ("allocated_at", "requested_back_at"),
}
"""The times of live attempts that are moved, in the order in which rows are locked."""


def correct_times(clock: WallClock, now: datetime, *, in_doubt: bool) -> None:
    """Move the times of live attempts by the step of the clock since the last call, once the transaction is committed.

    A step while the scheduler was down cannot be measured: only times in the future are pulled back
    (while the clock is in doubt), so that every limit counts from now at the latest.
    """
    step = clock.step()
    if step.seconds:
        logger.warning("the wall clock was set by %+.0f s; times of running jobs are moved with it", step.seconds)
    if step.seconds or in_doubt:
        _move_all_times(step, now)
    transaction.on_commit(clock.mark_corrected)


@transaction.atomic
def _move_all_times(step: ClockStep, now: datetime) -> None:
    running = Job.objects.select_for_update(no_key=True).filter(state=JobState.RUNNING)
    list(running.order_by("pk").values_list("pk"))  # in the order in which all transactions lock them
    # Before the times of attempts: a job with several attempts started with the first.
    first = Job.objects.filter(attempts__ended_at__isnull=True, attempts__started_at=F("started_at"))
    _move_times(first, "started_at", step, now)
    for model, names in MOVED_TIMES.items():
        for name in names:
            _move_times(_affected_rows(model), name, step, now)
    Node.objects.filter(last_seen_at__gt=now + TOLERANCE).update(last_seen_at=now)


def _affected_rows(model: type[models.Model]) -> QuerySet[Any]:
    """Return the rows of live attempts; containers count until their logs and checkpoints are stored, for which others wait."""
    if model is Container:
        waited_for = Q(collected_at__isnull=True, node__removed_at__isnull=True)
        return Container.objects.filter(Q(attempt__ended_at__isnull=True) | waited_for)
    owner = "" if model is Attempt else "attempt__"
    return model._default_manager.filter(**{f"{owner}ended_at__isnull": True})


def _move_times(rows: QuerySet[Any], name: str, step: ClockStep, now: datetime) -> None:
    """Move one time of the rows. Times since the last measurement were written by the new clock and are not moved."""
    if step.seconds:
        looked = now - timedelta(seconds=step.since_seconds)
        before = rows.filter(Q(**{f"{name}__lt": looked}) | Q(**{f"{name}__gt": now + TOLERANCE}))
        before.update(**{name: Least(F(name) + timedelta(seconds=step.seconds), now)})
    else:
        rows.filter(**{f"{name}__gt": now + TOLERANCE}).update(**{name: now})
