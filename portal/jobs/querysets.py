"""Which jobs a user may see."""

from typing import TYPE_CHECKING, Self

from django.db import models

from portal.accounts.models import User
from portal.projects.models import Project

if TYPE_CHECKING:
    from portal.jobs.models import Job  # noqa: F401  in the type of the query set


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user: User) -> Self:
        """Return the jobs of the projects of which the user is a member; all for admins."""
        if user.is_admin:
            return self
        return self.filter(project__in=Project.objects.filter(memberships__user_id=user.pk).values("pk"))
