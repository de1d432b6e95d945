"""How much the portal stores of projects and people, and the limits on it.

A limit refuses new jobs. What runs or waits goes on, and what it leaves is stored, so nothing is lost.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from django.db import transaction
from django.db.models import QuerySet, Sum

from portal.accounts.audit import audit
from portal.accounts.limits import MAX_SPACE_GIB, LimitInForce
from portal.accounts.models import LabSettings, Limit, User
from portal.jobs.models import Job
from portal.jobs.stored import PARTS
from portal.projects.models import CodeVersion, Project
from portal.refused import Refused
from portal.storage.models import DatasetVersion
from portal.ui import size

GIB = 1 << 30
CODE, DATASETS = "code", "datasets"
KINDS = {CODE: "Code", DATASETS: "Datasets", "outputs": "Outputs", "checkpoints": "Checkpoints", "logs": "Logs"}
"""What is counted, by key, with its title."""
NEARLY_FULL = 0.8
"""Whoever stores more than this part of a limit is warned."""
LARGEST = 10
"""Jobs that pages name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what is stored, as a piece of a bar."""

    title: str
    bytes: int
    tone: str
    """The class of its colour."""
    start: float
    length: float
    """In percent of the bar."""


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """What is stored of a project or a person, in bytes by ``KINDS``. Code that several versions share counts once."""

    number: int
    name: str
    parts: dict[str, int]
    limit_gib: int | None = None
    in_trash: bool = False
    """Of a project: it is deleted, and takes space until it is erased."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def limit(self) -> int | None:
        """The limit in bytes; None without one."""
        return None if self.limit_gib is None else self.limit_gib * GIB

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.total >= self.limit

    @property
    def is_nearly_full(self) -> bool:
        return self.limit is not None and self.total >= NEARLY_FULL * self.limit

    def pieces(self, longest: int) -> list[Piece]:
        """Return its parts as pieces of a bar that is ``longest`` bytes long."""
        found, start = [], 0.0
        for number, (key, title) in enumerate(KINDS.items(), 1):
            length = 100 * self.parts[key] / max(longest, 1)
            found.append(Piece(title, self.parts[key], f"tone-data-{number}", round(start, 3), round(length, 3)))
            start += length
        return found


def space_of_projects(projects: QuerySet[Project]) -> list[SpaceUse]:
    """Return what is stored of each project, in six queries."""
    numbers = projects.order_by().values("pk")
    sums = _of_jobs("project", numbers)
    sums[CODE] = _code_by("project", project__in=numbers)
    sums[DATASETS] = _datasets_by("dataset__project", dataset__project__in=numbers)
    rows = projects.values_list("pk", "name", "max_space_gib", "deleted_at")
    return [_use(pk, name, sums, limit, in_trash=deleted is not None) for pk, name, limit, deleted in rows]


def space_of_people(people: QuerySet[User]) -> list[SpaceUse]:
    """Return what is stored of the jobs and uploads of each person, in eight queries."""
    numbers = people.order_by().values("pk")
    sums = _of_jobs("submitted_by", numbers)
    sums[CODE] = _code_by("created_by", created_by__in=numbers)
    sums[DATASETS] = _datasets_by("dataset__owner", dataset__owner__in=numbers)
    limits = dict(Limit.objects.filter(user__in=numbers).values_list("user", "max_space_gib"))
    usual = LabSettings.current().max_space_gib
    rows = people.values_list("pk", "username")
    return [_use(pk, name, sums, usual if limits.get(pk) is None else limits[pk]) for pk, name in rows]


def _of_jobs(column: str, numbers: Any) -> dict[str, dict[int, int]]:
    return {key: part.bytes_by(column, **{f"{column}__in": numbers}) for key, part in PARTS.items()}


