"""The notices of the month's last days, from the histories of the jobs."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import F

from portal.jobs import events
from portal.jobs.models import Job
from portal.notifications import kinds
from portal.notifications.expansion import expand
from portal.notifications.models import Notice
from portal.notifications.receivers import what_it_is
from portal.ops.demo.history import HistoryLine
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.simulation import END
from portal.ops.demo.workload import DAY
from scheduling.messages import Message

DAYS = 2.0
"""How many days before the start of the demo the notices begin."""
MAX_BATCHES = 1000
UNREAD_HOURS = 6
"""Older notices have been read."""


def write_notices(written: MonthRows, histories: Sequence[tuple[Job, list[HistoryLine]]]) -> None:
    """Store the notices of jobs that ended, failed or were preempted, as the portal does when it happens."""
    found: list[tuple[float, Job, str, str, Message]] = []
    for job, lines in histories:
        for when, event, _ in lines:
            if when < END - DAYS * DAY or not isinstance(event, events.StateChanged | events.Stopping):
                continue
            kind, name = what_it_is(job, event)
            if kind in (kinds.ENDED, kinds.FAILED, kinds.PREEMPTED):
                found.append((when, job, kind, name, event))
    found.sort(key=lambda each: each[0])
    Notice.objects.bulk_create(
        Notice(
            kind=kind, event=name, user_id=job.submitted_by_id, project_id=job.project_id, job=job,
            content=content.data(), at=written.at(when),
        )
        for when, job, kind, name, content in found
    )  # fmt: skip


def show_notices(now: datetime) -> None:
    """Make all notices appear in the portal, the older ones as read."""
    for _ in range(MAX_BATCHES):
        if not expand(now):
            break
    read = Notice.objects.filter(shown=True, at__lt=now - timedelta(hours=UNREAD_HOURS))
    read.update(read_at=F("at") + timedelta(minutes=50))
