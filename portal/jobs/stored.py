"""What the portal stores of jobs, by part: rows that have sizes, and the folders with their content.

Whatever shows, frees or erases space asks here, so that all of them mean the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Exists, Model, OuterRef, QuerySet, Sum

from portal.jobs import checkpoints, outputs
from portal.jobs.models import CheckpointSet, Container, Job, LogStream, MetricPoint, Output

Rows = tuple[type[Model], str]
"""A table, and the lookup from its rows to their job."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of what a job leaves."""

    key: str
    sized: Rows
    """The rows with ``size``, in bytes."""
    folders: Callable[[Job], list[Path]]
    beside: tuple[Rows, ...] = ()
    """Rows that go with them."""

    @property
    def exists(self) -> Exists:
        """The condition for jobs that have something of it."""
        table, job = self.sized
        return Exists(table._default_manager.filter(**{job: OuterRef("pk")}))

    def rows_of(self, **of_jobs: Any) -> QuerySet[Any]:
        """Return its rows with sizes, by lookups that begin at their job: ``pk``, ``in``, ``project__in``."""
        table, job = self.sized
        return table._default_manager.filter(**{f"{job}__{lookup}": value for lookup, value in of_jobs.items()})

    def bytes_of(self, **of_jobs: Any) -> int:
        return int(self.rows_of(**of_jobs).aggregate(size=Sum("size"))["size"] or 0)

    def bytes_by(self, lookup: str, **of_jobs: Any) -> dict[Any, int]:
        """Return the bytes by a column of the jobs, such as ``project``."""
        path = f"{self.sized[1]}__{lookup}"
        return dict(self.rows_of(**of_jobs).order_by().values_list(path).annotate(total=Sum("size")))

    def delete_rows(self, job: Job) -> None:
        for table, path in (self.sized, *self.beside):
            table._default_manager.filter(**{path: job}).delete()


def log_folders_of(job: Job) -> list[Path]:
    """Return the folders of the logs of a job's containers, of earlier releases too."""
    logs = Path(settings.HOME) / "logs"
    streams = LogStream.objects.filter(container__attempt__job=job).values_list("folder", "container_id").distinct()
    names = {folder or str(container) for folder, container in streams}
    names |= set(Container.objects.filter(attempt__job=job).values_list("name", flat=True))
    return [logs / name for name in sorted(names)]


OUTPUTS = StoredPart("outputs", (Output, "job"), lambda job: [outputs.folder_of(job)])
CHECKPOINTS = StoredPart("checkpoints", (CheckpointSet, "job"), lambda job: [checkpoints.folder_of(job)])
LOGS = StoredPart("logs", (LogStream, "container__attempt__job"), log_folders_of, ((MetricPoint, "attempt__job"),))
PARTS = {part.key: part for part in (OUTPUTS, CHECKPOINTS, LOGS)}


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes by part."""

    outputs: int
    checkpoints: int
    logs: int

    @property
    def total(self) -> int:
        return self.outputs + self.checkpoints + self.logs


def space_of(**of_jobs: Any) -> Space:
    """Return what is stored of some jobs, in three queries; ``of_jobs`` as for ``StoredPart.rows_of``."""
    return Space(**{key: part.bytes_of(**of_jobs) for key, part in PARTS.items()})
