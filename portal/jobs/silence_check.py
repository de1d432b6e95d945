"""Checks for jobs without output once a minute: one line in the history of the job for each silence."""

from datetime import datetime

from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from portal.jobs import lifecycle, silence
from portal.jobs.events import Silent
from portal.jobs.models import Attempt, JobEvent
from portal.jobs.silence import Silence

SEEN_CACHE_KEY, SEEN_SECONDS = "silence.seen", 180


def sweep(now: datetime | None = None) -> int:
    """Report each silence once; return how many were new. May be repeated.

    Only silences that two checks in a row have found are reported: after a time without the portal, or a step of the
    clock, output that exists may not have arrived yet.
    """
    now = now or timezone.now()
    found = silence.silences(now)
    before = cache.get(SEEN_CACHE_KEY, {})
    cache.set(SEEN_CACHE_KEY, {attempt: each.since for attempt, each in found.items()}, SEEN_SECONDS)
    lasting = [each for attempt, each in found.items() if before.get(attempt) == each.since]
    reported = _last_reported([each.job for each in lasting])
    return sum(_record(each, now) for each in lasting if _is_new(each, reported))


def _last_reported(jobs: list[int]) -> dict[int, datetime]:
    """Return the start of the silence that was reported last, by job."""
    events = JobEvent.objects.filter(job__in=jobs, kind=Silent.kind).order_by("seq")
    return {job: datetime.fromisoformat(since) for job, since in events.values_list("job", "data__since")}


def _is_new(found: Silence, reported: dict[int, datetime]) -> bool:
    """Return whether a silence is not the reported one: there was output between them."""
    return found.job not in reported or reported[found.job] < found.since


@transaction.atomic
def _record(found: Silence, now: datetime) -> bool:
    """Write the line of history, unless the attempt is about to end or another check has just written it."""
    job = lifecycle.get_locked(found.job)
    attempt = Attempt.objects.filter(pk=found.attempt, ended_at=None, wanted=Attempt.Wanted.RUN).first()
    if attempt is None or not _is_new(found, _last_reported([job.pk])):
        return False
    lifecycle.record(job, Silent(attempt.number, found.since.isoformat(), found.seconds(now), found.rank_names))
    return True
