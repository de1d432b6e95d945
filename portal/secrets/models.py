"""Secrets of persons and projects, such as tokens and passwords: jobs get them, and no one can read them here again."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.accounts.models import User
from portal.projects.models import Project

PROJECT_PREFIX = "project/"
"""How a job names a secret of its project: ``project/HF_TOKEN``. One without it is the submitter's own."""


class Secret(models.Model):
    """A name and an encrypted value, of a person or of a project."""

    class Kind(models.TextChoices):
        VARIABLE = "variable", "environment variable"
        FILE = "file", "file"

    name = models.CharField(max_length=100)
    """Of the variable, or of the file in the folder of secrets."""
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.VARIABLE)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets")
    sealed = models.TextField()
    """Encrypted (``portal.secrets.keys``)."""
    created_at = models.DateTimeField(default=timezone.now)
    changed_at = models.DateTimeField(default=timezone.now)
    """When its value was last replaced."""
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    used_at = models.DateTimeField(null=True, blank=True)
    """When a node last fetched it for a job."""

    class Meta:
        ordering = ["name", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=True, project__isnull=False) | Q(user__isnull=False, project__isnull=True),
                name="secret_of_a_person_or_a_project",
            ),
            models.UniqueConstraint(fields=["user", "name"], condition=Q(user__isnull=False), name="own_secret_once"),
            models.UniqueConstraint(
                fields=["project", "name"], condition=Q(project__isnull=False), name="project_secret_once"
            ),
        ]

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        """The name by which jobs choose it."""
        return self.name if self.project_id is None else f"{PROJECT_PREFIX}{self.name}"

    @property
    def owner(self) -> User | Project:
        """Whose it is."""
        if self.user is not None:
            return self.user
        if self.project is not None:
            return self.project
        raise ValueError("A constraint of the table is broken: the secret is no one's.")
