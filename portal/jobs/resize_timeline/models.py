"""Rank groups as drivers report them."""

from django.db import models


class RankGroup(models.Model):
    """The ranks of an attempt that train together from ``at`` on, until the next group forms."""

    driver = models.ForeignKey("jobs.Container", on_delete=models.CASCADE, related_name="rank_groups")
    number = models.PositiveIntegerField()
    """Among the groups of this driver, from 1."""
    at = models.DateTimeField()
    hosts = models.JSONField(default=list)
    """The host of each rank: ["h1", "h1", "h2"]."""
    cost_seconds = models.FloatField(null=True)
    """How long the change to this group kept the ranks from training; null for an attempt's first group, and until known."""

    class Meta:
        app_label = "jobs"
        db_table = "gauges_ring"  # from when the model was called Ring, in the app gauges
        ordering = ["driver", "number"]
        indexes = [models.Index(fields=["at"], name="ring_at")]
        constraints = [models.UniqueConstraint(fields=["driver", "number"], name="ring_number_once_per_driver")]
