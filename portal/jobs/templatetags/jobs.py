"""Labels of jobs in lists and on their pages."""

from typing import Any

from django import template
from django.forms import BoundField

from portal.jobs.models import FINISHED_STATES, Job
from portal.jobs.spec import WORD_LISTS
from portal.sentences.words import policy_words

register = template.Library()

FIELD_TERMS = {
    "launcher": "launcher",
    "elastic": "elastic",
    "tier": "tier",
    "opportunistic": "preemptible",
    "resumable": "checkpoint",
    "deadline": "deadline",
    "priority": "priority",
    "mode": "k-sync",
}
"""The terms of the glossary that labels of the form need."""


@register.filter
def job_term(bound: BoundField) -> str:
    """Return the key of the term that the label of a field needs, or nothing."""
    return FIELD_TERMS.get(bound.name, "")


@register.filter
def possible_actions(job: Job) -> str:
    """Return the actions of the list that a job's state allows, for the script that offers only these."""
    if job.state in FINISHED_STATES:
        return "retry" if job.kept else "retry delete"
    return "cancel release" if job.intent == Job.Intent.HOLD else "cancel hold"


register.filter("policy_words", policy_words)


@register.inclusion_tag("jobs/_labels.html")
def labels(job: Job) -> dict[str, Any]:
    """Show the words of a job, each as a link to the list of jobs that have it."""
    return {"labels": [(name, word) for name in WORD_LISTS for word in getattr(job, name)]}
