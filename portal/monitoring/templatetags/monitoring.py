"""The GPUs on the page of a job, loaded with ``{% load monitoring %}``, since jobs do not depend on monitoring."""

from typing import Any

from django import template

from portal.jobs.models import Job
from portal.monitoring import views

register = template.Library()


@register.inclusion_tag("monitoring/_idle.html")
def job_idleness(job: Job) -> dict[str, Any]:
    """Warn while the GPUs of the job are idle."""
    return views.job_idle_context(job)


@register.inclusion_tag("monitoring/_resizes.html")
def job_resizes(job: Job) -> dict[str, Any]:
    """Draw the number of GPUs that the job had over time."""
    return views.job_resize_context(job)


@register.inclusion_tag("monitoring/_job.html")
def job_gpus(job: Job) -> dict[str, Any]:
    """The resize timeline of the job, and the readings of the GPUs of its last attempt."""
    return views.job_gpu_context(job)
