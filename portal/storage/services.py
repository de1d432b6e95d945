"""The actions of users on datasets and their versions. Each raises Refused with a sentence for the user."""

import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Sum
from django.utils import timezone

from portal.accounts.models import User
from portal.names import has_invisible_characters
from portal.projects.models import Project, Viewer
from portal.projects.services import may_manage, may_submit, require_member, role_of
from portal.refused import Refused
from portal.storage import incoming
from portal.storage.models import OPEN_STATES, Dataset, DatasetVersion, Upload

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
MAX_DATASETS = 1000
"""Of one person."""
MAX_OPEN_VERSIONS = 5
"""Of one dataset: versions that are neither ready nor refused."""
MAX_DESCRIPTION = 20_000
State, Visibility = DatasetVersion.State, Dataset.Visibility
EDITABLE = ("name", "title", "description", "licence", "project", "visibility")


def may_manage_dataset(user: Viewer, dataset: Dataset) -> bool:
    """Return whether a user may edit and archive it: its owner, owners of its project, and admins."""
    if not user.is_authenticated or not user.is_active:
        return False
    if user.is_admin or dataset.owner_id == user.pk:
        return True
    shared = dataset.project is not None and dataset.visibility != Visibility.OWNER
    return shared and dataset.project is not None and may_manage(role_of(user, dataset.project))


def may_add_version(user: Viewer, dataset: Dataset) -> bool:
    """Return whether a user may add a version: who may manage it, and members of its project."""
    if may_manage_dataset(user, dataset):
        return True
    shared = dataset.project is not None and dataset.visibility != Visibility.OWNER
    return shared and dataset.project is not None and may_submit(role_of(user, dataset.project))


def require_writer(user: User, dataset: Dataset) -> None:
    if not may_add_version(user, dataset):
        raise Refused(f"Only the owner of “{dataset.name}” and members of its project may add versions.", "forbidden")
    if dataset.archived_at is not None:
        raise Refused(f"“{dataset.name}” is archived. Restore it first.", "conflict")


def _require_manager(user: User, dataset: Dataset) -> None:
    if not may_manage_dataset(user, dataset):
        raise Refused(f"Only the owner of “{dataset.name}” and owners of its project may do that.", "forbidden")


# --- datasets ------------------------------------------------------------------------------------------------------------


