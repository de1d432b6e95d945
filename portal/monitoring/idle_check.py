"""Checks for idle GPUs once a minute: a line in the history of the job, then the action of the lab's rule."""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from portal.jobs import lifecycle, services
from portal.jobs.models import Attempt, JobEvent
from portal.monitoring import idle
from portal.monitoring.events import GpusIdle, HeldForIdleGpus
from portal.monitoring.idle import IdleRule


def sweep(now: datetime | None = None) -> int:
    """Warn of each idle time once; return how many jobs were warned or put on hold. May be repeated."""
    rule = idle.idle_rule()
    if rule is None:
        return 0
    now = now or timezone.now()
    found = idle.idle_attempts(rule, now)
    acted = 0
    for attempt in Attempt.objects.filter(pk__in=found, ended_at=None).select_related("job").order_by("job_id"):
        acted += _warn_or_hold(attempt, found[attempt.pk], rule, now)
    return acted


@transaction.atomic
def _warn_or_hold(attempt: Attempt, since: datetime, rule: IdleRule, now: datetime) -> bool:
    job = lifecycle.get_locked(attempt.job_id)
    # The samples reach back twice the time of the rule. A longer idle time seems to begin there; it was warned of.
    began = attempt.created_at if now - since >= 2 * rule.after else since
    warned = JobEvent.objects.filter(job=job, kind=GpusIdle.kind, at__gte=began).last()
    verdict = idle.judge(now - since, now - warned.at if warned else None, rule)
    seconds = round((now - since).total_seconds())
    if verdict == "warn":
        lifecycle.record(job, GpusIdle(attempt.number, rule.percent, seconds, rule.stops))
    elif verdict == "stop":
        services.hold_by_rule(job, HeldForIdleGpus(seconds))
    return bool(verdict)
