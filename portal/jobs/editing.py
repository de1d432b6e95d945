"""Changes to jobs that were submitted: what they are called at any time, what the scheduler reads while they wait.

A waiting job keeps its place: it stays the same job with the same time of submission.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.accounts.models import User
from portal.jobs import events, lifecycle, services
from portal.jobs.models import FINISHED_STATES, WAITING_STATES, Job
from portal.jobs.names import default_name
from portal.jobs.permissions import require_may_act
from portal.jobs.spec import Submission, as_columns, label_of, submission_of
from portal.jobs.word_lists import normalise
from portal.refused import Refused
from portal.wake import wake_scheduler

LABELS = ("name", "description", "tags")
"""Fields for readers only, which may change in every state."""
GOALS = ("priority", "time_limit_seconds", "deadline")
"""Fields that the scheduler reads, and that count from the start of an attempt."""
EDITABLE = (*LABELS, *GOALS)
NAMED_ONLY = ("description", "tags")
"""Fields whose values are too long for a line of the history."""


@transaction.atomic
def edit(user: User, job: Job, values: Mapping[str, Any]) -> Job:
    """Change some of the ``EDITABLE`` fields of a job. Raises Refused for values that are wrong or too late."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    before = submission_of(row)
    after = replace(before, **_cleaned(row, values))
    changed = [name for name in EDITABLE if getattr(after, name) != getattr(before, name)]
    if not changed:
        return row
    _refuse_late_changes(row, changed)
    _refuse_more_time(user, row, after.time_limit_seconds)
    services.check_values(after, changed)
    if "name" in changed:
        services.check_name(after.name)
    columns = as_columns(after)
    for name in changed:
        setattr(row, name, columns[name])
    row.save(update_fields=[*changed, "search_text"])
    lines = [
        events.ChangedField(field=name, before=_shown(before, name), after=_shown(after, name)) for name in changed
    ]
    lifecycle.record(row, events.Edited(str(user), lines), user)
    if set(changed) & set(GOALS):
        wake_scheduler()
    return row


def may_change_goals(job: Job) -> bool:
    """Return whether what the scheduler reads may still change: only while the job waits."""
    return job.state in WAITING_STATES and job.intent != Job.Intent.CANCEL


def _cleaned(row: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as ``services.submit`` stores them."""
    cleaned = dict(values)
    if "name" in cleaned:
        cleaned["name"] = cleaned["name"].strip() or default_name(row.launcher, row.entry, row.arguments)
    if "description" in cleaned:
        cleaned["description"] = cleaned["description"].strip()
    if "tags" in cleaned:
        cleaned["tags"] = normalise(cleaned["tags"])
    return cleaned


def _refuse_late_changes(row: Job, changed: list[str]) -> None:
    late = [name for name in changed if name in GOALS]
    if not late or may_change_goals(row):
        return
    names = " and ".join(label_of(name).lower() for name in late)
    raise Refused(
        f"The {names} can only be changed while the job waits, and it {_state_words(row)}. "
        "Name, description and tags can still be changed.",
        "conflict",
        late[0],
    )


def _refuse_more_time(user: User, row: Job, seconds: int) -> None:
    """Refuse a longer time limit of a job that has run: holding it would otherwise make asking for more time needless."""
    if row.started_at is not None and seconds > row.time_limit_seconds and not user.is_admin:
        raise Refused(
            "This job has run already, so its time limit is made longer with “Ask for more time” on its page.",
            "conflict",
            "time_limit_seconds",
        )


def _state_words(row: Job) -> str:
    if row.state in FINISHED_STATES:
        return "has ended"
    return "is being cancelled" if row.intent == Job.Intent.CANCEL else "is running"


def _shown(asked: Submission, name: str) -> Any:
    """Return a value for a line of the history; None for one that is named only, and for none."""
    value = None if name in NAMED_ONLY else getattr(asked, name)
    return value.isoformat() if isinstance(value, datetime) else value
