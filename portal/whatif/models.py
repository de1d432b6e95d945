"""Simulations of the lab's recent history under other policies, and their results."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.message_field import MessageField
from portal.scheduler.models import SchedulerConfig
from portal.sentences import sentence_of


class Simulation(models.Model):
    """A simulation that an admin requested and ``tasks`` runs. Only the newest are kept (``services.MAX_KEPT``)."""

    class State(models.TextChoices):
        QUEUED = "queued", "queued"
        RUNNING = "running", "running"
        DONE = "done", "done"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    config = models.ForeignKey(SchedulerConfig, on_delete=models.PROTECT, related_name="+")
    """The configuration in force when it was requested; the first of ``policies``."""
    days = models.PositiveSmallIntegerField()
    start = models.DateTimeField()
    end = models.DateTimeField()
    policies = models.JSONField()
    """A list of {"policy", "params"}."""
    status = models.CharField(max_length=9, choices=State.choices, default=State.QUEUED)
    progress = models.FloatField(default=0.0)
    """The part that is done, from 0 to 1, over all policies."""
    parts = models.JSONField(default=list)
    """By policy {"part", "seconds", "jobs", "usual"}: the part that is done, the seconds so far, the number of jobs, and
    the seconds that the last similar simulation took (or null). Empty until it begins."""
    begun_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    """When the process that runs it last reported."""
    over_at = models.DateTimeField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    """The figures of what really happened and of each policy (``services._simulate_policies``); of a policy that failed
    ``wrong``, a message, or the sentence of an earlier release."""
    error = MessageField(blank=True)
    """Why it failed; ``why_failed`` has the sentence."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["status"], condition=Q(status="running"), name="one_simulation_at_a_time")
        ]

    @property
    def why_failed(self) -> str:
        return sentence_of(self.error)

    @property
    def is_over(self) -> bool:
        return self.status in (self.State.DONE, self.State.FAILED, self.State.CANCELLED)

    @property
    def percent(self) -> int:
        return int(100 * self.progress)
