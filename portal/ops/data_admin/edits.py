"""The fields that may be changed among the rows, each by the service that the portal's own pages use, with an audit entry."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import models, transaction

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.projects.models import Project
from portal.projects.services import edit_project

Edit = Callable[[User, Any, Mapping[str, Any]], None]


def _project(actor: User, row: Project, values: Mapping[str, Any]) -> None:
    with transaction.atomic():
        project = Project.objects.select_for_update().get(pk=row.pk)
        before = {name: getattr(project, name) for name in values}
        edit_project(actor, project, **values)
        after = {name: getattr(project, name) for name in values}
        if before != after:
            audit(actor, "project.edited", f"project {project.pk} {project.name}", before, after)


EDITS: dict[type[models.Model], tuple[tuple[str, ...], Edit]] = {Project: (("name", "description"), _project)}
"""By model: the fields that may be changed, and what changes them. All other fields of all models are only read."""
