"""The GPUs on the page of a job, loaded with ``{% load monitoring %}``, since jobs do not depend on monitoring."""

from typing import Any

from django import template

from portal.jobs.models import Job
from portal.monitoring import views

register = template.Library()


@register.inclusion_tag("monitoring/_job.html")
def job_gpus(job: Job) -> dict[str, Any]:
    """The resize timeline of the job, and the readings of the GPUs of its last attempt."""
    return views.job_gpu_context(job)
