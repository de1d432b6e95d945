"""Labels of jobs in lists and on their pages."""

from typing import Any

from django import template

from portal.jobs.models import Job
from portal.jobs.spec import WORD_LISTS

register = template.Library()


@register.inclusion_tag("jobs/_labels.html")
def labels(job: Job) -> dict[str, Any]:
    """Show the words of a job, each as a link to the list of jobs that have it."""
    return {"labels": [(name, word) for name in WORD_LISTS for word in getattr(job, name)]}
