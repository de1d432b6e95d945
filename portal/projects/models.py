"""Spaces that members share, and the code they upload into them."""

from django.conf import settings
from django.db import models
from django.utils import timezone


class Project(models.Model):
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]


class Membership(models.Model):
    """What a user may do in a project: viewers look, members upload and submit, owners also share and delete."""

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


class CodeVersion(models.Model):
    """One immutable upload. Its bytes are kept once, by hash, as a tar of validated regular files."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="code_versions")
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, db_index=True)
    """Of the canonical tar: equal files give an equal hash, whatever archive they came in."""
    size = models.PositiveBigIntegerField()
    """Bytes of all files together."""
    files = models.JSONField(default=list)
    """[{"path", "size", "sha256"}], sorted by path."""
    guess = models.JSONField(default=dict)
    """What inspection found: {"entry", "launcher", "elastic", "warnings": [...]}."""
    upload_name = models.CharField(max_length=200)
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["project", "number"], name="code_version_number_once")]
