"""A job with some facts changed, made five times as fast as by ``dataclasses.replace``: simulations make millions."""

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
"""A job that may still be written: filled in and then sealed by making it a ``Job``."""


def updated_job(job: Job, **facts: Any) -> Job:
    draft = _DRAFT(*_EVERYTHING(job))
    for name, value in facts.items():
        setattr(draft, name, value)
    draft.__class__ = Job
    return draft
