"""The datasets of a job: what may be chosen, what the form proposes, and what its containers may fetch."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F, Q, QuerySet

from portal.accounts.models import User
from portal.jobs.dataset_paths import path_problem, place_problem
from portal.jobs.dataset_use import DatasetChoice, JobDataset
from portal.jobs.models import Job
from portal.jobs.spec import MAX_DATASETS, Submission
from portal.names import is_unstorable
from portal.projects.models import Viewer
from portal.refused import Refused
from portal.storage.models import Dataset, DatasetVersion

MAX_PROPOSED = 200
"""Datasets among which the form lets choose; others are typed."""
MAX_NUMBER = 2**53
READY = DatasetVersion.State.READY


def resolve(user: User, asked: Submission) -> list[JobDataset]:
    """Return the rows of a job's datasets, not saved yet. Raises Refused for what the job cannot have."""
    if len(asked.datasets) > MAX_DATASETS:
        raise _refused(f"A job gets at most {MAX_DATASETS} datasets.")
    files = [str(file["path"]) for file in asked.code.files] if asked.datasets else []
    rows = [_row(user, choice, files) for choice in asked.datasets]
    names = [row.name for row in rows]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _refused(
            f"Two datasets are called “{twice}”: the job would find both at /data/{twice}. Choose one of them."
        )
    if problem := place_problem(names, [row.path for row in rows if row.path]):
        raise _refused(problem)
    return rows


def _row(user: User, choice: DatasetChoice, code_files: Sequence[str]) -> JobDataset:
    version = _version(user, choice)
    path = str(choice.get("path") or "").removesuffix("/").removeprefix("./")
    if path and (problem := path_problem(path, code_files)):
        raise _refused(problem)
    writable = bool(choice.get("writable"))
    if writable and not path:
        raise _refused(f"Give a path for “{version.dataset.name}”: in /data, datasets are read-only.")
    return JobDataset(version=version, name=version.dataset.name, path=path, writable=writable)


def _version(user: User, choice: DatasetChoice) -> DatasetVersion:
    reference, number = choice["dataset"], choice.get("version")
    dataset = _named(user, str(reference)).first()
    if dataset is None:
        raise _refused(f"There is no dataset “{str(reference)[:100]}” that you may use.")
    if dataset.archived_at is not None:
        raise _refused(f"“{dataset.name}” is archived. Restore it, or choose another dataset.")
    ready = DatasetVersion.objects.filter(dataset=dataset, state=READY, discarded_at=None).select_related("dataset")
    if number is None:
        newest = ready.order_by("-number").first()
        if newest is None:
            raise _refused(f"“{dataset.name}” has no version that is ready.")
        return newest
    chosen = ready.filter(number=number).first() if 0 < number < 2**31 else None
    if chosen is None:
        raise _refused(f"“{dataset.name}” has no version {number} that is ready.")
    return chosen


def _named(user: User, reference: str) -> QuerySet[Dataset]:
    """Return the visible dataset with a number, or ``owner/name``; a name alone is one of the user's own."""
    visible = Dataset.objects.visible_to(user)
    if is_unstorable(reference):
        return visible.none()
    if reference.isascii() and reference.isdecimal():
        return visible.filter(pk=int(reference)) if int(reference) < MAX_NUMBER else visible.none()
    owner, _, name = reference.rpartition("/")
    return visible.filter(name=name, owner__username=owner) if owner else visible.filter(name=name, owner=user)


def _refused(sentence: str) -> Refused:
    return Refused(sentence, field="datasets")


# --- what the form proposes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposal:
    """A dataset as the form proposes it."""

    reference: str
    """What is typed for its newest version."""
    title: str
    version: int
    size: int
    """Bytes of its newest version."""


def proposals(user: User | None) -> list[Proposal]:
    """Return the newest datasets that a user may choose, with their sizes."""
    if user is None:
        return []
    usable = Dataset.objects.visible_to(user).filter(archived_at=None).with_newest().exclude(**{"newest": None})
    rows = usable.select_related("owner").order_by(F("newest_at").desc())[:MAX_PROPOSED]
    return [
        Proposal(f"{row.owner.username}/{row.name}", row.title, row.newest, row.newest_size)  # type: ignore[attr-defined]  # annotated
        for row in rows
    ]


def reference_of(user: User | None, choice: DatasetChoice) -> str:
    """Return what the form shows of a choice: ``owner/name:version``, or the number of a dataset that the user cannot see."""
    reference = str(choice["dataset"])
    if user is not None and (found := _named(user, reference).select_related("owner").first()):
        reference = f"{found.owner.username}/{found.name}"
    return f"{reference}:{choice['version']}" if choice.get("version") else reference


# --- what the page of a job shows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownDataset:
    """A dataset on the page of a job."""

    row: JobDataset
    is_visible: bool
    """Whether its reader may see the dataset itself."""


def shown(job: Job, reader: Viewer) -> list[ShownDataset]:
    """Return the datasets of a job for a page, in two queries."""
    rows = list(job.datasets.select_related("version__dataset__owner"))
    if not rows:
        return []
    visible = Dataset.objects.visible_to(reader).filter(pk__in=[row.version.dataset_id for row in rows])
    seen = set(visible.values_list("pk", flat=True))
    return [ShownDataset(row, row.version.dataset_id in seen) for row in rows]


# --- what containers get -------------------------------------------------------------------------------------------------


def of_job(job: Job) -> list[JobDataset]:
    """Return the datasets of a job with their versions."""
    return list(job.datasets.select_related("version"))


def require_usable(job: Job, sha256: str) -> DatasetVersion | None:
    """Return the version of a job with this manifest, None if it has none. Raises Refused if the job may not start with it.

    Who submitted the job must still see the dataset, which must not be archived.
    """
    row = job.datasets.filter(version__sha256=sha256[:64]).select_related("version__dataset").first()
    if row is None:
        return None
    user, dataset = job.submitted_by, row.version.dataset
    if not user.is_active:
        raise _refused(f"The account of {user} is deactivated, and with it the job's access to datasets.")
    if not Dataset.objects.visible_to(user).filter(Q(pk=dataset.pk)).exists():
        raise _refused(f"{user} may not use the dataset “{row.name}” any more. Submit the job without it.")
    if dataset.archived_at is not None:
        raise _refused(f"The dataset “{row.name}” was archived. Restore it, then run the job again.")
    return row.version