def _code_by(column: str, **of_versions: Any) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    rows = (
        CodeVersion.with_deleted.filter(erased_at=None, **of_versions)
        .order_by()
        .values_list(column, "sha256", "size")
        .distinct()
    )
    for pk, _, count in rows:
        found[pk] += count
    return found


def _datasets_by(column: str, **of_versions: Any) -> dict[int, int]:
    """Return the bytes of the versions of datasets. Files that versions share are stored once, and count in each."""
    rows = DatasetVersion.objects.filter(**of_versions).order_by().values_list(column)
    return dict(rows.annotate(all=Sum("size")))


def _use(pk: int, name: str, sums: dict[str, dict[int, int]], limit: int | None, *, in_trash: bool = False) -> SpaceUse:
    return SpaceUse(pk, name, {key: sums[key].get(pk, 0) for key in KINDS}, limit, in_trash)


def bytes_of_people(people: Collection[int]) -> int:
    """Return what is stored of the jobs and uploads of some people together, in five queries."""
    code = (
        CodeVersion.with_deleted.filter(created_by__in=people, erased_at=None)
        .order_by()
        .values("project", "sha256", "size")
        .distinct()
    )
    of_code = code.aggregate(all=Sum("size"))["all"] or 0
    data = DatasetVersion.objects.filter(dataset__owner__in=people).aggregate(all=Sum("size"))["all"] or 0
    return int(of_code + data) + sum(part.bytes_of(submitted_by__in=people) for part in PARTS.values())


def largest_jobs(**of_jobs: Any) -> list[tuple[Job, int]]:
    """Return the jobs that take most, with their bytes, in four queries; ``of_jobs``: ``project`` or ``submitted_by``."""
    sums: dict[int, int] = defaultdict(int)
    for part in PARTS.values():
        for pk, count in part.bytes_by("pk", **of_jobs).items():
            sums[pk] += count
    largest = nlargest(LARGEST, ((count, pk) for pk, count in sums.items() if count))
    jobs = Job.objects.select_related("project", "submitted_by").in_bulk([pk for _, pk in largest])
    return [(jobs[pk], count) for count, pk in largest if pk in jobs]


# --- limits ------------------------------------------------------------------------------------------------------


def require_space(user: User, project: Project, limits: Collection[LimitInForce]) -> None:
    """Refuse a job of a person or a project that stores as much as a limit allows. ``limits``: those of the person."""
    if project.max_space_gib is not None:
        [used] = space_of_projects(Project.objects.filter(pk=project.pk))
        _require(f"“{project.name}”", used.total, project.max_space_gib)
    for limit in limits:
        if limit.max_space_gib is not None:
            _require(limit.name, bytes_of_people(limit.user_ids), limit.max_space_gib)
    if all(limit.max_space_gib is None for limit in limits if limit.user_id):
        usual = LabSettings.current().max_space_gib
        if usual is not None:
            _require(user.username, bytes_of_people([user.pk]), usual)


def _require(name: str, used: int, gib: int) -> None:
    if used >= gib * GIB:
        raise Refused(
            f"{name} has {size(used)} stored in the portal, and may have {gib:,} GiB. Delete jobs or code that no one needs, "
            "or ask an admin for more.",
            "limit",
        )


@transaction.atomic
def set_project_limit(actor: User, project: Project, gib: int | None) -> None:
    """Set how much may be stored of a project, in GiB; None removes the limit."""
    if not actor.is_admin:
        raise Refused("Only admins set how much may be stored of a project.", "forbidden")
    if gib is not None and not 1 <= gib <= MAX_SPACE_GIB:
        raise Refused(f"Enter a number of GiB from 1 to {MAX_SPACE_GIB:,}, or nothing.", field="max_space_gib")
    row = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    before = row.max_space_gib
    if before == gib:
        return
    row.max_space_gib = gib
    row.save(update_fields=["max_space_gib"])
    audit(
        actor, "project.space", f"project {row.pk} {row.name}"[:200], {"max_space_gib": before}, {"max_space_gib": gib}
    )
