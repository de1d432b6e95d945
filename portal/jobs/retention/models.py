"""Rules of retention, and what they have removed."""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.jobs.states import FINISHED_STATES, JobState

MIN_DAYS, MAX_DAYS = 1, 3650


class RetentionRule(models.Model):
    """What is removed of which jobs, how long after their end. For a part, a project's own rules count instead of the lab's."""

    class Part(models.TextChoices):
        OUTPUTS = "outputs", "outputs"
        CHECKPOINTS = "checkpoints", "checkpoints"
        LOGS = "logs", "logs and curves"
        JOBS = "jobs", "whole jobs, into the trash"

    class Ended(models.TextChoices):
        ANY = "any", "all that have ended"
        BADLY = "badly", "failed or cancelled"

    project = models.ForeignKey(
        "projects.Project", null=True, blank=True, on_delete=models.CASCADE, related_name="retention_rules"
    )
    """Null: all projects that have no rule of their own for this part."""
    part = models.CharField(max_length=11, choices=Part.choices)
    ended = models.CharField(max_length=5, choices=Ended.choices, default=Ended.ANY)
    days = models.PositiveSmallIntegerField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    carried_out_at = models.DateTimeField(null=True, blank=True)
    """When it last removed something."""

    class Meta:
        ordering = ["project", "part", "days", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["part", "ended"], condition=Q(project=None), name="retention_once_in_the_lab"
            ),
            models.UniqueConstraint(
                fields=["project", "part", "ended"],
                condition=Q(project__isnull=False),
                name="retention_once_in_a_project",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_part_display()} of jobs that {self.get_ended_display()}, after {self.days} days"

    @property
    def states(self) -> tuple[str, ...]:
        """The states of the jobs that it means."""
        badly = (JobState.FAILED, JobState.CANCELLED)
        return badly if self.ended == self.Ended.BADLY else tuple(FINISHED_STATES)

    @property
    def values(self) -> dict[str, Any]:
        """What it does, for the audit log."""
        return {"project": self.project_id, "part": self.part, "ended": self.ended, "days": self.days}
