"""Requests for more time: one that waits for an admin, and one that was granted."""

from datetime import datetime, timedelta

from django.urls import reverse

from portal.accounts.models import AuditEntry, User
from portal.jobs import events
from portal.jobs.events import Event
from portal.jobs.models import Job, JobEvent, JobState
from portal.jobs.time_extensions.messages import TimeExtensionAsked, TimeExtensionDecided
from portal.jobs.time_extensions.models import TimeExtension
from portal.notifications import kinds
from portal.notifications.models import Notice
from scheduling.messages import Message

HOUR = 3600
ASKED = (4 * HOUR, "The loss still falls. Four more hours save a second run.", "")
GRANTED = (2 * HOUR, "Reading the data takes longer than in the last run.", "The night is quiet. Good luck!")
"""Each with the seconds, the reason, and the answer of the admin; empty for a request that waits."""


def ask_for_more(admin: User, now: datetime) -> None:
    """Ask for more time for the two jobs that run for the longest time; the admin has granted the first request."""
    running = Job.objects.filter(state=JobState.RUNNING, started_at__isnull=False).exclude(submitted_by=admin)
    jobs = list(running.select_related("submitted_by", "project").order_by("started_at", "pk")[:2])
    for job, (seconds, reason, answer) in zip(reversed(jobs), (ASKED, GRANTED), strict=False):
        last = JobEvent.objects.filter(job=job).latest("seq")
        asked_at = last.at + (now - last.at) / 3
        request = TimeExtension(job=job, asked_by=job.submitted_by, asked_at=asked_at, seconds=seconds, reason=reason)
        _record(job, last.seq + 1, asked_at, events.TimeAsked(str(job.submitted_by), seconds, reason), job.submitted_by)
        about = (job.pk, job.name, job.project.name)
        asked = TimeExtensionAsked(*about, str(job.submitted_by), seconds, reason)
        _notify(admin, kinds.TIME_ASKED, asked, reverse("forecast:time-requests"), asked_at)
        if answer:
            at = asked_at + min(timedelta(minutes=20), (now - asked_at) / 2)
            _grant(admin, request, answer, at, last.seq + 2)
        request.save()


def _grant(admin: User, request: TimeExtension, answer: str, at: datetime, seq: int) -> None:
    job = request.job
    before, after = job.time_limit_seconds, request.limit_if_granted
    request.status, request.decided_by, request.decided_at = TimeExtension.Status.GRANTED, admin, at
    request.answer, job.time_limit_seconds = answer, after
    job.save(update_fields=["time_limit_seconds"])
    _record(job, seq, at, events.TimeGranted(str(admin), request.seconds, after, str(request.asked_by)), admin)
    AuditEntry.objects.create(
        at=at, actor=admin, action="job.time_granted", target=f"job {job.pk}",
        before={"time_limit_seconds": before}, after={"time_limit_seconds": after},
    )  # fmt: skip
    decided = TimeExtensionDecided(job.pk, job.name, job.project.name, str(admin), request.seconds, True, answer)
    _notify(request.asked_by, kinds.MORE_TIME, decided, reverse("jobs:detail", args=[job.pk]), at)


def _record(job: Job, seq: int, at: datetime, event: Event, actor: User) -> None:
    JobEvent.objects.create(job=job, seq=seq, at=at, kind=event.kind, data=event.data(), actor=actor)


def _notify(user: User, kind: str, content: Message, path: str, at: datetime) -> None:
    Notice.objects.create(kind=kind, user=user, content=content.data(), path=path, at=at)
