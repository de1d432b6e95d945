"""Changes some facts of a job, five times as fast as ``dataclasses.replace``: simulations do so millions of times."""

from dataclasses import fields, make_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from scheduling.renamed import renamed
from scheduling.types import Job

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"rewritten": "updated_job"})

_NAMES = [item.name for item in fields(Job)]
_EVERYTHING = attrgetter(*_NAMES)
_DRAFT: Any = make_dataclass("Draft", _NAMES, slots=True)
"""A mutable job: its fields are assigned, then its class is set to ``Job``, which is immutable."""


def updated_job(job: Job, **facts: Any) -> Job:
    """Return a copy of the job with these facts."""
    draft = _DRAFT(*_EVERYTHING(job))
    for name, value in facts.items():
        setattr(draft, name, value)
    draft.__class__ = Job
    updated: Job = draft
    return updated
