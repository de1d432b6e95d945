"""Forecasts of waiting jobs, and scores of earlier ones."""

from django.db import models

from portal.jobs.models import Job
from portal.message_field import MessageField


class Forecast(models.Model):
    """When a waiting job may get its GPUs, as shown now. One row while it waits; scored and deleted when it starts."""

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="forecast")
    snapshot_at = models.DateTimeField()
    """When the snapshot was taken from which it is made."""
    made_at = models.DateTimeField()
    low = models.DateTimeField(null=True)
    """None when the job does not start before ``until``."""
    high = models.DateTimeField(null=True)
    """None when the job may not start before ``until``."""
    until = models.DateTimeField()
    """How far the future was simulated."""
    draws = models.PositiveSmallIntegerField(default=0)
    lengths_known = models.BooleanField(default=True)
    """False: the start depends on jobs of unknown length, and the range is that between the extremes."""
    kinds = models.JSONField(default=list)
    """The models of GPUs on which it starts, the most likely one first; empty in a lab that has only one."""
    note = MessageField(blank=True)
    """Why there is no range; empty when there is one."""
    trail = models.JSONField(default=list)
    """Earlier ranges [made at, low, high, lengths known] in seconds since the epoch: the first one, then those of the
    last hour. Ranges of a release before have no fourth value: they count as known."""

    class Meta:
        ordering = ["job"]


class Score(models.Model):
    """The score of a forecast whose job has started: whether it held."""

    class Made(models.TextChoices):
        FIRST = "first", "the first one shown"
        HOUR = "hour", "an hour before"
        TEN_MINUTES = "minutes", "ten minutes before"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="forecast_scores")
    made = models.CharField(max_length=7, choices=Made.choices)
    made_at = models.DateTimeField()
    low = models.DateTimeField()
    high = models.DateTimeField(null=True)
    """None when the forecast was only that the job would not start before ``low``."""
    placed_at = models.DateTimeField()
    """When the job was given its GPUs."""
    held = models.BooleanField()
    lengths_known = models.BooleanField(default=True)
    """As in the forecast."""

    class Meta:
        ordering = ["-placed_at"]
        indexes = [models.Index(fields=["made", "placed_at"], name="forecast_score_by_kind")]
        constraints = [models.UniqueConstraint(fields=["job", "made", "placed_at"], name="forecast_scored_once")]