@transaction.atomic
def create(user: User, values: Mapping[str, Any]) -> Dataset:
    """Create a dataset without versions. ``values``: see ``EDITABLE``."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if Dataset.objects.filter(owner=user).count() >= MAX_DATASETS:
        raise Refused(f"You have {MAX_DATASETS:,} datasets. Add versions to one of these.", "limit")
    row = Dataset(owner=user, name="")
    _take(user, row, {"name": "", **values})
    row.save()
    return row


@transaction.atomic
def edit(user: User, dataset: Dataset, values: Mapping[str, Any]) -> Dataset:
    """Change what is given."""
    row = locked(dataset)
    _require_manager(user, row)
    User.objects.select_for_update(no_key=True).get(pk=row.owner_id)  # its name stays free until it is saved
    _take(user, row, values)
    row.save(update_fields=EDITABLE)
    return row


@transaction.atomic
def archive(user: User, dataset: Dataset) -> Dataset:
    """Archive a dataset: it gets no new versions. What it has stays."""
    row = locked(dataset)
    _require_manager(user, row)
    row.archived_at = row.archived_at or timezone.now()
    row.save(update_fields=["archived_at"])
    return row


@transaction.atomic
def restore(user: User, dataset: Dataset) -> Dataset:
    row = locked(dataset)
    _require_manager(user, row)
    row.archived_at = None
    row.save(update_fields=["archived_at"])
    return row


def locked(dataset: Dataset) -> Dataset:
    """Lock a dataset until the transaction ends, and return it as it is stored now."""
    rows = Dataset.objects.select_for_update(of=("self",)).select_related("project")
    row = rows.filter(pk=dataset.pk).first()
    if row is None:
        raise Refused("This dataset was deleted.", "conflict")
    return row


def _take(user: User, row: Dataset, values: Mapping[str, Any]) -> None:
    if "name" in values:
        row.name = str(values["name"]).strip()
        if not NAME.fullmatch(row.name):
            raise Refused(
                "A name has at most 63 lower-case letters, digits, dots, hyphens and underscores, and begins with a letter or digit.",
                field="name",
            )
        if Dataset.objects.filter(owner=row.owner, name=row.name).exclude(pk=row.pk).exists():
            raise Refused(f"There is a dataset “{row.name}” of yours already. Choose another name.", field="name")
    row.title = _line(values.get("title", row.title), "title")
    row.licence = _line(values.get("licence", row.licence), "licence")
    row.description = str(values.get("description", row.description)).strip()
    if len(row.description) > MAX_DESCRIPTION or "\0" in row.description:
        raise Refused(f"A description has at most {MAX_DESCRIPTION:,} characters.", field="description")
    if "project" in values and (values["project"] and values["project"].pk) != row.project_id:
        project: Project | None = values["project"]
        if project is not None:
            require_member(user, project)
        row.project = project
    row.visibility = str(values.get("visibility", row.visibility))
    if row.visibility not in Visibility.values:
        raise Refused(f"Choose one of: {', '.join(Visibility.values)}.", field="visibility")
    if row.visibility == Visibility.PROJECT and row.project is None:
        raise Refused("Choose the project whose members may see it.", field="project")


def _line(text: Any, field: str) -> str:
    line = " ".join(str(text).split())
    if len(line) > 100 or has_invisible_characters(line):
        raise Refused("Use at most 100 characters, all of them visible.", field=field)
    return line


# --- versions ------------------------------------------------------------------------------------------------------------


@transaction.atomic
def begin_version(user: User, dataset: Dataset, note: str = "") -> DatasetVersion:
    """Begin a version, to which files are uploaded until ``finish``."""
    row = locked(dataset)
    require_writer(user, row)
    if row.versions.filter(state__in=OPEN_STATES).count() >= MAX_OPEN_VERSIONS:
        raise Refused(
            f"“{row.name}” has {MAX_OPEN_VERSIONS} versions that are not finished. Finish or discard one of them.",
            "limit",
        )
    last = row.versions.aggregate(last=Max("number"))["last"] or 0
    return DatasetVersion.objects.create(dataset=row, number=last + 1, note=_note(note), created_by=user)


@transaction.atomic
def finish(user: User, version: DatasetVersion) -> DatasetVersion:
    """State that everything is uploaded: the version is checked next. A second time changes nothing."""
    dataset = locked(version.dataset)
    row = _locked_version(version)
    require_maker(user, row, dataset)
    require_writer(user, dataset)
    if row.state != State.UPLOADING:
        return row
    uploads = row.uploads.all()
    if not uploads:
        raise Refused("Send at least one file first.", "conflict")
    if missing := uploads.filter(offset__lt=F("length")).first():
        raise Refused(f"“{missing.path}” is not complete. Continue its upload, or delete it.", "conflict")
    row.state, row.total_bytes = State.QUEUED, uploads.aggregate(all=Sum("length"))["all"]
    row.check_number, row.done_bytes, row.refusal = 0, 0, ""
    row.save(update_fields=["state", "total_bytes", "check_number", "done_bytes", "refusal"])
    return row


def discard(user: User, version: DatasetVersion) -> None:
    """Delete a version that is not ready, with what was uploaded for it. A check of it ends by itself and deletes it."""
    with transaction.atomic():
        dataset = locked(version.dataset)
        row = _locked_version(version)
        require_maker(user, row, dataset)
        if row.state == State.READY:
            raise Refused("This version is ready: jobs may use it. It cannot be discarded.", "conflict")
        if row.state == State.CHECKING:
            DatasetVersion.objects.filter(pk=row.pk).update(discarded_at=timezone.now())
            return
    remove(row)


def remove(version: DatasetVersion) -> None:
    """Delete a version that is not ready, its uploads, and their bytes."""
    with transaction.atomic():
        rows = DatasetVersion.objects.filter(pk=version.pk).exclude(state=State.READY)
        uploads = list(Upload.objects.filter(version__in=rows).values_list("pk", flat=True))
        rows.delete()
    for upload in uploads:
        incoming.delete(upload)


def require_maker(user: User, version: DatasetVersion, dataset: Dataset) -> None:
    if version.created_by_id != user.pk and not may_manage_dataset(user, dataset):
        raise Refused("Only the person who makes this version, and the owner of the dataset, may do that.", "forbidden")


def _locked_version(version: DatasetVersion) -> DatasetVersion:
    row = DatasetVersion.objects.select_for_update(of=("self",)).filter(pk=version.pk).first()
    if row is None:
        raise Refused("This version was discarded.", "conflict")
    return row


def _note(note: str) -> str:
    line = " ".join(note.split())
    if len(line) > 200 or has_invisible_characters(line):
        raise Refused("A note has at most 200 characters, all of them visible.", field="note")
    return line


def used_bytes(user: User) -> int:
    """Return how much counts for the quota of a user: versions of the user's datasets, and uploads that are under way."""
    versions = DatasetVersion.objects.filter(dataset__owner=user).aggregate(all=Sum("size"))["all"] or 0
    uploads = Upload.objects.filter(version__dataset__owner=user).aggregate(all=Sum("length"))["all"] or 0
    return int(versions) + int(uploads)


def require_quota(owner: User, more: int) -> None:
    """Refuse what would exceed the quota of the owner of a dataset."""
    quota = int(settings.DATASETS_QUOTA_GIB) << 30
    if quota and used_bytes(owner) + more > quota:
        raise Refused(
            f"The datasets of {owner.username} would have more than {settings.DATASETS_QUOTA_GIB:,} GiB, the limit for each user. "
            "Discard versions that are not ready, or ask an admin for a higher limit.",
            "too_large",
        )
