"""The rows of what training code reports: points of curves, progress, and how long steps take."""

from django.db import models


class MetricPoint(models.Model):
    """A value of a curve, as the code of the job reported it."""

    attempt = models.ForeignKey("jobs.Attempt", on_delete=models.CASCADE, related_name="points")
    name = models.CharField(max_length=100)
    step = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    value = models.FloatField()

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(fields=["attempt", "name", "step"], name="metric_point_of_a_curve"),
            models.Index(fields=["attempt", "id"], name="metric_point_in_order"),
        ]


class Progress(models.Model):
    """The progress of an attempt's training, from the latest report of its code."""

    attempt = models.OneToOneField("jobs.Attempt", on_delete=models.CASCADE, related_name="progress")
    at = models.DateTimeField()
    step = models.PositiveBigIntegerField()
    epoch = models.PositiveIntegerField()
    done = models.FloatField(null=True)
    """The fraction of all its work, from 0 to 1; null when unknown."""
    total = models.PositiveBigIntegerField(null=True)
    """All its work, in samples; null when not reported."""
    batch = models.PositiveBigIntegerField()
    """The number of samples of a step, of all ranks together."""
    ranks = models.PositiveIntegerField()
    step_seconds = models.FloatField(null=True)
    """Seconds for ``batch`` samples; an update by a parameter server has fewer."""
    loss = models.FloatField(null=True)
    per_rank = models.JSONField(default=dict)
    """The values of each column of ``metrics.RANK_COLUMNS``, rank by rank."""
    points = models.PositiveIntegerField(default=0)
    """The number of points of the attempt, which is limited."""


class StepStat(models.Model):
    """How long the steps of an attempt took with one batch size on one number of GPUs, as its code reported."""

    attempt = models.ForeignKey("jobs.Attempt", on_delete=models.CASCADE, related_name="step_stats")
    kind = models.CharField(max_length=200)
    """The model of all GPUs that it had."""
    nodes = models.PositiveIntegerField()
    gpus = models.PositiveIntegerField()
    batch = models.PositiveBigIntegerField()
    """The number of samples of a step, of all GPUs together."""
    reports = models.PositiveIntegerField(default=0)
    seconds = models.FloatField(default=0)
    """Seconds of a step, the mean over the reports."""
    waiting_seconds = models.FloatField(null=True)
    """The part of ``seconds`` in which the rank that waits least waits for gradients of the others."""
    asked_batch = models.PositiveBigIntegerField(default=0)
    max_batch = models.PositiveBigIntegerField(default=0, db_column="most_batch")
    """The initial batch size, and the maximum that the owner declared safe."""
    noise_sqr = models.FloatField(null=True)
    noise_var = models.FloatField(null=True)
    """The noise of its gradients: the squared length of their mean, and the variance for a single sample."""
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["at"], name="step_stat_at")]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "kind", "nodes", "gpus", "batch"], name="step_stat_once")
        ]
