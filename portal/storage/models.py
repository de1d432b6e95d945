"""Datasets, their versions, and the uploads that become one."""

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from portal.message_field import MessageField
from portal.projects.models import Project, Viewer
from portal.sentences import sentence_of

MAX_PATH_CHARACTERS = 1024
UPLOAD_LIFE = timedelta(days=7)
"""An upload without progress for so long is deleted."""


class DatasetQuerySet(models.QuerySet["Dataset"]):
    def visible_to(self, user: Viewer) -> "DatasetQuerySet":
        """Return the visible datasets: a user's own, those of the user's projects, and those of the lab; for admins all."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        if user.is_admin:
            return self
        shared = Q(visibility=Dataset.Visibility.PROJECT, project__in=Project.objects.visible_to(user))
        return self.filter(Q(owner=user) | Q(visibility=Dataset.Visibility.LAB) | shared)

    def with_newest(self) -> "DatasetQuerySet":
        """Annotate the number, bytes and number of files of the newest ready version; null without one."""
        ready = DatasetVersion.objects.filter(dataset=OuterRef("pk"), state=DatasetVersion.State.READY).order_by(
            "-number"
        )
        return self.annotate(
            newest=Subquery(ready.values("number")[:1]),
            newest_size=Subquery(ready.values("size")[:1]),
            newest_files=Subquery(ready.values("files")[:1]),
            newest_at=Subquery(ready.values("ready_at")[:1]),
        )


class Dataset(models.Model):
    """Files that jobs read, under a name. Their content is in versions."""

    class Visibility(models.TextChoices):
        OWNER = "owner", "only the owner"
        PROJECT = "project", "members of the project"
        LAB = "lab", "everyone in the lab"

    name = models.CharField(max_length=63)
    """A part of paths: jobs will find it in a folder of this name."""
    title = models.CharField(max_length=100, blank=True)
    description = models.TextField(blank=True)
    """Markdown."""
    licence = models.CharField(max_length=100, blank=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="datasets")
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="datasets")
    """Its members add versions, and see it where it is not for its owner alone."""
    visibility = models.CharField(max_length=7, choices=Visibility.choices, default=Visibility.OWNER)
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)

    objects = DatasetQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="dataset_name_once_for_each_owner"),
            models.CheckConstraint(
                condition=~Q(visibility="project") | Q(project__isnull=False), name="dataset_of_a_project_names_it"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class DatasetVersionQuerySet(models.QuerySet["DatasetVersion"]):
    def visible_to(self, user: Viewer) -> "DatasetVersionQuerySet":
        """Return the versions of visible datasets. One that is not ready is seen by who makes it, by the owner, and by admins."""
        rows = self.filter(dataset__in=Dataset.objects.visible_to(user), discarded_at=None)
        if user.is_authenticated and user.is_admin:
            return rows
        return rows.filter(Q(state=DatasetVersion.State.READY) | Q(created_by=user.pk) | Q(dataset__owner=user.pk))


class DatasetVersion(models.Model):
    """The files of a dataset at one time. Once it is ready, it never changes."""

    class State(models.TextChoices):
        UPLOADING = "uploading", "uploading"
        QUEUED = "queued", "waiting to be checked"
        CHECKING = "checking", "being checked"
        READY = "ready", "ready"
        REFUSED = "refused", "refused"

    class Source(models.TextChoices):
        UPLOAD = "upload", "upload"
        JOB = "job", "outputs of a job"
        FOLDER = "folder", "folder of the nodes"

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=9, choices=State.choices, default=State.UPLOADING)
    source = models.CharField(max_length=6, choices=Source.choices, default=Source.UPLOAD)
    note = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    # while it is checked; ``checking`` alone writes these
    check_number = models.PositiveIntegerField(default=0)
    """How often a check has begun. It names the check that may write."""
    checked_at = models.DateTimeField(null=True, blank=True)
    """When the check last reported."""
    done_bytes = models.PositiveBigIntegerField(default=0)
    """Bytes that are read or unpacked."""
    total_bytes = models.PositiveBigIntegerField(default=0)
    """Of ``done_bytes`` in the end, as far as is known."""
    discarded_at = models.DateTimeField(null=True, blank=True)
    """Someone has discarded it while it was checked: the check deletes it when it notices."""
    refusal = MessageField(blank=True)
    """Why it was refused, or why the check did not end and may be repeated; ``why_refused`` has the sentence."""

    # once it is ready
    sha256 = models.CharField(max_length=64, blank=True)
    """SHA-256 of the manifest, under which the store has it: the identity of the content."""
    manifest_bytes = models.PositiveBigIntegerField(default=0)
    files = models.PositiveIntegerField(default=0)
    size = models.PositiveBigIntegerField(default=0)
    """Bytes of all files."""
    notes = models.JSONField(default=list)
    """Sentences on what unpacking left out or renamed."""
    ready_at = models.DateTimeField(null=True, blank=True)

    objects = DatasetVersionQuerySet.as_manager()

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["dataset", "number"], name="dataset_version_number_once"),
            models.UniqueConstraint(
                fields=["state"], condition=Q(state="checking"), name="one_dataset_version_is_checked_at_a_time"
            ),
            models.CheckConstraint(
                condition=~Q(state="ready") | ~Q(sha256=""), name="ready_dataset_version_has_content"
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.number}"

    @property
    def why_refused(self) -> str:
        return sentence_of(self.refusal)

    @property
    def is_open(self) -> bool:
        """Whether it is neither ready nor refused."""
        return self.state in OPEN_STATES


OPEN_STATES = (DatasetVersion.State.UPLOADING, DatasetVersion.State.QUEUED, DatasetVersion.State.CHECKING)


class Upload(models.Model):
    """A file on its way into a version, received in pieces. Its bytes are in ``incoming.path_of(upload)``."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    version = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, related_name="uploads")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    path = models.CharField(max_length=MAX_PATH_CHARACTERS)
    """Its path in the dataset; of an archive that is unpacked, its files go to the folder that the archive would be in."""
    unpack = models.BooleanField(default=False)
    length = models.PositiveBigIntegerField()
    offset = models.PositiveBigIntegerField(default=0)
    """Bytes that survive a loss of power. The file may have more, of a piece that broke off."""
    expected_sha256 = models.CharField(max_length=64, blank=True)
    """The hash that the sender announced."""
    sha256 = models.CharField(max_length=64, blank=True)
    """The hash of the whole file, once it is checked. Then the store may have it already."""
    created_at = models.DateTimeField(default=timezone.now)
    progressed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["path"]
        constraints = [
            models.UniqueConstraint(fields=["version", "path"], name="dataset_path_uploaded_once"),
            models.CheckConstraint(condition=Q(offset__lte=F("length")), name="upload_within_its_length"),
        ]

    @property
    def is_complete(self) -> bool:
        return self.offset == self.length

    @property
    def expires_at(self) -> datetime:
        return self.progressed_at + UPLOAD_LIFE
