"""Scheduler configurations, and the record of what the scheduler decided."""

from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.jobs.models import Attempt
from portal.message_field import MessageField
from portal.sentences import sentence_of


class SchedulerConfig(models.Model):
    """A policy with its parameters. Rows are only added; the newest is in force."""

    policy = models.CharField(max_length=40)
    params = models.JSONField(default=dict)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    version = models.CharField(max_length=12, blank=True)
    """The version of the policy's code when it was chosen (``scheduling.version``)."""
    snapshot_sha256 = models.CharField(max_length=64, blank=True)
    """The snapshot of the preview that was confirmed; empty when it was chosen without a preview."""
    undoes = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["-id"]


class Leader(models.Model):
    """The single row with the current leader; every transaction of the scheduler checks its epoch."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.PositiveBigIntegerField(default=0)
    holder = models.CharField(max_length=120, blank=True)
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_leader_row")]


class PolicyState(models.Model):
    """A policy's own JSON between cycles. It belongs to one configuration: a switch starts without state.

    It is not a column of ``Leader``: each cycle locks that row in shared mode, and two that wrote it would deadlock.
    """

    config = models.OneToOneField(SchedulerConfig, primary_key=True, on_delete=models.CASCADE, related_name="state")
    state = models.JSONField(default=dict)


class Cycle(models.Model):
    """One scheduling cycle that changed something or failed."""

    at = models.DateTimeField(default=timezone.now)
    config = models.ForeignKey(SchedulerConfig, null=True, on_delete=models.PROTECT, related_name="cycles")
    epoch = models.PositiveBigIntegerField()
    version = models.CharField(max_length=12, blank=True)
    """The version of the code that decided: it may be edited without a switch."""
    snapshot_sha256 = models.CharField(max_length=64)
    duration_ms = models.FloatField()
    plan_ms = models.FloatField(default=0)
    jobs_seen = models.PositiveIntegerField(default=0)
    started = models.PositiveIntegerField(default=0)
    resized = models.PositiveIntegerField(default=0)
    stopped = models.PositiveIntegerField(default=0)
    waiting = models.PositiveIntegerField(default=0)
    dropped = models.JSONField(default=list)
    """``[{"job", "why"}]``: a message, or the sentence of an earlier release; read ``steps_dropped``."""
    error = MessageField(blank=True)
    """Why it made no plan (``portal/scheduler/failures.py``)."""

    class Meta:
        ordering = ["-id"]

    @property
    def steps_dropped(self) -> list[dict[str, Any]]:
        """The steps of the plan that no longer fitted when they were applied: the job, and why as a sentence."""
        return [{"job": step["job"], "why": sentence_of(step["why"])} for step in self.dropped]


class Recording(models.Model):
    """The snapshot and the plan of a cycle, to replay it: compressed JSON of ``portal.scheduler.recording``.

    It has its own table, so that lists of cycles do not load it.
    """

    cycle = models.OneToOneField(Cycle, primary_key=True, on_delete=models.CASCADE, related_name="recording")
    at = models.DateTimeField(db_index=True)
    content = models.BinaryField()

    class Meta:
        ordering = ["cycle"]


class ChosenBatch(models.Model):
    """The total batch size that the policy chose for an attempt; its nodes receive it (``control.json``)."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="chosen")
    batch = models.PositiveIntegerField()
