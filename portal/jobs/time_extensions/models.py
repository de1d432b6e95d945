"""Requests for more time."""

from typing import TYPE_CHECKING, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.jobs.states import UNFINISHED_STATES

if TYPE_CHECKING:
    from portal.jobs.models import Job  # noqa: F401  # in types

MAX_TEXT = 1000
"""Maximum number of characters of a reason, and of an answer."""


class TimeExtensionQuerySet(models.QuerySet["TimeExtension"]):
    def open(self) -> Self:
        """Return the requests that can be decided: of a job that has ended, none can."""
        return self.filter(status=TimeExtension.Status.ASKED, job__state__in=UNFINISHED_STATES)


class TimeExtension(models.Model):
    """A request to raise the time limit of a job. A job has at most one that is not decided."""

    class Status(models.TextChoices):
        ASKED = "asked", "waits for an admin"
        GRANTED = "granted", "granted"
        REFUSED = "refused", "refused"
        WITHDRAWN = "withdrawn", "withdrawn"

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="time_extensions")
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    asked_at = models.DateTimeField(default=timezone.now)
    seconds = models.PositiveIntegerField()
    """How much longer the job may run than its time limit allows."""
    reason = models.TextField(blank=True)
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.ASKED)
    by_rule = models.BooleanField(default=False)
    """It was granted by the rule of the lab, when it was made."""
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    """The admin who granted or refused it; null for one that the rule granted, or that was withdrawn."""
    decided_at = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(blank=True)
    """What the admin wrote with the decision."""
    delays = models.JSONField(null=True, blank=True)
    """[[number of a waiting job, seconds that it starts later or null for "no longer within a day"], ...]; null: unknown."""
    delays_at = models.DateTimeField(null=True, blank=True)
    """The time of the snapshot from which ``delays`` was computed."""

    objects = TimeExtensionQuerySet.as_manager()

    class Meta:
        app_label = "jobs"
        ordering = ["-id"]
        indexes = [models.Index(fields=["status", "-id"], name="time_extension_status")]
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(status="asked"), name="one_open_time_extension_per_job"
            ),
            models.CheckConstraint(condition=Q(seconds__gte=1), name="time_extension_is_positive"),
            models.CheckConstraint(
                condition=Q(status="asked", decided_at__isnull=True)
                | (~Q(status="asked") & Q(decided_at__isnull=False)),
                name="time_extension_decided_at_when_decided",
            ),
        ]

    @property
    def limit_if_granted(self) -> int:
        """The time limit, in seconds, that the job would have."""
        return self.job.time_limit_seconds + self.seconds

    @property
    def is_open(self) -> bool:
        """Whether it can be decided. One query unless the job was read with it."""
        return self.status == self.Status.ASKED and self.job.state in UNFINISHED_STATES

    @property
    def status_words(self) -> str:
        """Return its status for a reader."""
        if self.status == self.Status.ASKED and not self.is_open:
            return "not decided before the job ended"
        return f"{self.get_status_display()}{' by the rule of the lab' if self.by_rule else ''}"
