"""Projects that members share, and the code that they upload."""

from typing import Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import models
from django.utils import timezone

from portal.accounts.models import User
from portal.projects.deletable import Deletable

Viewer = User | AnonymousUser
"""The user of a request: pages and WebSockets pass ``request.user`` unchanged."""


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: Viewer) -> Self:
        """Return the visible projects: members see their own, admins all, other users none. The only rule of visibility."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        if user.is_admin:
            return self
        return self.filter(pk__in=Membership.objects.filter(user=user).values("project_id"))


class PresentProjects(models.Manager["Project"]):
    """The projects that are not in the trash."""

    def get_queryset(self) -> ProjectQuerySet:
        return ProjectQuerySet(self.model, using=self._db).filter(deleted_at=None)

    def visible_to(self, user: Viewer) -> ProjectQuerySet:
        return self.get_queryset().visible_to(user)


class Project(Deletable):
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)
    cache_generation = models.PositiveIntegerField(default=1)
    """Part of the name of its caches on nodes: with another one, its next jobs begin with empty caches."""
    max_space_gib = models.PositiveIntegerField(null=True, blank=True)
    """How much the portal may store of it; None means no limit."""

    objects = PresentProjects()
    with_deleted = ProjectQuerySet.as_manager()

    class Meta(Deletable.Meta):
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """The role of a user in a project: viewers read, members also upload and submit, owners also share and archive."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "viewer"
        MEMBER = "member", "member"
        OWNER = "owner", "owner"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.MEMBER)
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["since", "id"]
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="one_role_per_project_member")]

    def __str__(self) -> str:
        return f"{self.user_id} is {self.role} of {self.project_id}"


class CodeVersionQuerySet(models.QuerySet["CodeVersion"]):
    def visible_to(self, user: Viewer) -> Self:
        return self.filter(project__in=Project.objects.visible_to(user))

    def light(self) -> Self:
        """Leave out the file list and the guess, which may be long: for lists of versions."""
        return self.defer("files", "guess")


class PresentVersions(models.Manager["CodeVersion"]):
    """The versions that are not in the trash. ``job.code`` finds the others too."""

    def get_queryset(self) -> CodeVersionQuerySet:
        return CodeVersionQuerySet(self.model, using=self._db).filter(deleted_at=None)

    def visible_to(self, user: Viewer) -> CodeVersionQuerySet:
        return self.get_queryset().visible_to(user)

    def light(self) -> CodeVersionQuerySet:
        return self.get_queryset().light()


class CodeVersion(Deletable):
    """One immutable upload. Its content is stored once, under its hash, as a tar of validated regular files."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="code_versions")
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, db_index=True)
    """SHA-256 of the canonical tar: equal files have equal hashes, in whatever archive they were sent."""
    size = models.PositiveBigIntegerField()
    """Total bytes of all files."""
    files = models.JSONField(default=list)
    """[{"path", "size", "sha256", "offset", "executable"}], sorted by path; ``offset`` is the position of the file's bytes in
    the tar. Versions of earlier releases do not state what is executable."""
    guess = models.JSONField(default=dict)
    """The result of inspection: {"entry", "module", "launcher", "elastic", "imports", "in_functions", "requirements",
    "package_lists" (package_lists/model.py), "warnings": [{"code", "path", "line", "text"}], "notes": [what unpacking changed]}.
    Versions of earlier releases lack some keys."""
    upload_name = models.CharField(max_length=200)
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    is_new = True
    """False in the answer to an upload whose content equals this version, which was there before. Not stored."""

    objects = PresentVersions()
    with_deleted = CodeVersionQuerySet.as_manager()

    class Meta(Deletable.Meta):
        ordering = ["-number"]
        constraints = [
            *Deletable.Meta.constraints,
            models.UniqueConstraint(fields=["project", "number"], name="code_version_number_once"),
        ]

    def __str__(self) -> str:
        return f"version {self.number}"


from portal.projects.git.models import GitFetch, GitHost, GitSource, VersionCommit  # noqa: E402, F401  Django finds models here
