"""Which jobs a user may see."""

from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import Q

from portal.accounts.models import User
from portal.projects.models import Membership, Project

if TYPE_CHECKING:
    from portal.jobs.models import Job  # noqa: F401  in the type of the query set


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user: User) -> Self:
        """Return the jobs of the projects of which the user is a member, all for admins; none that was deleted."""
        rows = self.filter(deleted_at=None)
        if user.is_admin:
            return rows
        return rows.filter(project__in=Project.objects.filter(memberships__user_id=user.pk).values("pk"))

    def in_trash_of(self, user: User) -> Self:
        """Return the deleted jobs that the user may restore: their own, those of projects that they own, all for admins."""
        rows = self.filter(deleted_at__isnull=False, erased_at=None, project__deleted_at=None)
        if user.is_admin:
            return rows
        roles = Membership.objects.filter(user=user)
        own = Q(submitted_by=user, project__in=roles.exclude(role=Membership.Role.VIEWER).values("project"))
        return rows.filter(own | Q(project__in=roles.filter(role=Membership.Role.OWNER).values("project")))
