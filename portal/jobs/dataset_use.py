"""Which versions of datasets jobs read, and who uses one."""

from collections.abc import Collection
from typing import TypedDict

from django.db import models
from django.db.models import Count, Q, QuerySet, Sum

from portal.jobs.states import FINISHED_STATES, WAITING_STATES
from portal.storage.models import DatasetVersion

MAX_DATASET_PATH = 255


class DatasetChoice(TypedDict):
    """A dataset that a job asks for: an element of ``Submission.datasets``."""

    dataset: int | str
    """Its number, or ``owner/name``; of a job that was submitted, its number."""
    version: int | None
    """None for the newest that is ready."""
    path: str
    """Where the job finds it as well, relative to the folder of its code; empty for nowhere."""
    writable: bool
    """Whether the job may write at ``path``, to a copy that is deleted at its end."""


class JobDataset(models.Model):
    """A version of a dataset that a job reads. ``job_datasets`` writes the rows when the job is submitted."""

    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="datasets")
    version = models.ForeignKey(DatasetVersion, on_delete=models.PROTECT, related_name="uses")
    name = models.CharField(max_length=63)
    """The folder in which the job finds it: what the dataset was called when the job was submitted."""
    path = models.CharField(max_length=MAX_DATASET_PATH, blank=True)
    writable = models.BooleanField(default=False)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="job_dataset_name_once")]

    def __str__(self) -> str:
        return self.name

    @property
    def choice(self) -> DatasetChoice:
        """What was asked for, with the version that it has meant since."""
        version = self.version
        return DatasetChoice(dataset=version.dataset_id, version=version.number, path=self.path, writable=self.writable)


class Uses(TypedDict):
    """How many jobs use a version."""

    waiting: int
    running: int
    kept: int
    """That have ended and are protected from deletion."""
    ended: int
    """That have ended; those that are kept included. A copy of one needs the version again."""


def dataset_bytes(jobs: Collection[int]) -> dict[int, int]:
    """Return the bytes of the datasets that jobs read and copy, by job; those without any are left out."""
    rows = JobDataset.objects.filter(job__in=jobs).order_by().values_list("job")
    size = "version__size"
    sums = rows.annotate(read=Sum(size), copied=Sum(size, filter=Q(writable=True), default=0))
    return {job: int(read + copied) for job, read, copied in sums}


def jobs_with(version: DatasetVersion) -> QuerySet[JobDataset]:
    """Return the rows of the jobs that use a version and were not erased, the newest first."""
    return JobDataset.objects.filter(version=version, job__erased_at=None).order_by("-job")


def uses(version: DatasetVersion) -> Uses:
    """Return how many jobs use a version, in one query. One that none uses may be deleted."""
    counted = {
        "waiting": Q(job__state__in=WAITING_STATES),
        "running": ~Q(job__state__in=[*WAITING_STATES, *FINISHED_STATES]),
        "kept": Q(job__state__in=FINISHED_STATES, job__kept=True),
        "ended": Q(job__state__in=FINISHED_STATES),
    }
    found = jobs_with(version).aggregate(**{name: Count("pk", filter=which) for name, which in counted.items()})
    return Uses(waiting=found["waiting"], running=found["running"], kept=found["kept"], ended=found["ended"])
