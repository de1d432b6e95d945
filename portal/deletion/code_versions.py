"""Deleting code versions: what needs them, what could not be repeated without them, and their trash.

What a job that has not ended, a kept job or a schedule needs stays. The content of others is erased after
``KEPT_FOR``, if no other version has the same. The row stays, without its files: jobs that ran it refer to it, and no later
version gets its number.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.deletion.words import MAX_NAMED, about_jobs, listed, sentence
from portal.jobs.models import UNFINISHED_STATES, Job
from portal.projects import store
from portal.projects.deletable import KEPT_FOR, end_time_in_trash, require_restorable, take_out_of_trash
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import lock, may_delete_code, may_manage, may_submit, role_of
from portal.refused import Refused
from portal.schedules.models import Schedule

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 200
"""Versions of one deletion; a page of them can still be read."""
MAX_ERASED = 200
"""Versions of one round of tidying; the next one goes on."""
NOT_YOURS = "Only the person who uploaded it, owners of the project and admins may delete it"


@dataclass(slots=True)
class Use:
    """What needs a code version, and what could not be repeated without it."""

    version: CodeVersion
    unfinished: list[int] = field(default_factory=list)
    """The first of the jobs that have not ended."""
    unfinished_count: int = 0
    kept: list[int] = field(default_factory=list)
    """The first of the others that are kept."""
    kept_count: int = 0
    schedules: list[str] = field(default_factory=list)
    """The names of schedules that submit this version."""
    ended: int = 0
    """The number of jobs that have ended and ran it."""
    forbidden: bool = False
    leaves_none: Sequence[str] = ()
    """The names of schedules that submit the newest version, if no other version is left."""

    @property
    def is_unused(self) -> bool:
        return not (self.ended or self.unfinished or self.kept or self.schedules)

    @property
    def is_needed(self) -> bool:
        """Whether it stays, whatever else is deleted."""
        return bool(self.forbidden or self.unfinished or self.kept or self.schedules)

    @property
    def hindrance(self) -> str:
        """Why it cannot be deleted, as a sentence; empty if it can be."""
        if self.forbidden:
            return f"{NOT_YOURS}."
        found = []
        if self.unfinished:
            found.append(about_jobs(self.unfinished, self.unfinished_count, "has not ended", "have not ended"))
        if self.kept:
            found.append(about_jobs(self.kept, self.kept_count, "is kept", "are kept"))
        if self.schedules:
            one = len(self.schedules) == 1
            found.append(
                f"{'the schedule' if one else 'the schedules'} {listed(self.schedules)} {'needs' if one else 'need'} it"
            )
        if self.leaves_none:
            one = len(self.leaves_none) == 1
            found.append(
                f"{'the schedule' if one else 'the schedules'} {listed(self.leaves_none)} "
                f"{'submits' if one else 'submit'} the newest version, and none would be left"
            )
        return sentence("; ".join(found)) if found else ""


@dataclass(frozen=True, slots=True)
class Result:
    """What was deleted, and what was not, with the reasons."""

    deleted: list[CodeVersion]
    refused: list[Use]


def uses_of(user: User, project: Project, versions: Iterable[CodeVersion]) -> list[Use]:
    """Return what needs each of these versions of a project, in their order and in a constant number of queries."""
    role = role_of(user, project)
    uses = {row.pk: Use(row) for row in versions}
    for use in uses.values():
        use.forbidden = not may_delete_code(user, use.version, role)
    jobs = Job.objects.filter(code__in=uses, deleted_at=None)
    for code, number, count in _first_of_each(jobs.filter(state__in=UNFINISHED_STATES)):
        uses[code].unfinished.append(number)
        uses[code].unfinished_count = count
    for code, number, count in _first_of_each(jobs.filter(kept=True).exclude(state__in=UNFINISHED_STATES)):
        uses[code].kept.append(number)
        uses[code].kept_count = count
    ended = jobs.exclude(state__in=UNFINISHED_STATES).order_by().values_list("code").annotate(number=Count("pk"))
    for code, number in ended:
        uses[code].ended = number
    newest: list[str] = []
    for code, name in Schedule.objects.filter(project=project).order_by("name").values_list("code", "name"):
        if code is None:
            newest.append(name)
        elif code in uses:
            uses[code].schedules.append(name)
    stays = any(use.is_needed for use in uses.values()) or project.code_versions.exclude(pk__in=uses).exists()
    if newest and not stays:
        for use in uses.values():
            use.leaves_none = newest
    return list(uses.values())


def _first_of_each(jobs: QuerySet[Job]) -> Iterable[tuple[int, int, int]]:
    """Return the first jobs of each code version: its key, the number of a job, and how many jobs the version has."""
    place = Window(RowNumber(), partition_by=F("code"), order_by=F("pk").asc())
    count = Window(Count("pk"), partition_by=F("code"))
    rows = jobs.annotate(place=place, count=count).filter(place__lte=MAX_NAMED).order_by("pk")
    return rows.values_list("code", "pk", "count")


def unused(user: User, project: Project) -> list[CodeVersion]:
    """Return the versions that the user may delete and that no job and no schedule uses, except the newest. The oldest first."""
    rows = project.code_versions.select_related("project").defer("files", "guess")
    newest = rows.order_by("-number").first()
    if newest is None:
        return []
    jobs = Job.objects.filter(code=OuterRef("pk"), deleted_at=None)
    rows = (
        rows.exclude(pk=newest.pk).exclude(Exists(jobs)).exclude(Exists(Schedule.objects.filter(code=OuterRef("pk"))))
    )
    if not may_manage(role_of(user, project)):
        rows = rows.filter(created_by=user)
    return list(rows.order_by("number")[:MAX_AT_ONCE])


def chosen(project: Project, numbers: Collection[int]) -> list[CodeVersion]:
    """Return the versions with these numbers that are not in the trash. Raises Refused for too many."""
    if len(numbers) > MAX_AT_ONCE:
        raise Refused(f"Choose at most {MAX_AT_ONCE} versions at once.", "limit")
    rows = project.code_versions.filter(number__in=numbers).select_related("project").defer("files", "guess")
    return list(rows.order_by("number"))


@transaction.atomic
def delete(user: User, project: Project, numbers: Collection[int]) -> Result:
    """Move versions to the trash, as far as nothing needs them. Raises Refused if the user may delete none in this project."""
    if not may_submit(role_of(user, project)):
        raise Refused(f"Only members of “{project.name}” may delete its code.", "forbidden")
    lock(project)
    rows = chosen(project, numbers)
    list(CodeVersion.objects.select_for_update().filter(pk__in=[row.pk for row in rows]).order_by("pk").values("pk"))
    uses = uses_of(user, project, rows)
    deleted, refused = [use.version for use in uses if not use.hindrance], [use for use in uses if use.hindrance]
    if deleted:
        now = timezone.now()
        CodeVersion.objects.filter(pk__in=[row.pk for row in deleted]).update(
            deleted_at=now, deleted_by=user, erase_at=now + KEPT_FOR
        )
        audit(user, "code.delete", *_about(project, deleted))
    return Result(deleted, refused)


def _about(project: Project, versions: Sequence[CodeVersion]) -> tuple[str, dict[str, object]]:
    return f"project {project.pk} {project.name}", {"versions": [row.number for row in versions]}


# --- the trash ---------------------------------------------------------------------------------------------------


def in_trash_of(user: User) -> QuerySet[CodeVersion]:
    """Return the deleted versions that the user may restore: their own, those of projects that they own, all for admins."""
    rows = CodeVersion.with_deleted.filter(deleted_at__isnull=False, erased_at=None, project__deleted_at=None)
    rows = rows.select_related("project", "created_by", "deleted_by").defer("files", "guess")
    if user.is_admin:
        return rows
    roles = Membership.objects.filter(user=user)
    own = Q(created_by=user, project__in=roles.exclude(role=Membership.Role.VIEWER).values("project"))
    return rows.filter(own | Q(project__in=roles.filter(role=Membership.Role.OWNER).values("project")))


@transaction.atomic
def restore(user: User, version: CodeVersion) -> CodeVersion:
    """Take a version out of the trash. Raises Refused when its time there is over."""
    row = _locked(user, version)
    if row.deleted_at is None:
        return row
    require_restorable(row, f"Version {row.number}")
    take_out_of_trash(row)
    audit(user, "code.restore", *_about(row.project, [row]))
    return row


@transaction.atomic
def delete_for_good(user: User, version: CodeVersion) -> CodeVersion:
    """Let a version in the trash be erased by the next round of tidying, within the hour."""
    row = _locked(user, version)
    end_time_in_trash(row, "version")
    audit(user, "code.erase", *_about(row.project, [row]))
    return row


def _locked(user: User, version: CodeVersion) -> CodeVersion:
    rows = CodeVersion.with_deleted.select_for_update(of=("self",)).select_related("project")
    row: CodeVersion = rows.get(pk=version.pk)
    if row.project.deleted_at is not None or not may_delete_code(user, row, role_of(user, row.project)):
        raise Refused(f"{NOT_YOURS}, or restore it.", "forbidden")
    return row


# --- erasing -----------------------------------------------------------------------------------------------------


def erase_due() -> int:
    """Erase the versions whose time in the trash is over; return how many. May be repeated, and goes on after a crash."""
    due = CodeVersion.with_deleted.filter(erase_at__lte=timezone.now(), erased_at=None).defer("files", "guess")
    return erase(due.order_by("erase_at")[:MAX_ERASED])


def erase(versions: Iterable[CodeVersion]) -> int:
    """Erase versions: first the content, if no other version has it, then what the rows say about it."""
    done = 0
    for row in versions:
        try:
            done += _erase(row)
        except (DatabaseError, OSError):  # one version must not keep back the others
            logger.exception("erasing code version %s", row.pk)
    return done


def _erase(version: CodeVersion) -> bool:
    same = CodeVersion.with_deleted.filter(sha256=version.sha256, erased_at=None).exclude(pk=version.pk)
    if not same.exists() and not store.remove(version.sha256):
        return False  # the same content was just uploaded again: the next round knows more
    with transaction.atomic():
        rows = CodeVersion.with_deleted.select_for_update(of=("self",)).filter(pk=version.pk, erased_at=None)
        row = rows.filter(erase_at__lte=timezone.now()).first()
        if row is None:
            return False
        origin = getattr(row, "origin", None)
        if origin is not None:
            origin.delete()
        row.files, row.guess, row.upload_name, row.note, row.size = [], {}, "", "", 0
        row.erased_at = timezone.now()
        row.save(update_fields=["files", "guess", "upload_name", "note", "size", "erased_at"])
    if not same.exists():  # two versions with one content may have waited for each other
        store.remove(version.sha256)
    return True
