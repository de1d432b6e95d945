"""Deleting projects: what hinders it, what goes, and their trash.

A project goes as a whole: its code versions are hidden with it, and its jobs go to the trash at the same moment, from which they
come back with it. After ``KEPT_FOR`` all of it is erased. Its row stays under another name, because the GPU time that its jobs
used was used.
"""

import logging
from dataclasses import dataclass

from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.deletion import code_versions
from portal.deletion.words import about_jobs, first_of, sentence
from portal.environments.models import AllowedHost
from portal.jobs import trash
from portal.jobs.models import UNFINISHED_STATES, Job, RetentionRule
from portal.jobs.stored import Space, space_of
from portal.notifications.models import Channel, MutedProject, Notice, PrivateProject
from portal.projects.deletable import (
    KEPT_FOR,
    end_time_in_trash,
    put_in_trash,
    require_restorable,
    take_out_of_trash,
)
from portal.projects.git.ending import end_open
from portal.projects.models import CodeVersion, GitFetch, GitSource, Membership, Project
from portal.projects.services import lock, require_owner
from portal.refused import Refused
from portal.schedules.models import Schedule
from portal.secrets.models import Secret
from portal.sentences import agents

logger = logging.getLogger(__name__)

MAX_ERASED_JOBS = 200
"""Jobs of one project that one round of tidying erases; the next one goes on."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Jobs because of which a project cannot be deleted now."""

    why: str
    numbers: list[int]
    """The first of them, which a page links."""


@dataclass(frozen=True, slots=True)
class Belongings:
    """What goes with a project."""

    jobs: int
    versions: int
    schedules: int
    secrets: int
    channels: int
    environments: int
    members: int
    git: str
    """The address of its repository; empty without one."""
    followers: int
    """Jobs of other projects that had outputs of its jobs as input."""
    space: Space


def hindrances(project: Project) -> list[Hindrance]:
    """Return why a project cannot be deleted now and what to do, by the jobs that hinder it."""
    jobs = Job.objects.filter(project=project, deleted_at=None)
    elsewhere = Job.objects.filter(after__project=project, state__in=UNFINISHED_STATES).exclude(project=project)
    found = []
    for rows, one, many in (
        (jobs.filter(state__in=UNFINISHED_STATES), "has not ended: wait, or cancel it first", "have not ended: wait, or cancel them first"),
        (jobs.filter(kept=True), "is kept: choose “Stop keeping” first", "are kept: choose “Stop keeping” first"),
        (elsewhere, "of another project starts after a job of this one", "of other projects start after jobs of this one"),
    ):  # fmt: skip
        numbers, count = first_of(rows)
        if count:
            found.append(Hindrance(sentence(about_jobs(numbers, count, one, many)), numbers))
    return found


def belongings_of(project: Project) -> Belongings:
    source = GitSource.objects.filter(project=project).first()
    followers = Job.objects.filter(after__project=project, use_outputs=True, deleted_at=None).exclude(project=project)
    return Belongings(
        jobs=Job.objects.filter(project=project, deleted_at=None).count(),
        versions=project.code_versions.count(),
        schedules=Schedule.objects.filter(project=project).count(),
        secrets=Secret.objects.filter(project=project).count(),
        channels=Channel.objects.filter(project=project).count(),
        environments=project.environments.filter(retired=False).count(),
        members=project.memberships.count(),
        git=source.address if source else "",
        followers=followers.count(),
        space=space_of(project=project),
    )


@transaction.atomic
def delete(user: User, project: Project, typed: str) -> Project:
    """Move a project to the trash, with its code and jobs. ``typed`` is its name, to confirm. Raises Refused with what hinders it."""
    require_owner(user, project)
    if " ".join(typed.split()) != project.name:
        raise Refused("Type the name of the project exactly as it is.", field="name")
    row = lock(project)
    # A submission locks its version: after this no job can be added.
    list(CodeVersion.objects.select_for_update().filter(project=row).order_by("pk").values_list("pk"))
    if problems := hindrances(row):
        raise Refused(" ".join(each.why for each in problems), "conflict")
    now = timezone.now()
    end_open(row.fetches.all(), agents.git_failures.ProjectArchived())
    put_in_trash(row, user, now)
    jobs = Job.objects.filter(project=row, deleted_at=None)
    count = jobs.update(deleted_at=now, deleted_by=user, erase_at=now + KEPT_FOR)
    audit(user, "project.delete", f"project {row.pk} {row.name}", after={"jobs": count})
    return row


