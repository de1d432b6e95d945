"""Machines and their GPUs. Facts are written by the node's agent, decisions about a node by admins."""

import secrets
import uuid
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q
from django.utils import timezone


class Installation(models.Model):
    """Which installation this database is: one row, made once, the same in every backup."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    uid = models.UUIDField(default=uuid.uuid4, editable=False)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_installation")]


class JoinToken(models.Model):
    """Lets one new machine enrol, once."""

    token_digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    approves = models.BooleanField(default=False)
    """The machine that runs ``make run`` needs no further approval."""
    node = models.ForeignKey("Node", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    """The machine that used it."""
    renews = models.ForeignKey("Node", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    """The machine it is for, when it is part of the lab already: it keeps its place and gets a new token."""


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
    """Takes no new work; what runs goes on."""
    draining = models.BooleanField(default=False)
    """Takes no new work, and what runs is stopped and placed elsewhere."""
    removed_at = models.DateTimeField(null=True, blank=True)
    rotation_asked_at = models.DateTimeField(null=True, blank=True)
    """Since when its agent is to take a new token; None when it has."""
    token_revoked_at = models.DateTimeField(null=True, blank=True)
    """Since when no token opens anything for it; None when one does."""
    next_token_digest = models.CharField(max_length=64, unique=True, null=True, blank=True)
    """Of the token it has been given and has not used yet: with its first use the old one ends."""

    # written by the agent's reports
    last_seen_at = models.DateTimeField(null=True, blank=True)
    boot = models.CharField(max_length=36, blank=True)
    """Changes when the agent starts anew."""
    ready = models.BooleanField(default=False)
    """True after the agent's first full pass since its start: what it reports is complete."""
    facts = models.JSONField(default=dict)
    """What the agent says about its machine: {"cpus", "memory_mib", ...}."""
    problems = models.JSONField(default=list)
    """[{"text": what is unfit, "fix": what to do, "blocking": true if it must take no work until then}]. ``mend`` is the
    former name of ``fix``; rows may have either."""
    report_digest = models.CharField(max_length=64, blank=True, default="", db_column="said")
    """Digest of the last report that was compared with all rows; an equal report is not compared again."""

    class Meta:
        ordering = ["name"]


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
    problem = models.CharField(max_length=200, blank=True)
    links = models.CharField(max_length=200, blank=True)
    """How it reaches the node's other devices, in words."""
    outside = models.CharField(max_length=200, blank=True)
    """Who computes on it without the portal, in words; nothing is started on it meanwhile."""
    fault = models.CharField(max_length=200, blank=True)
    """The last grave error of the device (XID, memory) that its driver told of."""
    quarantined_at = models.DateTimeField(null=True, blank=True)
    """Written by the portal, ended by an admin: out of use since then."""
    quarantine_reason = models.CharField(max_length=300, blank=True)
    trusted_since = models.DateTimeField(null=True, blank=True)
    """When an admin last ended a quarantine: what failed before that no longer counts against it."""
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
        """``GPU 3`` or ``CPU slot 0``: its name on its node."""
        return f"{'CPU slot' if self.kind == self.Kind.CPU else 'GPU'} {self.index}"

    @property
    def usable(self) -> bool:
        """As ``usable_gpu()``: whether work may be placed on it while nobody holds it."""
        return self.healthy and self.present and self.quarantined_at is None and not self.outside

    def failed_since(self, moment: datetime) -> bool:
        """Its driver told of a grave error after that, for which it is out of use."""
        taken_out = self.quarantined_at is not None and self.quarantined_at >= moment
        return taken_out and bool(self.fault) and self.quarantine_reason == f"{self.fault}."


def usable_gpu(path: str = "") -> Q:
    """The rows of GPUs on which work may be placed; ``path`` leads to them, as in ``gpu__``."""
    wanted = {"healthy": True, "present": True, "quarantined_at": None, "outside": ""}
    return Q(**{f"{path}{name}": value for name, value in wanted.items()})


class Environment(models.Model):
    """A curated set of packages that jobs run in, with its recipe under ``runners/environments/images/``."""

    key = models.SlugField(unique=True)
    title = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    packages = models.JSONField(default=list)
    """Import names it offers; used to warn before queueing."""
    on_demand = models.BooleanField(default=False)
    """Nodes prepare it only once a job asks for it."""
    position = models.PositiveSmallIntegerField(default=0)
    retired = models.BooleanField(default=False)

    class Meta:
        ordering = ["position", "key"]


class NodeEnvironment(models.Model):
    """How far a node is with preparing an environment. Written by the agent's reports."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting"
        PREPARING = "preparing", "preparing"
        READY = "ready", "ready"
        FAILED = "failed", "failed"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="environments")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="on_nodes")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    progress_percent = models.PositiveSmallIntegerField(default=0)
    detail = models.TextField(blank=True)
    """What it does now, why it failed and how to fix that, or which base image a ready one was made from."""
    digest = models.CharField(max_length=80, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "environment"], name="environment_once_per_node")]


def new_token() -> str:
    return f"sln_{secrets.token_urlsafe(32)}"


LIVE_NODE = Q(removed_at__isnull=True)


class Reservation(models.Model):
    """GPUs of a node that are kept for some people for a time. Never changed, only ended early."""

    name = models.CharField(max_length=80)
    """What it is for, as everybody reads it in the calendar: ``Deep learning course``."""
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="reservations")
    gpus = models.PositiveSmallIntegerField()
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
