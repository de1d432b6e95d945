"""Environments, the packages that jobs run in, and their state on each node."""

from django.db import models

from portal.cluster.models import Node
from portal.message_field import MessageField


class Environment(models.Model):
    """A curated set of packages that jobs run in, with its recipe under ``runners/environments/images/``."""

    key = models.SlugField(unique=True)
    title = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    packages = models.JSONField(default=list)
    """Names of the modules that it offers, used for warnings before a job is queued."""
    on_demand = models.BooleanField(default=False)
    """Nodes prepare it only when a job needs it."""
    position = models.PositiveSmallIntegerField(default=0)
    retired = models.BooleanField(default=False)

    class Meta:
        db_table = "cluster_environment"  # the name that earlier releases gave it
        ordering = ["position", "key"]


class NodeEnvironment(models.Model):
    """The progress of a node in preparing an environment. Written by the agent's reports."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting"
        PREPARING = "preparing", "preparing"
        READY = "ready", "ready"
        FAILED = "failed", "failed"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="environments")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="on_nodes")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    progress_percent = models.PositiveSmallIntegerField(default=0)
    detail = MessageField(blank=True)
    """The current step, the reason of a failure with its fix, or the base image of a ready environment."""
    digest = models.CharField(max_length=80, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "cluster_nodeenvironment"
        constraints = [models.UniqueConstraint(fields=["node", "environment"], name="environment_once_per_node")]
