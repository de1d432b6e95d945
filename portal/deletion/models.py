"""The erasures of persons: what is under way, and the pseudonyms that stay."""

from django.conf import settings
from django.db import models
from django.utils import timezone


class Erasure(models.Model):
    """One person who is being erased, or was. Its number is that of the pseudonym."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="erasure")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    """Null: from the command line of the portal's machine."""
    delete_jobs = models.BooleanField()
    """Their jobs are erased; otherwise these stay in their projects, under the pseudonym."""
    names = models.JSONField(default=list)
    """The user name and the e-mail address that are looked for; empty once all is done."""
    started_at = models.DateTimeField(default=timezone.now)
    step = models.CharField(max_length=40, blank=True)
    """What is done now."""
    done = models.PositiveIntegerField(default=0)
    """Rows and jobs that were changed so far."""
    completed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    @property
    def pseudonym(self) -> str:
        return f"former member {self.pk}"
