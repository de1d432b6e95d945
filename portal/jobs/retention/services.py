"""Which jobs a rule means, what it would free, and carrying it out. The preview and the removal use one and the same query."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.jobs import checkpoints, events, lifecycle, outputs, trash
from portal.jobs.models import (
    FINISHED_STATES,
    UNFINISHED_STATES,
    CheckpointSet,
    Container,
    ContainerState,
    Job,
    JobState,
    LogStream,
    MetricPoint,
    Output,
)
from portal.jobs.retention.models import MAX_DAYS, MIN_DAYS, RetentionRule
from portal.projects.models import Project
from portal.projects.services import may_manage, role_of
from portal.refused import Refused

Part = RetentionRule.Part
MAX_CLEANED = 500
"""Jobs of one rule in one round of tidying; the next one, within the hour, goes on."""
LEFTOVER_SECONDS = 24 * 3600
BATCH = 500
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Preview:
    """What a rule would remove now."""

    jobs: int
    bytes: int


# --- rules -------------------------------------------------------------------------------------------------------


def require_may_set(user: User, project: Project | None) -> None:
    """Raise Refused unless the user may set rules: admins for the lab, owners for their projects."""
    if project is None and not user.is_admin:
        raise Refused("Only admins set rules for all projects.", "forbidden")
    if project is not None and not may_manage(role_of(user, project)):
        raise Refused(f"Only owners of “{project.name}” set its rules.", "forbidden")


def unsaved(project: Project | None, part: str, ended: str, days: int) -> RetentionRule:
    """Return a rule for a preview. Raises Refused for values that no rule has."""
    if part not in Part.values:
        raise Refused(f"Choose what to remove: {', '.join(Part.values)}.", field="part")
    if ended not in RetentionRule.Ended.values:
        raise Refused(f"Choose which jobs: {', '.join(RetentionRule.Ended.values)}.", field="ended")
    if not MIN_DAYS <= days <= MAX_DAYS:
        raise Refused(f"Enter a number of days from {MIN_DAYS} to {MAX_DAYS:,}.", field="days")
    return RetentionRule(project=project, part=part, ended=ended, days=days)


@transaction.atomic
def add(user: User, project: Project | None, part: str, ended: str, days: int) -> RetentionRule:
    """Set a rule. It is carried out by the next round of tidying, within the hour."""
    require_may_set(user, project)
    rule = unsaved(project, part, ended, days)
    rule.created_by = user
    try:
        with transaction.atomic():
            rule.save()
    except IntegrityError as error:
        raise Refused("There is such a rule already. Remove it first.", "conflict", "part") from error
    audit(user, "retention.add", f"retention rule {rule.pk}", after=rule.values)
    return rule


@transaction.atomic
def remove(user: User, rule: RetentionRule) -> None:
    """Remove a rule. What it has removed stays removed."""
    require_may_set(user, rule.project)
    audit(user, "retention.remove", f"retention rule {rule.pk}", before=rule.values)
    rule.delete()


# --- what they mean ----------------------------------------------------------------------------------------------


def meant_by(rule: RetentionRule, now: datetime) -> QuerySet[Job]:
    """Return the jobs of which a rule removes something now.

    Jobs that are kept are left alone, and those on which another job that has not ended depends.
    """
    states = FINISHED_STATES if rule.ended == RetentionRule.Ended.ANY else (JobState.FAILED, JobState.CANCELLED)
    rows = Job.objects.filter(
        state__in=states, finished_at__lt=now - timedelta(days=rule.days), kept=False, deleted_at=None
    )
    followers = Job.objects.filter(after=OuterRef("pk"), state__in=UNFINISHED_STATES)
    rows = rows.exclude(Exists(followers))
    if rule.project_id is not None:
        rows = rows.filter(project=rule.project_id)
    else:
        own = RetentionRule.objects.filter(project=OuterRef("project"), part=rule.part)
        rows = rows.exclude(Exists(own))
    return rows.filter(_has(rule.part)).order_by("pk")


def _has(part: str) -> Q:
    """Return the condition for jobs that have something of a part."""
    if part == Part.OUTPUTS:
        return Q(Exists(Output.objects.filter(job=OuterRef("pk"))))
    if part == Part.CHECKPOINTS:
        return Q(Exists(CheckpointSet.objects.filter(job=OuterRef("pk"))))
    if part == Part.LOGS:
        return Q(Exists(LogStream.objects.filter(container__attempt__job=OuterRef("pk"))))
    return Q()


def preview(rule: RetentionRule, now: datetime | None = None) -> Preview:
    """Return how many jobs a rule means now, and how many bytes it would free."""
    jobs = meant_by(rule, now or timezone.now())
    numbers = jobs.order_by().values("pk")
    sizes = {
        Part.OUTPUTS: Output.objects.filter(job__in=numbers),
        Part.CHECKPOINTS: CheckpointSet.objects.filter(job__in=numbers),
        Part.LOGS: LogStream.objects.filter(container__attempt__job__in=numbers),
    }
    wanted = list(sizes) if rule.part == Part.JOBS else [Part(rule.part)]
    total = sum(sizes[part].aggregate(size=Sum("size"))["size"] or 0 for part in wanted)
    return Preview(jobs.count(), total)


# --- carrying them out -------------------------------------------------------------------------------------------


def carry_out_all(now: datetime | None = None) -> int:
    """Carry out all rules; return of how many jobs something was removed. May be repeated, and goes on after a crash."""
    now, cleaned = now or timezone.now(), 0
    for rule in RetentionRule.objects.select_related("project").order_by("pk"):
        done = sum(clean(job, rule, now) for job in meant_by(rule, now)[:MAX_CLEANED])
        if done:
            RetentionRule.objects.filter(pk=rule.pk).update(carried_out_at=now)
        cleaned += done
    return cleaned


def clean(job: Job, rule: RetentionRule, now: datetime) -> bool:
    """Remove from a job what a rule means, if it still means the job; return whether it did.

    Rows go in one transaction and files after it, since no lock may wait for a disk. Files that a crash in between leaves are
    found by ``remove_leftovers``.
    """
    with transaction.atomic():
        row = lifecycle.get_locked(job.pk)
        if not meant_by(rule, now).filter(pk=row.pk).exists():
            return False
        folders = trash.log_folders_of(row) if rule.part == Part.LOGS else []
        if rule.part == Part.JOBS:
            row.deleted_at, row.erase_at = now, now + trash.KEPT_FOR
            row.save(update_fields=["deleted_at", "erase_at"])
        elif rule.part == Part.OUTPUTS:
            Output.objects.filter(job=row).delete()
            folders = [outputs.folder_of(row)]
        elif rule.part == Part.CHECKPOINTS:
            CheckpointSet.objects.filter(job=row).delete()
            folders = [checkpoints.folder_of(row)]
        else:
            LogStream.objects.filter(container__attempt__job=row).delete()
            MetricPoint.objects.filter(attempt__job=row).delete()
        lifecycle.record(row, events.CleanedUp(rule.part, rule.days))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def remove_leftovers(now: datetime | None = None) -> int:
    """Remove folders of outputs and logs that no row names any more; return how many. Those of the last day stay."""
    before, removed = (now or timezone.now()).timestamp() - LEFTOVER_SECONDS, 0
    for name, find_named in (("outputs", _named_outputs), ("logs", _named_logs)):
        top = Path(settings.HOME) / name
        old = (entry for entry in (os.scandir(top) if top.is_dir() else ()) if _is_old_folder(entry, before))
        for some in _batches((entry.name for entry in old), BATCH):
            named = find_named(some)
            for folder in some:
                if folder not in named:
                    shutil.rmtree(top / folder, ignore_errors=True)
                    removed += 1
    return removed


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    every = iter(items)
    while some := list(islice(every, size)):
        yield some


def _is_old_folder(entry: "os.DirEntry[str]", before: float) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before
    except FileNotFoundError:
        return False


def _named_outputs(folders: Sequence[str]) -> set[str]:
    """Return the folders of outputs that are in use, or of jobs that have not ended or are unknown: of a restored backup."""
    numbers = {folder: int(number) for folder in folders if (number := folder.partition("-")[0]).isdecimal()}
    jobs = Job.objects.in_bulk(list(numbers.values()))
    with_outputs = set(Output.objects.filter(job__in=jobs).values_list("job", flat=True))
    ended = {
        jobs[number].folder
        for number in numbers.values()
        if number in jobs and jobs[number].state in FINISHED_STATES and number not in with_outputs
    }
    return set(folders) - ended


def _named_logs(folders: Sequence[str]) -> set[str]:
    """Return the folders of logs that are in use, or of containers that have not ended or are unknown."""
    rows = Container.objects.filter(name__in=folders, state=ContainerState.EXITED, collected_at__isnull=False)
    return set(folders) - set(rows.filter(streams=None).values_list("name", flat=True))


# --- space -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """What the portal stores of a project, in bytes; of code that several versions share, once."""

    name: str
    number: int
    code: int
    outputs: int
    checkpoints: int
    logs: int

    @property
    def total(self) -> int:
        return self.code + self.outputs + self.checkpoints + self.logs


def space_of_projects(projects: QuerySet[Project]) -> list[SpaceUse]:
    """Return what is stored of each project, the largest first, in five queries."""
    names = dict(projects.values_list("pk", "name"))
    code: dict[int, int] = {}
    versions = projects.order_by().values_list("pk", "code_versions__sha256", "code_versions__size").distinct()
    for pk, _, size in versions:
        code[pk] = code.get(pk, 0) + (size or 0)

    def sums(rows: QuerySet, path: str) -> dict[int, int]:  # type: ignore[type-arg]
        of_project = rows.filter(**{f"{path}__in": projects.order_by().values("pk")}).order_by()
        return dict(of_project.values_list(path).annotate(total=Sum("size")))

    found = sums(Output.objects.all(), "job__project")
    saved = sums(CheckpointSet.objects.all(), "job__project")
    printed = sums(LogStream.objects.all(), "container__attempt__job__project")
    rows = [
        SpaceUse(name, pk, code.get(pk, 0), found.get(pk, 0), saved.get(pk, 0), printed.get(pk, 0))
        for pk, name in names.items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.name.lower(), row.number))