# --- the trash ---------------------------------------------------------------------------------------------------


def in_trash_of(user: User) -> QuerySet[Project]:
    """Return the deleted projects that the user may restore: those that they own, all for admins."""
    rows = Project.with_deleted.filter(deleted_at__isnull=False, erased_at=None).select_related("deleted_by")
    if user.is_admin:
        return rows
    owned = Membership.objects.filter(user=user, role=Membership.Role.OWNER)
    return rows.filter(pk__in=owned.values("project"))


@transaction.atomic
def restore(user: User, project: Project) -> Project:
    """Take a project out of the trash, with the jobs that went with it. Raises Refused when its time there is over."""
    row = _locked(user, project)
    if row.deleted_at is None:
        return row
    require_restorable(row, f"“{row.name}”")
    jobs = Job.objects.filter(project=row, deleted_at=row.deleted_at, erased_at=None)
    count = jobs.update(deleted_at=None, deleted_by=None, erase_at=None)
    Schedule.objects.filter(project=row).update(since=timezone.now())  # the days in the trash are not made up for
    take_out_of_trash(row)
    audit(user, "project.restore", f"project {row.pk} {row.name}", after={"jobs": count})
    return row


@transaction.atomic
def delete_for_good(user: User, project: Project) -> Project:
    """Let a project in the trash be erased by the next rounds of tidying."""
    row = _locked(user, project)
    end_time_in_trash(row, "project")
    audit(user, "project.erase", f"project {row.pk} {row.name}")
    return row


def _locked(user: User, project: Project) -> Project:
    row = Project.with_deleted.select_for_update().get(pk=project.pk)
    require_owner(user, row)
    return row


# --- erasing -----------------------------------------------------------------------------------------------------


def erase_due() -> int:
    """Erase the projects whose time in the trash is over; return how many. May be repeated, and goes on after a crash."""
    done = 0
    for row in Project.with_deleted.filter(erase_at__lte=timezone.now(), erased_at=None).order_by("erase_at"):
        try:
            done += _erase(row)
        except (DatabaseError, OSError):  # one project must not keep back the others
            logger.exception("erasing project %s", row.pk)
    return done


def _erase(project: Project) -> bool:
    """Erase a project: its jobs, then its code, then all that is set up for it. Return whether nothing is left."""
    now = timezone.now()
    jobs = Job.objects.filter(project=project, erased_at=None)
    jobs.filter(Q(erase_at__gt=now)).update(erase_at=now)
    for job in jobs.order_by("pk")[:MAX_ERASED_JOBS]:
        trash.erase(job)
    versions = CodeVersion.with_deleted.filter(project=project, erased_at=None)
    if jobs.exists():
        return False
    versions.filter(Q(erase_at=None) | Q(erase_at__gt=now)).update(deleted_at=now, erase_at=now)
    code_versions.erase(versions.defer("files", "guess")[: code_versions.MAX_ERASED])
    if versions.exists():
        return False
    with transaction.atomic():
        row = Project.with_deleted.select_for_update().get(pk=project.pk)
        for rows in (
            Schedule.objects.filter(project=row),
            Secret.objects.filter(project=row),
            Channel.objects.filter(project=row),
            Notice.objects.filter(project=row),
            MutedProject.objects.filter(project=row),
            PrivateProject.objects.filter(project=row),
            RetentionRule.objects.filter(project=row),
            AllowedHost.objects.filter(Q(project=row) | Q(environment__project=row)),
            GitSource.objects.filter(project=row),
            GitFetch.objects.filter(project=row),
            Membership.objects.filter(project=row),
        ):
            rows.delete()
        row.environments.update(retired=True, title="deleted environment", description="")
        row.name, row.description, row.erased_at = f"deleted project {row.pk}", "", now
        row.save(update_fields=["name", "description", "erased_at"])
    return True
