"""The readings of GPUs over time: samples of the last hours, and hours of the last month made from them.

Written from agents' reports (``sampling``) and by ``rollups`` alone. Nothing decides by these rows but the
check for idle GPUs, and nothing else is lost with them.
"""

from django.db import models

from portal.cluster.models import Gpu, Node


class Sample(models.Model):
    """The readings of all GPUs of a node in one slot of fifteen seconds, which are reported together."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField(db_index=True)
    """The start of the slot."""
    readings = models.JSONField(default=list)
    """[[GPU, utilisation in %, memory used in MiB, temperature in °C], ...]; null where the device does not report it."""

    class Meta:
        ordering = ["node", "at"]
        constraints = [models.UniqueConstraint(fields=["node", "at"], name="one_sample_per_node_and_slot")]


class Hour(models.Model):
    """One GPU in one hour, with its minutes, since rows for minutes would be sixty times as many."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField(db_index=True)
    """The start of the hour."""
    utilisation_mean = models.FloatField(null=True)
    utilisation_max = models.PositiveSmallIntegerField(null=True)
    memory_mean_mib = models.FloatField(null=True)
    memory_max_mib = models.PositiveIntegerField(null=True)
    temperature_mean = models.FloatField(null=True)
    temperature_max = models.SmallIntegerField(null=True)
    minutes = models.JSONField(default=dict)
    """{"utilisation": [60 means], "memory": [...], "temperature": [...], "peak": [highest utilisation]}; null where
    nothing was reported."""

    class Meta:
        ordering = ["gpu", "at"]
        constraints = [models.UniqueConstraint(fields=["gpu", "at"], name="one_hour_per_gpu")]
