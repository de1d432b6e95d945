"""Which jobs a rule means, what it would free, and carrying it out. The preview and the removal use one and the same query."""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.jobs import checkpoints, events, lifecycle, outputs
from portal.jobs.models import FINISHED_STATES, UNFINISHED_STATES, Container, ContainerState, Job
from portal.jobs.retention.models import MAX_DAYS, MIN_DAYS, RetentionRule
from portal.jobs.stored import OUTPUTS, PARTS
from portal.projects.deletable import put_in_trash
from portal.projects.models import Project
from portal.projects.services import may_manage, role_of
from portal.refused import Refused

logger = logging.getLogger(__name__)

Part = RetentionRule.Part
DEFAULT = RetentionRule(part=Part.CHECKPOINTS, days=checkpoints.RETENTION.days)
"""What happens to the checkpoints of jobs that no rule means. It is no row."""
MAX_CLEANED = 500
"""Jobs of one rule in one round of tidying; the next one, an hour later, goes on."""
AT_A_TIME = f"for up to {MAX_CLEANED} jobs at a time"
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
    """Set a rule. It is carried out by each round of tidying from then."""
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
    end = now - timedelta(days=rule.days)
    followers = Job.objects.filter(after=OuterRef("pk"), state__in=UNFINISHED_STATES)
    rows = Job.objects.filter(state__in=rule.states, finished_at__lt=end, kept=False, deleted_at=None)
    rows = rows.exclude(Exists(followers)).order_by("pk")
    if rule.part in PARTS:
        rows = rows.filter(PARTS[rule.part].exists)
    if rule.part == Part.CHECKPOINTS:  # those of a node that came back late stay as long
        rows = rows.filter(checkpoint_set__stored_at__lt=end)
    own = RetentionRule.objects.filter(project=OuterRef("project"), part=rule.part)
    if rule is DEFAULT:
        return _without_rule(rows, own)
    return rows.exclude(Exists(own)) if rule.project_id is None else rows.filter(project=rule.project_id)


def _without_rule(rows: QuerySet[Job], own: QuerySet[RetentionRule]) -> QuerySet[Job]:
    """Leave out the jobs that a rule of their project means, or of the lab where their project has none."""
    of_lab = {rule.ended: rule for rule in RetentionRule.objects.filter(project=None, part=DEFAULT.part)}
    for ended in RetentionRule.Ended.values:
        states = RetentionRule(ended=ended).states
        rows = rows.exclude(Q(Exists(own.filter(ended=ended)), state__in=states))
        if ended in of_lab:
            rows = rows.exclude(~Q(Exists(own)), state__in=states)
    return rows


def preview(rule: RetentionRule, now: datetime | None = None) -> Preview:
    """Return how many jobs a rule means now, and how many bytes it would free."""
    jobs = meant_by(rule, now or timezone.now())
    numbers = jobs.order_by().values("pk")
    wanted = [PARTS[rule.part]] if rule.part in PARTS else PARTS.values()
    return Preview(jobs.count(), sum(part.bytes_of(**{"in": numbers}) for part in wanted))


def removed_parts(job: Job) -> set[str]:
    """Return the parts of a job that rules have removed, by its history."""
    rows = job.events.filter(kind=events.CleanedUp.kind).values_list("data", flat=True)
    return {str(data.get("part")) for data in rows}


# --- carrying them out -------------------------------------------------------------------------------------------


def carry_out_all(now: datetime | None = None) -> int:
    """Carry out all rules; return of how many jobs something was removed. May be repeated, and goes on after a crash."""
    now, cleaned = now or timezone.now(), 0
    for rule in RetentionRule.objects.select_related("project").order_by("pk"):
        done = _carry_out(rule, now)
        if done:
            RetentionRule.objects.filter(pk=rule.pk).update(carried_out_at=now)
        cleaned += done
    return cleaned


def remove_checkpoints_without_rule(now: datetime | None = None) -> int:
    """Remove the checkpoints of jobs that no rule means, a month after their end; return of how many."""
    return _carry_out(DEFAULT, now or timezone.now())


def _carry_out(rule: RetentionRule, now: datetime) -> int:
    return sum(_clean_or_report(job, rule, now) for job in meant_by(rule, now)[:MAX_CLEANED])


def _clean_or_report(job: Job, rule: RetentionRule, now: datetime) -> bool:
    try:
        return clean(job, rule, now)
    except DatabaseError:  # an error of one job must not keep the others, and what is tidied after them
        logger.exception("removing the %s of job %s", rule.part, job.pk)
        return False


def clean(job: Job, rule: RetentionRule, now: datetime) -> bool:
    """Remove from a job what a rule means, if it still means the job; return whether it did.

    Rows go in one transaction and files after it, since no lock may wait for a disk. Files that a crash in between leaves are
    found by ``remove_leftovers``, and of checkpoints by ``checkpoints.delete_orphan_pieces``.
    """
    with transaction.atomic():
        row = lifecycle.get_locked(job.pk)
        if not meant_by(rule, now).filter(pk=row.pk).exists():
            return False
        folders: list[Path] = []
        if rule.part in PARTS:
            folders = PARTS[rule.part].folders(row)
            PARTS[rule.part].delete_rows(row)
        else:
            put_in_trash(row, None, now)
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
    numbers = {number for folder in folders if (number := outputs.job_number_of(folder)) is not None}
    ended = Job.objects.filter(~OUTPUTS.exists, pk__in=numbers, state__in=FINISHED_STATES)
    return set(folders) - {job.folder for job in ended}


def _named_logs(folders: Sequence[str]) -> set[str]:
    """Return the folders of logs that are in use, or of containers that have not ended or are unknown."""
    rows = Container.objects.filter(name__in=folders, state=ContainerState.EXITED, collected_at__isnull=False)
    return set(folders) - set(rows.filter(streams=None).values_list("name", flat=True))
