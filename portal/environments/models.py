"""Environments, the packages that jobs run in: their locks and builds, their state on each node, and the hosts they may reach.

The curated ones come with the release and are prepared by each node itself. Others have a *recipe*: packages in addition to
those of a base, or a full list of their own. A node of each kind (Python, processor, CUDA, packages of the base) builds it
once, as a *layer*; the portal keeps the layers, and other nodes fetch them.
"""

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.cluster.models import Node
from portal.message_field import MessageField
from portal.projects.models import Project, Viewer


class EnvironmentQuerySet(models.QuerySet["Environment"]):
    def visible_to(self, user: Viewer) -> Self:
        """Return the environments of the lab and those of the projects that the user may see."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        return self.filter(Q(project=None) | Q(project__in=Project.objects.visible_to(user)))

    def usable_in(self, project: Project | None) -> Self:
        """Return the environments that new jobs of a project may choose; of the lab alone without a project."""
        return self.filter(Q(project=None) | Q(project=project), retired=False)


class Environment(models.Model):
    """A set of packages that jobs run in: a curated one, or one that an admin or the owner of a project made."""

    key = models.SlugField(unique=True)
    title = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    packages = models.JSONField(default=list)
    """Names of the modules that it offers, used for warnings before a job is queued. With a recipe, those of its last
    build and its base."""
    on_demand = models.BooleanField(default=False)
    """Nodes prepare it only when a job needs it."""
    position = models.PositiveSmallIntegerField(default=0)
    retired = models.BooleanField(default=False)
    """New jobs cannot choose it; it was removed, or this release has it no longer."""

    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="environments")
    """Only jobs of this project may use it; null: all jobs may."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    """Null for a curated one."""
    created_at = models.DateTimeField(default=timezone.now)
    requested_at = models.DateTimeField(null=True, blank=True)
    """When a user last asked for a build; nodes then prepare it although no job waits for it."""

    # the recipe: never changed, except for curated ones by a new release
    base = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="extended_by")
    """The environment to which its packages are added; null for one without a recipe, and for a full one."""
    lines = models.JSONField(default=list)
    """Requirements as in a ``requirements.txt``, checked and in canonical form."""
    pins = models.JSONField(default=list)
    """Of one that nodes prepare themselves, its packages with their exact versions, like ``lines``."""
    constraints = models.JSONField(default=list)
    indexes = models.JSONField(default=list)
    """Addresses of package indexes in addition to those of the nodes."""
    python = models.CharField(max_length=10, blank=True)
    """The Python of a full environment, e.g. ``3.12``; empty: that of the node or the base image."""
    source_builds = models.BooleanField(default=False)
    """Packages without wheels may be built from source, which runs their code on a node, confined."""
    horovod = models.BooleanField(default=False)
    """A full environment gets Horovod, compiled for its torch."""
    image = models.CharField(max_length=300, blank=True)
    """The full name of an image of a registry, instead of packages; the lock of a build has the digest that it meant."""
    recipe = models.CharField(max_length=64, blank=True, db_index=True)
    """A hash of all that; environments with the same recipe share their builds. Empty: prepared by each node itself."""
    generation = models.PositiveIntegerField(default=1)
    """Counts requests to resolve its packages again. Builds of an earlier generation stay in use until the next succeeds."""

    objects = EnvironmentQuerySet.as_manager()

    class Meta:
        db_table = "cluster_environment"  # the name that earlier releases gave it
        ordering = ["position", "key"]

    def __str__(self) -> str:
        return self.title

    @property
    def is_full(self) -> bool:
        """Whether all its packages are in its own list."""
        return bool(self.recipe) and self.base_id is None and not self.image


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
    """Of a ready environment with a recipe, the digest of its layer."""
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "cluster_nodeenvironment"
        constraints = [models.UniqueConstraint(fields=["node", "environment"], name="environment_once_per_node")]


class Lock(models.Model):
    """The exact packages of a layer, with the hashes of their files; or an exact image. Never changed, and kept for ever: jobs
    name it."""

    digest = models.CharField(max_length=64, unique=True)
    """Of the kind and the text: the name of the layer on nodes and on the portal's disk."""
    kind = models.CharField(max_length=120)
    """The kind of node it was made for, e.g. ``cp311-linux_x86_64-glibc2.36-cpu-3f0c6b1d9a52``."""
    text = models.TextField()
    """In the format of a ``requirements.txt`` with hashes; of an image ``ghcr.io/lab/train@sha256:...``."""
    modules = models.JSONField(default=list)
    """The names of its top-level modules."""
    unpacked_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    facts = models.JSONField(default=dict)
    """Of an image: ``content``, a hash of its layers and variables, ``python`` and ``libc``."""
    archive_sha256 = models.CharField(max_length=64, blank=True)
    """Of the tar that nodes fetch; empty once it was deleted because nothing used it, and for an image that they pull."""
    archive_wanted_at = models.DateTimeField(null=True, blank=True)
    """When a node last could not pull the image."""
    archive_bytes = models.PositiveBigIntegerField(default=0)
    used_at = models.DateTimeField(default=timezone.now)
    """When a node last fetched it or a job started with it."""

    def __str__(self) -> str:
        return self.digest

    @property
    def is_image(self) -> bool:
        return "content" in self.facts

    @property
    def package_count(self) -> int:
        return sum(line[:1].isalnum() for line in self.text.splitlines())


