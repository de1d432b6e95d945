"""Replaces the name of a person by their pseudonym in what is stored as text: events, notices, the audit log, reports.

Messages are stored as data, so the values that name people are known by their keys (``PERSON_KEYS``); values elsewhere that happen
to be the same word stay. Sentences of earlier releases name people after *by*.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.db.models import Model, Q, TextField
from django.db.models.functions import Cast

from portal.accounts.models import AuditEntry
from portal.cluster.models import Gpu
from portal.environments.models import Build
from portal.jobs.models import Job, JobEvent
from portal.notifications.models import Notice
from portal.projects.models import GitFetch
from portal.whatif.models import Simulation

PERSON_KEYS = frozenset(
    ("user", "users", "person", "people", "owner", "members", "left", "for", "by", "who", "name_of_user")
)
BATCH = 500


@dataclass(frozen=True, slots=True)
class Place:
    """A column that may have names of people."""

    model: type[Model]
    field: str
    replace: Callable[[Any, str, str], Any]
    """From the value, the old and the new name to the new value."""


def in_data(value: Any, old: str, new: str, *, named: bool = False) -> Any:
    """Return data with the name replaced where a key states that the value is a person."""
    if isinstance(value, dict):
        return {key: in_data(inner, old, new, named=key in PERSON_KEYS) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_data(inner, old, new, named=named) for inner in value]
    return new if named and value == old else value


def in_any_data(value: Any, old: str, new: str) -> Any:
    """Return data with all values replaced that are exactly the name, keys too."""
    if isinstance(value, dict):
        return {new if key == old else key: in_any_data(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_any_data(inner, old, new) for inner in value]
    return new if value == old else value


def in_sentence(value: str, old: str, new: str) -> str:
    return re.sub(rf"\b(by|of) {re.escape(old)}(?![\w@+-]|\.\w)", lambda found: f"{found[1]} {new}", value)


def in_message(value: Any, old: str, new: str) -> Any:
    return in_sentence(value, old, new) if isinstance(value, str) else in_data(value, old, new)


def in_target(value: str, old: str, new: str) -> str:
    """Replace the name in the target of an audit entry: ``user alice``, ``secret KEY of alice``."""
    if value == f"user {old}"[:200]:
        return f"user {new}"
    head, found, tail = value.rpartition(f" of {old}")
    return f"{head} of {new}" if found and not tail and value.startswith("secret ") else value


PLACES = (
    Place(AuditEntry, "target", in_target),
    Place(AuditEntry, "before", in_data),
    Place(AuditEntry, "after", in_data),
    Place(LogEntry, "object_repr", lambda value, old, new: new if value == old else value),
    Place(Gpu, "quarantine_reason", in_message),
    Place(Build, "message", in_message),
    Place(Job, "waiting_reason", in_message),
    Place(JobEvent, "text", in_sentence),
    Place(JobEvent, "data", in_data),
    Place(Notice, "content", in_message),
    Place(GitFetch, "message", in_message),
    Place(Simulation, "result", in_any_data),
)


def replace_everywhere(old: str, new: str) -> Iterator[int]:
    """Replace a name in all places; yield after each batch how many rows it changed. May be repeated."""
    for place in PLACES:
        model = place.model
        last = 0
        while rows := _candidates(model, place.field, old, last):
            last = rows[-1].pk
            yield sum(_replace(model, row.pk, place, old, new) for row in rows)


def _candidates(model: type[Model], field: str, old: str, after: int) -> list[Any]:
    """Return the next rows whose text has the name anywhere. Names with letters that JSON escapes are looked for as such."""
    escaped = json.dumps(old)[1:-1]
    rows = model._default_manager.annotate(_text=Cast(field, TextField())).filter(pk__gt=after)
    return list(rows.filter(Q(_text__contains=old) | Q(_text__contains=escaped)).only("pk").order_by("pk")[:BATCH])


@transaction.atomic
def _replace(model: type[Model], pk: int, place: Place, old: str, new: str) -> bool:
    rows = model._default_manager.filter(pk=pk)
    lock = rows.select_for_update(of=("self",)) if connection.features.has_select_for_update_of else rows
    before = lock.values_list(place.field, flat=True).first()
    if before is None:
        return False
    after = place.replace(before, old, new)
    if after != before:
        rows.update(**{place.field: after})
    return bool(after != before)
