"""What a job's page shows of its GPUs. Written there as ``{% load gauges %}``: jobs know nothing of gauges."""

from typing import Any

from django import template

from portal.gauges import views
from portal.jobs.models import Job

register = template.Library()


@register.inclusion_tag("gauges/part_job.html")
def job_gpus(job: Job) -> dict[str, Any]:
    """Utilisation, memory and temperature over the last attempt; nothing when its GPUs said nothing."""
    return views.about_job(job)
