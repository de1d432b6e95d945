"""Offered GPUs and their use: facts that other apps do not keep, and daily sums of those that they keep.

Amounts are whole GPU-microseconds, one GPU held for one microsecond: this is the resolution of the database, so sums are
exact. Days are those of ``settings.TIME_ZONE``. Only ``rollups`` writes the sums, from facts alone.
"""

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import F, Q

from portal.cluster.models import Gpu
from portal.projects.models import Project


class CapacitySpell(models.Model):
    """A time during which a GPU was part of the lab: present and healthy, on an approved node that reported."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="spells")
    since = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["gpu", "since"]
        indexes = [models.Index(fields=["until"], name="spell_until")]
        constraints = [
            models.UniqueConstraint(fields=["gpu"], condition=Q(until__isnull=True), name="one_live_spell_per_gpu"),
            models.CheckConstraint(condition=Q(until__isnull=True) | Q(until__gte=F("since")), name="spell_ends_later"),
        ]


class ShareWeight(models.Model):
    """The weight of a user or a group from ``since`` until the next row. Without a row it is 1. Rows are only added."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    group = models.ForeignKey(Group, null=True, on_delete=models.CASCADE, related_name="+")
    weight = models.FloatField()
    since = models.DateTimeField()

    class Meta:
        ordering = ["since", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, group__isnull=True) | Q(user__isnull=True, group__isnull=False),
                name="weight_is_of_a_user_or_of_a_group",
            )
        ]


class LabDay(models.Model):
    """A day of the whole lab; the row also shows that the day's other sums exist."""

    day = models.DateField(primary_key=True)
    capacity = models.BigIntegerField(default=0)
    unclaimed = models.BigIntegerField(default=0)
    """The time that no job asked for."""
    rolled_at = models.DateTimeField()
    stale = models.BooleanField(default=False)
    """Whether something that belongs to the day became known after it was summed up."""

    class Meta:
        ordering = ["day"]


class LedgerDay(models.Model):
    """A day of one person, one row for each group whose share they used. ``ledger.LedgerLine`` defines the amounts."""

    day = models.DateField(db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    group = models.ForeignKey(Group, null=True, on_delete=models.SET_NULL, related_name="+")
    entitled = models.BigIntegerField(default=0)
    used = models.BigIntegerField(default=0)
    lent = models.BigIntegerField(default=0)
    borrowed = models.BigIntegerField(default=0)
    spare = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["day", "id"]


class UsageDay(models.Model):
    """A day of one person's jobs in one project. ``ledger.Spent`` defines the amounts."""

    day = models.DateField(db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    group = models.ForeignKey(Group, null=True, on_delete=models.SET_NULL, related_name="+")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    allocated = models.BigIntegerField(default=0)
    starting = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    interrupted = models.BigIntegerField(default=0)
    submitted = models.PositiveIntegerField(default=0)
    waits = models.JSONField(default=list)
    """The seconds waited by each job that first started on this day."""

    class Meta:
        ordering = ["day", "id"]
