"""Checks for jobs without output once a minute: one line in the history of the job and one mail for each silence."""

import logging
from datetime import datetime

from django.conf import settings
from django.core.cache import cache
from django.db import transaction
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from kombu.exceptions import OperationalError

from portal.accounts.tasks import mail
from portal.jobs import lifecycle, silence
from portal.jobs.models import Attempt, Job, JobEvent
from portal.jobs.silence import Silence
from portal.ui import duration

log = logging.getLogger(__name__)

SEEN, SEEN_SECONDS = "silence.seen", 180


def sweep(now: datetime | None = None) -> int:
    """Report each silence once; return how many were new. May be repeated.

    Only silences that two checks in a row have found are reported: after a time without the portal, or a step of the
    clock, output that exists may not have arrived yet.
    """
    now = now or timezone.now()
    found = silence.silences(now)
    before = cache.get(SEEN, {})
    cache.set(SEEN, {attempt: each.since for attempt, each in found.items()}, SEEN_SECONDS)
    lasting = [each for attempt, each in found.items() if before.get(attempt) == each.since]
    reported = _reported([each.job for each in lasting])
    return sum(_report(each, now) for each in lasting if _is_new(each, reported))


def _reported(jobs: list[int]) -> dict[int, datetime]:
    """Return the start of the silence that was reported last, by job."""
    events = JobEvent.objects.filter(job__in=jobs, kind=silence.REPORTED).order_by("seq")
    return {job: datetime.fromisoformat(since) for job, since in events.values_list("job", "data__since")}


def _is_new(found: Silence, reported: dict[int, datetime]) -> bool:
    """Return whether a silence is not the reported one: there was output between them."""
    return found.job not in reported or reported[found.job] < found.since


def _report(found: Silence, now: datetime) -> bool:
    if not _record(found, now):
        return False
    _send_mail(found, now)
    return True


@transaction.atomic
def _record(found: Silence, now: datetime) -> bool:
    """Write the line of history, unless the attempt is about to end or another check has just written it."""
    job = lifecycle.locked(found.job)
    attempt = Attempt.objects.filter(pk=found.attempt, ended_at=None, wanted=Attempt.Wanted.RUN).first()
    if attempt is None or not _is_new(found, _reported([job.pk])):
        return False
    text = f"{found.text(now)} It is not stopped for this."
    lifecycle.record(job, silence.REPORTED, text, attempt=attempt.number, since=found.since.isoformat())
    return True


def _send_mail(found: Silence, now: datetime) -> None:
    job = Job.objects.select_related("submitted_by").get(pk=found.job)
    owner = job.submitted_by
    if not owner.email or not owner.is_active or settings.DEMO:
        return
    about = {
        "job": job,
        "text": found.text(now),
        "clues": silence.clues(found),
        "link": settings.SITE_URL + reverse("jobs:detail", args=[job.pk]),
    }
    length = duration((now - found.since).total_seconds())
    subject = f"Schedulearn: {'ranks of' if found.ranks else 'no output from'} job {job.pk}"
    subject += f" are silent for {length}" if found.ranks else f" for {length}"
    try:
        mail.delay(subject, render_to_string("jobs/mail_silent.txt", about), owner.email)
    except OperationalError:
        log.error("The owner of job %s could not be sent a notice of its silence: is Redis up?", job.pk)
