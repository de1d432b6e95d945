"""What decides, and what was decided."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.jobs.models import Attempt


class SchedulerConfig(models.Model):
    """A policy with its parameters. Rows are only added; the newest is in force."""

    policy = models.CharField(max_length=40)
    params = models.JSONField(default=dict)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    version = models.CharField(max_length=12, blank=True)
    """Of the policy's code when it was chosen (``scheduling.version``)."""
    snapshot_sha256 = models.CharField(max_length=64, blank=True)
    """The snapshot on which its effects were shown before it was confirmed; empty when nobody looked."""
    undoes = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["-id"]


class Leader(models.Model):
    """The one row whose epoch every write of the scheduler must carry."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.PositiveBigIntegerField(default=0)
    holder = models.CharField(max_length=120, blank=True)
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_leader_row")]


class PolicyState(models.Model):
    """A policy's own JSON between cycles. It belongs to one configuration: a switch starts afresh.

    Not a column of ``Leader``: each cycle holds that row shared, and two that then wrote it would wait for each other.
    """

    config = models.OneToOneField(SchedulerConfig, primary_key=True, on_delete=models.CASCADE, related_name="state")
    state = models.JSONField(default=dict)


class Cycle(models.Model):
    """One turn of the scheduler's loop that decided something or found something wrong."""

    at = models.DateTimeField(default=timezone.now)
    config = models.ForeignKey(SchedulerConfig, null=True, on_delete=models.PROTECT, related_name="cycles")
    epoch = models.PositiveBigIntegerField()
    version = models.CharField(max_length=12, blank=True)
    """Of the code that decided: it may be edited without a switch."""
    snapshot_sha256 = models.CharField(max_length=64)
    duration_ms = models.FloatField()
    plan_ms = models.FloatField(default=0)
    jobs_seen = models.PositiveIntegerField(default=0)
    started = models.PositiveIntegerField(default=0)
    resized = models.PositiveIntegerField(default=0)
    stopped = models.PositiveIntegerField(default=0)
    waiting = models.PositiveIntegerField(default=0)
    dropped = models.JSONField(default=list)
    """Lines whose premise was gone when they were applied, with why."""
    error = models.TextField(blank=True)

    class Meta:
        ordering = ["-id"]


class Recording(models.Model):
    """What a turn saw and planned, to decide it again: compressed JSON of ``portal.scheduler.recording``.

    A table of its own, so that lists of turns do not carry it.
    """

    cycle = models.OneToOneField(Cycle, primary_key=True, on_delete=models.CASCADE, related_name="recording")
    at = models.DateTimeField(db_index=True)
    content = models.BinaryField()

    class Meta:
        ordering = ["cycle"]


class ChosenBatch(models.Model):
    """The total batch that the policy chose for an attempt; its nodes are told (``control.json``)."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="chosen")
    batch = models.PositiveIntegerField()
