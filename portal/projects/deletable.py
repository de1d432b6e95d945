"""Rows that are deleted into a trash, stay there for a while, and are then erased.

A row that was erased stays as a number without content: jobs, usage and the audit log refer to it.
"""

from datetime import timedelta
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

KEPT_FOR = timedelta(days=14)
"""How long something that was deleted can be restored."""


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

    COLUMNS: ClassVar = ("deleted_at", "deleted_by", "erase_at")

    class Meta:
        abstract = True
        constraints = [
            models.CheckConstraint(
                condition=Q(deleted_at__isnull=True, erased_at__isnull=True) | Q(erase_at__isnull=False),
                name="%(class)s_erased_after_its_time_in_the_trash",
            )
        ]
