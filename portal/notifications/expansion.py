"""Turns notices into deliveries: what they say, who may still know it, and where it goes by what people chose."""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Max, Q
from django.urls import reverse
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import silence
from portal.jobs.causes import without_detail
from portal.jobs.models import Attempt, Job, JobEvent
from portal.notifications import kinds, messages
from portal.notifications.kinds import event_for
from portal.notifications.mail import is_delivered
from portal.notifications.models import Channel, Delivery, MutedProject, Notice, NotificationSettings, Preferences
from portal.notifications.outbox import wake_readers
from portal.notifications.schedule import due_at
from portal.projects.models import Project
from scheduling.messages import Message

logger = logging.getLogger(__name__)

BATCH = 200
LOG_WAIT = timedelta(seconds=20)
"""How long a failure waits for the rest of the log, in which its cause is."""


def expand(now: datetime | None = None) -> int:
    """Expand the notices that are new, the oldest first; return how many. May run several times at once."""
    now = now or timezone.now()
    done = 0
    for notice in Notice.objects.filter(expanded_at=None).select_related("job__project", "user").order_by("pk")[:BATCH]:
        if notice.kind == kinds.FAILED and _awaits_log(notice, now):
            continue
        try:
            done += _expand(notice, now)
        except DatabaseError:
            raise
        except Exception:
            # One that cannot be expanded must not keep back the others, now or at the next tick.
            logger.exception("notice %s could not be prepared", notice.pk)
            Notice.objects.filter(pk=notice.pk).update(expanded_at=now)
    return done


def _awaits_log(notice: Notice, now: datetime) -> bool:
    if notice.job is None or now - notice.at >= LOG_WAIT:
        return False
    last = notice.job.attempts.order_by("-number").first()
    return last is not None and last.containers.filter(collected_at=None, running_at__isnull=False).exists()


@transaction.atomic
def _expand(notice: Notice, now: datetime) -> bool:
    if not Notice.objects.filter(pk=notice.pk, expanded_at=None).update(expanded_at=now):
        return False
    content = content_of(notice)
    notice.content, notice.path = content, notice.path or path_of(notice)
    user = notice.user if _is_for_its_user(notice) else None
    if user is not None:
        wanted = Preferences.of(user.pk)
        notice.shown = notice.kind not in wanted.portal_off
        Delivery.objects.bulk_create(_personal_deliveries(notice, user, wanted, now))
        wake_readers([user.pk] if notice.shown else [])
    Delivery.objects.bulk_create(_event_deliveries(notice, now))
    notice.save(update_fields=["content", "path", "shown"])
    return True


def path_of(notice: Notice) -> str:
    return reverse("jobs:detail", args=[notice.job_id]) if notice.job_id else ""


def _is_for_its_user(notice: Notice) -> bool:
    """Return whether the user of a notice may still see what it is about, and wants to hear of it."""
    user = notice.user
    if user is None or not user.is_active or notice.kind == kinds.EVENT:
        return False
    if _was_cancelled_by(user, notice):
        return False  # who cancels a job knows it
    if notice.kind in kinds.FOR_ADMINS and not user.is_admin:
        return False
    if notice.project_id is None:
        return True
    if MutedProject.objects.filter(user=user, project=notice.project_id).exists():
        return False
    return bool(Project.objects.visible_to(user).filter(pk=notice.project_id).exists())


def _was_cancelled_by(user: User, notice: Notice) -> bool:
    content = notice.content
    cancelled = content.get("code") == messages.JobCancelled.code and not content.get("why")
    return cancelled and content.get("user") in ("", str(user))


def _personal_deliveries(notice: Notice, user: User, wanted: Preferences, now: datetime) -> list[Delivery]:
    if settings.DEMO:
        return []
    made = []
    if user.email and notice.kind not in wanted.mail_off and is_delivered():
        last = _last_sent(Q(channel=None, notice__user=user))
        made.append(Delivery(notice=notice, due_at=due_at(wanted, now, last)))
    channels = Channel.objects.filter(scope=Channel.Scope.PERSON, owner=user, paused_at=None)
    enabled = NotificationSettings.current().enabled_types
    for channel in channels:
        if notice.kind in channel.off or channel.type not in enabled:
            continue
        last = None if channel.is_program else _last_sent(Q(channel=channel))
        due = now if channel.is_program else due_at(wanted, now, last)
        made.append(Delivery(notice=notice, channel=channel, due_at=due))
    return made


def _last_sent(where: Q) -> datetime | None:
    found: datetime | None = Delivery.objects.filter(
        where, status=Delivery.Status.SENT, notice__kind__in=kinds.BY_KEY
    ).aggregate(last=Max("closed_at"))["last"]
    return found


def _event_deliveries(notice: Notice, now: datetime) -> list[Delivery]:
    if not notice.event or settings.DEMO:
        return []
    hooks = Channel.objects.filter(paused_at=None).exclude(scope=Channel.Scope.PERSON)
    hooks = hooks.filter(Q(project=None) | Q(project=notice.project_id))
    named = [(hook, event_for(notice.event, hook.events)) for hook in hooks]
    return [Delivery(notice=notice, channel=hook, event=event, due_at=now) for hook, event in named if event]


# --- what a notice is about ---------------------------------------------------------------------------------------


def content_of(notice: Notice) -> dict[str, Any]:
    """Return the content of a notice, from the line of history that it was stored with."""
    job = notice.job
    if job is None:
        return dict(notice.content)
    return _content_for_job(notice, job).data()


def _content_for_job(notice: Notice, job: Job) -> Message:
    about = (job.pk, job.name, job.project.name)
    event: dict[str, Any] = notice.content
    match notice.event:
        case "job.succeeded":
            took = (job.finished_at - job.started_at).total_seconds() if job.finished_at and job.started_at else 0
            return messages.JobSucceeded(*about, round(took))
        case "job.failed":
            last = job.attempts.order_by("-number").first()
            return messages.JobFailed(*about, without_detail(last.cause) if last and "code" in last.cause else None)
        case "job.cancelled":
            return messages.JobCancelled(*about, *_who_cancelled(job))
        case "job.started":
            return messages.JobStartedLate(*about, round(_waited(job, event, notice.at).total_seconds()))
        case "job.silent":
            gpus = _gpu_clues(event, job)
            return messages.JobSilentNotice(*about, event.get("seconds", 0), event.get("ranks", []), gpus)
        case _:
            return messages.JobEventNotice(*about, dict(event))


def _who_cancelled(job: Job) -> tuple[str, dict[str, Any] | None]:
    """Return who cancelled a job, or the event with the reason if it was no person."""
    asked = JobEvent.objects.filter(job=job, kind="cancel_asked").order_by("-seq").first()
    if asked is None:
        return "", None
    user = str(asked.data.get("user", ""))
    return user, None if user else dict(asked.data)


def _waited(job: Job, event: dict[str, Any], at: datetime) -> timedelta:
    before = Attempt.objects.filter(job=job, number=event.get("attempt", 1) - 1).first()
    return max(timedelta(), at - ((before.ended_at if before else None) or job.queued_at))


def _gpu_clues(event: dict[str, Any], job: Job) -> dict[str, Any] | None:
    """Return what the GPUs of a silent job do, if it is silent still."""
    attempt = Attempt.objects.filter(job=job, number=event.get("attempt", 0)).first()
    found = silence.silences(timezone.now(), job.pk).get(attempt.pk) if attempt else None
    gpus = silence.clues(found).gpus if found else None
    return gpus._asdict() if gpus else None
