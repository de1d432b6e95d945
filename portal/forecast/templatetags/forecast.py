"""Template tags with which pages about jobs show forecasts (``{% load forecast %}``): the jobs app does not import it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.cluster.slots import lab_noun
from portal.forecast import services, words
from portal.forecast.models import Forecast
from portal.forecast.services import ForecastText
from portal.jobs.models import UNFINISHED_STATES, Job, TimeExtension

register = template.Library()


@register.inclusion_tag("forecast/_card.html")
def waiting_card(job: Job) -> dict[str, Any]:
    """Show why a queued job waits, until when, and what would help."""
    row = Forecast.objects.defer("trail").filter(job=job).first()
    return {
        "job": job,
        "forecast": services.describe(row),
        "measured": services.reliability_of(row),
        "now": timezone.now(),
        "unit": lab_noun(),
    }


@register.simple_tag
def forecasts_for(jobs: Iterable[Job]) -> Mapping[int, ForecastText]:
    """Return the forecasts of all rows: ``{% forecasts_for jobs as forecasts %}``, then ``{{ forecasts|start_of:job }}``."""
    return services.forecasts_of(jobs)


@register.filter
def start_of(forecasts: Mapping[int, ForecastText], job: Job) -> str:
    found = forecasts.get(job.pk)
    return found.short if found and not found.stale else ""


@register.simple_tag
def clock(moment: datetime, now: datetime) -> SafeString:
    """Return a time of day, which times.js converts to the reader's time zone."""
    return format_html(
        '<time datetime="{}" data-clock>{}</time>',
        moment.isoformat(timespec="seconds"),
        words.clock(moment, now, zone=True),
    )


@register.inclusion_tag("forecast/_more_time.html", takes_context=True)
def more_time(context: dict[str, Any], job: Job, may_act: bool) -> dict[str, Any]:
    """Show the last request for more time of a job that has run and has not ended; nothing without any. One query."""
    asked = job.started_at is not None and job.state in UNFINISHED_STATES
    rows = TimeExtension.objects.select_related("asked_by", "decided_by").filter(job=job) if asked else None
    row = rows.first() if rows is not None else None
    if row is not None:
        row.job = job
    return {
        "row": row,
        "job": job,
        "may_act": may_act,
        "csrf_token": context.get("csrf_token"),
        "user": context["user"],
    }
