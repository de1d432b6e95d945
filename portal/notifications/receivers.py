"""Turns what other apps announce into notices, in the same transaction."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.dispatch import receiver
from django.utils import timezone

from portal.accounts import outbox as requests
from portal.accounts.models import User
from portal.jobs import events, lifecycle
from portal.jobs.events import Event
from portal.jobs.models import Attempt, Job, JobState, StopReason
from portal.monitoring.events import GpusIdle, HeldForIdleGpus
from portal.notifications import kinds, outbox
from portal.notifications.models import Channel, NotificationSettings
from scheduling.messages import Message

MAKES_ROOM = (StopReason.PREEMPTED, StopReason.DRAINED)
"""The reasons of stops after which a job restarts by itself, without a fault."""


@receiver(requests.mail_requested, dispatch_uid="notifications.mail")
def mail_requested(message: Message, to: str, **_: Any) -> None:
    outbox.add_mail(message, to)


@receiver(requests.notice_requested, dispatch_uid="notifications.notice")
def notice_requested(users: Iterable[User], kind: str, message: Message, path: str, **_: Any) -> None:
    outbox.add_for_users(users, kind, message, path)


@receiver(lifecycle.recorded, dispatch_uid="notifications.job")
def job_event_recorded(job: Job, event: Event, **_: Any) -> None:
    kind, name = what_it_is(job, event)
    if kind == kinds.EVENT and not _has_webhooks(job.project_id):
        return
    if kind and isinstance(event, Message):
        outbox.add_for_job(job, kind, name, event)


def what_it_is(job: Job, event: Event) -> tuple[str, str]:
    """Return the kind of the notice of an event, and its name in the API; both empty for one that is of no interest."""
    match event:
        case events.Submitted():
            return kinds.EVENT, "job.submitted"
        case events.Started():
            return (kinds.STARTED if _waited_long(job, event.attempt) else kinds.EVENT), "job.started"
        case events.Stopping() if event.reason in MAKES_ROOM:
            return kinds.PREEMPTED, "job.preempted"
        case GpusIdle():
            return kinds.IDLE, "job.idle"
        case HeldForIdleGpus():
            return kinds.IDLE, "job.held"
        case events.Silent():
            return kinds.SILENT, "job.silent"
        case events.Held():
            return (kinds.EVENT if event.user == str(job.submitted_by) else kinds.ENDED), "job.held"
        case events.StateChanged():
            return ENDS.get(event.state, ("", ""))
        case _:
            return "", ""


ENDS = {
    str(JobState.SUCCEEDED): (kinds.ENDED, "job.succeeded"),
    str(JobState.FAILED): (kinds.FAILED, "job.failed"),
    str(JobState.CANCELLED): (kinds.ENDED, "job.cancelled"),
}


def _waited_long(job: Job, attempt: int) -> bool:
    """Return whether a job has waited for this attempt, since its submission or the end of the one before, for long."""
    earlier = Attempt.objects.filter(job=job, number=attempt - 1).values_list("ended_at", flat=True)
    before = earlier.first() if attempt > 1 else None
    waited = timezone.now() - (before or job.queued_at)
    return waited >= timedelta(minutes=NotificationSettings.current().long_wait_minutes)


def _has_webhooks(project_id: int) -> bool:
    rows = Channel.objects.exclude(scope=Channel.Scope.PERSON).filter(paused_at=None)
    return rows.filter(Q(project=None) | Q(project=project_id)).exists()
