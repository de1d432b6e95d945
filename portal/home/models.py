"""What users have marked as seen on their home page, and the links of screens on the wall."""

from django.conf import settings
from django.db import models
from django.utils import timezone


class SeenFailures(models.Model):
    """Until when a user has marked the failures of their jobs as seen."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="+")
    until = models.DateTimeField()


class WallLink(models.Model):
    """A link with which a screen on the wall shows the lab without a session. Only the digest of its secret is stored."""

    name = models.CharField(max_length=80)
    """Where the screen hangs."""
    token_digest = models.CharField(max_length=64, unique=True)
    names_people = models.BooleanField(default=True)
    """Whether the screen names who holds a GPU. It never names jobs or projects."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name
