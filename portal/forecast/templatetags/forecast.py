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
from portal.jobs.models import Job

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