class Build(models.Model):
    """One build of a recipe for a kind of node, by one node. Its log is ``HOME/builds/<id>.log``."""

    class State(models.TextChoices):
        RUNNING = "running", "running"
        DONE = "done", "built"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"
        LOST = "lost", "lost"

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="builds")
    """The one for which the node asked; others with the same recipe use the build too."""
    recipe = models.CharField(max_length=64)
    kind = models.CharField(max_length=120)
    generation = models.PositiveIntegerField(default=1)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="+")
    node_name = models.CharField(max_length=80)
    state = models.CharField(max_length=9, choices=State.choices, default=State.RUNNING)
    progress_percent = models.PositiveSmallIntegerField(default=0)
    message = MessageField(blank=True)
    """The current step, or why it ended without success."""
    cancelled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    lock = models.ForeignKey(Lock, null=True, blank=True, on_delete=models.PROTECT, related_name="builds")
    started_at = models.DateTimeField(default=timezone.now)
    renewed_at = models.DateTimeField(default=timezone.now)
    """When its node last sent progress; without any for a while it counts as lost."""
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["recipe", "kind", "-id"], name="build_of_recipe_and_kind")]
        constraints = [
            models.UniqueConstraint(
                fields=["recipe", "kind"], condition=Q(state="running"), name="one_running_build_per_recipe_and_kind"
            )
        ]


class AllowedHost(models.Model):
    """A host that an admin allowed jobs to reach: those of a project, those with an environment, or all of the lab."""

    host = models.CharField(max_length=260)
    """In canonical form (``host_names``): ``huggingface.co``, ``*.example.org``, ``mlflow.example.org:5000``."""
    internal = models.BooleanField(default=False)
    """It may have an address of the local network."""
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="allowed_hosts")
    environment = models.ForeignKey(
        Environment, null=True, blank=True, on_delete=models.CASCADE, related_name="allowed_hosts"
    )
    """Jobs with this environment, or with one that is based on it. Without either: all jobs."""
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["host", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(project=None) | Q(environment=None), name="allowed_host_of_a_project_or_an_environment"
            ),
            models.UniqueConstraint(
                fields=["host"], condition=Q(project=None, environment=None), name="allowed_host_once_in_the_lab"
            ),
            models.UniqueConstraint(
                fields=["host", "project"], condition=Q(project__isnull=False), name="allowed_host_once_in_a_project"
            ),
            models.UniqueConstraint(
                fields=["host", "environment"],
                condition=Q(environment__isnull=False),
                name="allowed_host_once_in_an_environment",
            ),
        ]

    def __str__(self) -> str:
        return self.host

    @property
    def rule(self) -> str:
        """The host as agents read it."""
        return f"{self.host} internal" if self.internal else self.host


class PackageSettings(models.Model):
    """What environments may contain, as admins decided: one row, or none as long as nothing was changed."""

    ONLY = 1

    allowed_sources = models.JSONField(default=list)
    """Beginnings of addresses from which packages may come in addition to the nodes' own index, e.g.
    ``https://download.example.org/whl/``."""
    source_builds = models.BooleanField(default=False)
    """Environments of projects may build packages from source, too; those of admins may anyway."""

    class Meta:
        verbose_name_plural = "package settings"
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_row_of_package_settings")]

    @classmethod
    def current(cls) -> Self:
        """Return the settings in force, unsaved if they were never changed."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls(pk=cls.ONLY)


class ImageSettings(models.Model):
    """Which images of registries environments may be, as admins decided: one row, or none as long as nothing was changed."""

    class Archives(models.TextChoices):
        NEEDED = "needed", "for nodes that cannot pull them"
        ALWAYS = "always", "always"
        NEVER = "never", "never"

    ONLY = 1

    allowed = models.JSONField(default=list)
    """Full beginnings of names by whole parts (``ghcr.io/lab``). None: there are no environments of images."""
    archives = models.CharField(max_length=6, choices=Archives.choices, default=Archives.NEEDED)
    """When the portal keeps images, from which nodes get them that their registry refuses."""

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_row_of_image_settings")]
        verbose_name_plural = "image settings"

    @classmethod
    def current(cls) -> Self:
        """Return the settings in force, unsaved if they were never changed."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls(pk=cls.ONLY)


class Registry(models.Model):
    """How nodes sign in at a registry, and whether it may be used without encryption."""

    host = models.CharField(max_length=255, unique=True)
    """With its port if it has one."""
    user = models.CharField(max_length=200, blank=True)
    sealed_token = models.TextField(blank=True)
    """Encrypted (``portal.environments.credentials``). Empty: no sign-in."""
    insecure = models.BooleanField(default=False)
    """It may have no valid certificate, or speak plain HTTP, if a node's engine accepts that."""
    changed_at = models.DateTimeField(default=timezone.now)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["host"]
        verbose_name_plural = "registries"

    def __str__(self) -> str:
        return self.host
