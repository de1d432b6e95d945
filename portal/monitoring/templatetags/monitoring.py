"""What a job's page shows of its GPUs. Written there as ``{% load monitoring %}``: jobs know nothing of monitoring."""

from typing import Any

from django import template

from portal.jobs.models import Job
from portal.monitoring import views

register = template.Library()


@register.inclusion_tag("monitoring/_job.html")
def job_gpus(job: Job) -> dict[str, Any]:
    """On how many GPUs it ran when, if that changed; what they did over the last attempt, if they said it."""
    return views.about_job(job)
