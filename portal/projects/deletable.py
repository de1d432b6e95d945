"""Rows that are deleted into a trash, stay there for a while, and are then erased.

A row that was erased stays as a number without content: jobs, usage and the audit log refer to it. Jobs have the same columns, and
go through the same functions. The rows that these get must be locked.
"""

from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.accounts.models import User
from portal.refused import Refused

KEPT_FOR = timedelta(days=14)
"""How long something that was deleted can be restored."""
TRASH_COLUMNS = ("deleted_at", "deleted_by", "erase_at")


class Deletable(models.Model):
    """The columns of rows with a trash. The default manager of such a model leaves out what was deleted."""

    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Since when it is in the trash, where only those who may delete it see it."""
    deleted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    erase_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When it leaves the trash for good."""
    erased_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When its content was erased."""

    class Meta:
        abstract = True
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(deleted_at__isnull=True, erased_at__isnull=True) | Q(erase_at__isnull=False),
                name="%(class)s_erased_after_its_time_in_the_trash",
            )
        ]


class InTrash(Protocol):
    """What the functions below need of a row."""

    deleted_at: datetime | None
    deleted_by: User | None
    erase_at: datetime | None

    def save(self, *, update_fields: tuple[str, ...]) -> None: ...


def put_in_trash(row: InTrash, user: User | None, now: datetime) -> None:
    """Put a row into the trash. ``user`` is None where a rule does it."""
    row.deleted_at, row.deleted_by, row.erase_at = now, user, now + KEPT_FOR
    row.save(update_fields=TRASH_COLUMNS)


def require_restorable(row: InTrash, name: str) -> None:
    """Raise Refused when the time of a row in the trash is over. ``name`` begins the sentence."""
    if row.erase_at is None or row.erase_at <= timezone.now():
        raise Refused(f"{name} is being erased and cannot be restored any more.", "conflict")


def take_out_of_trash(row: InTrash) -> None:
    row.deleted_at = row.deleted_by = row.erase_at = None
    row.save(update_fields=TRASH_COLUMNS)


def end_time_in_trash(row: InTrash, kind: str) -> None:
    """Let the next round of tidying erase a row. Raises Refused for one that is not in the trash; ``kind`` is what it is called."""
    if row.deleted_at is None:
        raise Refused(f"Move the {kind} to the trash first.", "conflict")
    row.erase_at = min(row.erase_at or timezone.now(), timezone.now())
    row.save(update_fields=("erase_at",))
