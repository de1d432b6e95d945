"""Nodes and their GPUs. The node's agent writes facts; admins write decisions."""

import secrets
import uuid

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.message_field import MessageField
from portal.sentences.problems import ShownProblem, problem_of


class Installation(models.Model):
    """The identity of this installation: one row, created once, the same in every backup."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    uid = models.UUIDField(default=uuid.uuid4, editable=False)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_installation")]


class JoinToken(models.Model):
    """A token with which one new machine can join, once."""

    token_digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    approves = models.BooleanField(default=False)
    """Whether the machine is approved when it joins, such as the one that runs ``make run``."""
    node = models.ForeignKey("Node", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    """The machine that used it."""
    renews = models.ForeignKey("Node", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    """The node that joins again with it: it stays the same node and gets a new token."""


class Node(models.Model):
    """A registered machine."""

    class Runtime(models.TextChoices):
        DOCKER = "docker", "Docker Engine"
        PROCESS = "process", "processes of this machine"
        FAKE = "fake", "pretended"

    name = models.CharField(max_length=80, unique=True)
    runtime = models.CharField(max_length=10, choices=Runtime.choices)
    token_digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)

    # written by admins
    approved_at = models.DateTimeField(null=True, blank=True)
    cordoned = models.BooleanField(default=False)
    """Accepts no new jobs; running jobs continue."""
    draining = models.BooleanField(default=False)
    """Accepts no new jobs; running jobs are stopped and restarted elsewhere."""
    removed_at = models.DateTimeField(null=True, blank=True)
    rotation_asked_at = models.DateTimeField(null=True, blank=True)
    """When a new token was requested; None once the agent uses it."""
    token_revoked_at = models.DateTimeField(null=True, blank=True)
    """When its token was revoked; None while it has a valid one."""
    next_token_digest = models.CharField(max_length=64, unique=True, null=True, blank=True)
    """Digest of a new token that the agent has not used yet. Its first use ends the old token."""

    # written by the agent's reports
    last_seen_at = models.DateTimeField(null=True, blank=True)
    boot = models.CharField(max_length=36, blank=True)
    """Changes with each start of the agent."""
    ready = models.BooleanField(default=False)
    """True once the agent has completed a full pass since its start, so that its reports are complete."""
    facts = models.JSONField(default=dict)
    """The agent's report on its machine: {"cpus", "memory_mib", ...}."""
    problems = models.JSONField(default=list)
    """Messages of the agent (``runners.messages.problems``), each with ``blocking``: whether it accepts no jobs until then.
    Those of agents of the previous release are {"text": what is unfit, "fix": what to do, "blocking": ...}."""
    report_digest = models.CharField(max_length=64, blank=True, default="", db_column="said")
    """Digest of the last report that was compared with all rows; an equal report is not compared again."""

    class Meta:
        ordering = ["name"]

    @property
    def shown_problems(self) -> list[ShownProblem]:
        """Return its problems as its page has them."""
        return [problem_of(each) for each in self.problems]


class Gpu(models.Model):
    """One device by UUID, or a CPU slot (kind ``cpu``) on a machine without GPUs."""

    class Kind(models.TextChoices):
        CUDA = "cuda", "CUDA GPU"
        CPU = "cpu", "CPU slot"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=80)
    index = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=4, choices=Kind.choices)
    model = models.CharField(max_length=80)
    memory_mib = models.PositiveIntegerField(default=0)
    healthy = models.BooleanField(default=True)
    problem = MessageField(blank=True)
    links = models.CharField(max_length=200, blank=True)
    """How it is connected to the node's other devices, in words."""
    outside = MessageField(blank=True)
    """Who uses it outside the portal; no job starts on it meanwhile."""
    fault = MessageField(blank=True)
    """The last critical error of the device (XID, memory) that its driver reported."""
    quarantined_at = models.DateTimeField(null=True, blank=True)
    """When the portal or an admin took it out of use; an admin ends this."""
    quarantine_reason = MessageField(blank=True)
    trusted_since = models.DateTimeField(null=True, blank=True)
    """When an admin last ended a quarantine: earlier failures no longer count."""
    present = models.BooleanField(default=True)
    """False once the agent no longer reports it."""
    utilisation_percent = models.PositiveSmallIntegerField(null=True)
    memory_used_mib = models.PositiveIntegerField(null=True)
    temperature_celsius = models.SmallIntegerField(null=True)

    class Meta:
        ordering = ["node", "index"]
        constraints = [models.UniqueConstraint(fields=["node", "uuid"], name="gpu_once_per_node")]

    @property
    def label(self) -> str:
        """Return its name on its node: ``GPU 3`` or ``CPU slot 0``."""
        return f"{'CPU slot' if self.kind == self.Kind.CPU else 'GPU'} {self.index}"

    @property
    def usable(self) -> bool:
        """Whether a job may be placed on it when it is free. Same rule as ``usable_gpu()``."""
        return self.healthy and self.present and self.quarantined_at is None and not self.outside


def usable_gpu(path: str = "") -> Q:
    """Return the condition for GPUs on which jobs may be placed; ``path`` is the prefix of a lookup, as in ``gpu__``."""
    wanted = {"healthy": True, "present": True, "quarantined_at": None, "outside": ""}
    return Q(**{f"{path}{name}": value for name, value in wanted.items()})


GPU_OF_LAB = Q(present=True, node__removed_at__isnull=True, node__approved_at__isnull=False)
"""GPUs of the nodes of the lab, also of those that accept no jobs now."""


def new_token() -> str:
    return f"sln_{secrets.token_urlsafe(32)}"


LIVE_NODE = Q(removed_at__isnull=True)


class Reservation(models.Model):
    """GPUs of a node that are reserved for users and groups for some time. Never changed, only ended early."""

    name = models.CharField(max_length=80)
    """The purpose, visible to all users: ``Deep learning course``."""
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="reservations")
    gpus = models.PositiveSmallIntegerField()
    gpu_model = models.CharField(max_length=80, blank=True, default="")
    """The model of these GPUs, on a node that has several; empty for any."""
    start = models.DateTimeField()
    end = models.DateTimeField()
    users = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="reservations", blank=True)
    groups = models.ManyToManyField(Group, related_name="reservations", blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["start", "id"]
        indexes = [models.Index(fields=["end"], name="reservation_end")]
        constraints = [
            models.CheckConstraint(condition=Q(gpus__gte=1), name="reservation_of_a_gpu_or_more"),
            models.CheckConstraint(condition=Q(end__gt=models.F("start")), name="reservation_ends_after_it_starts"),
        ]
