"""Deleting jobs: into a trash from which they come back, and for good.

A deleted job is hidden from pages, lists and the API. ``KEPT_FOR`` later, or at once if its owner wants that, its files, logs,
curves and texts are erased. Its row stays without them, because the GPU time that it used was used.
"""

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from django.utils.text import get_text_list

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.jobs import checkpoints, events, lifecycle, outputs
from portal.jobs.models import (
    FINISHED_STATES,
    UNFINISHED_STATES,
    CheckpointSet,
    Container,
    Job,
    LogStream,
    MetricPoint,
    NetworkUse,
    Output,
    Progress,
    StepStat,
    TimeExtension,
)
from portal.jobs.permissions import require_may_act
from portal.refused import Refused
from portal.wake import wake_job_viewers

KEPT_FOR = timedelta(days=14)
"""How long a deleted job can be restored."""
MAX_ERASED = 200
"""Jobs of one round of tidying; the next one goes on."""
MAX_NAMED = 5
ERASED = {
    "name": "deleted job",
    "tags": [],
    "description": "",
    "entry": "-",
    "arguments": [],
    "env_vars": {},
    "secrets": [],
    "search_text": "",
}
"""The values that stand in the place of those that were typed."""


@dataclass(frozen=True, slots=True)
class Space:
    """What the portal stores of a job, in bytes."""

    outputs: int
    files: int
    """The number of its outputs."""
    checkpoints: int
    logs: int

    @property
    def total(self) -> int:
        return self.outputs + self.checkpoints + self.logs


def space_of(job: Job) -> Space:
    """Return what the portal stores of a job, in three queries."""
    found = job.outputs.aggregate(size=Sum("size"))["size"] or 0
    checkpoint_bytes = CheckpointSet.objects.filter(job=job).aggregate(size=Sum("size"))["size"] or 0
    logs = LogStream.objects.filter(container__attempt__job=job).aggregate(size=Sum("size"))["size"] or 0
    return Space(found, job.outputs.count(), checkpoint_bytes, logs)


def hindrance(job: Job) -> str:
    """Return why a job cannot be deleted now and what to do, as a sentence; empty if it can be."""
    if job.state not in FINISHED_STATES:
        return "It has not ended. Cancel it first."
    if job.kept:
        return "It is kept. Choose “Stop keeping” first."
    waiting = Job.objects.filter(after=job, state__in=UNFINISHED_STATES).order_by("pk")
    if numbers := list(waiting.values_list("pk", flat=True)[: MAX_NAMED + 1]):
        names = [str(number) for number in numbers[:MAX_NAMED]] + ["others"] * (len(numbers) > MAX_NAMED)
        if len(numbers) == 1:
            return f"Job {numbers[0]} starts after it. Cancel that one first, or wait for its end."
        return f"Jobs {get_text_list(names, 'and')} start after it. Cancel them first, or wait for their end."
    return ""


@transaction.atomic
def delete(user: User, job: Job) -> Job:
    """Move a finished job to the trash. Raises Refused with the reason if it cannot be deleted."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.deleted_at is not None:
        return row
    if problem := hindrance(row):
        raise Refused(problem, "conflict")
    now = timezone.now()
    row.deleted_at, row.deleted_by, row.erase_at = now, user, now + KEPT_FOR
    row.save(update_fields=["deleted_at", "deleted_by", "erase_at"])
    audit(user, "job.delete", f"job {row.pk}", after={"name": row.name})
    return _recorded(user, row, events.Deleted(str(user)))


@transaction.atomic
def restore(user: User, job: Job) -> Job:
    """Take a job out of the trash. Raises Refused when its time there is over."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.deleted_at is None:
        return row
    if row.erase_at is None or row.erase_at <= timezone.now():
        raise Refused(f"Job {row.pk} is being erased and cannot be restored any more.", "conflict")
    row.deleted_at = row.deleted_by = row.erase_at = None
    row.save(update_fields=["deleted_at", "deleted_by", "erase_at"])
    audit(user, "job.restore", f"job {row.pk}", after={"name": row.name})
    return _recorded(user, row, events.Restored(str(user)))


@transaction.atomic
def delete_for_good(user: User, job: Job) -> Job:
    """Let a job in the trash be erased by the next round of tidying, within the hour."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.deleted_at is None:
        raise Refused("Move the job to the trash first.", "conflict")
    row.erase_at = min(row.erase_at or timezone.now(), timezone.now())
    row.save(update_fields=["erase_at"])
    audit(user, "job.erase", f"job {row.pk}", {"name": row.name})
    return row


def keep(user: User, job: Job) -> Job:
    """Protect a job from deletion and from rules that clean up, with all that it needs."""
    return _set_kept(user, job, True)


def stop_keeping(user: User, job: Job) -> Job:
    return _set_kept(user, job, False)


@transaction.atomic
def _set_kept(user: User, job: Job, kept: bool) -> Job:
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.deleted_at is not None:
        raise Refused("It is in the trash. Restore it first.", "conflict")
    if row.kept == kept:
        return row
    row.kept = kept
    row.save(update_fields=["kept"])
    if kept:
        audit(user, "job.keep", f"job {row.pk}", after={"name": row.name})
    else:
        audit(user, "job.stop_keeping", f"job {row.pk}", after={"name": row.name})
    return _recorded(user, row, events.Kept(str(user), kept))


def _recorded(user: User, row: Job, event: events.Event) -> Job:
    lifecycle.record(row, event, user)
    transaction.on_commit(lambda: wake_job_viewers(row.pk))
    return row


# --- erasing -----------------------------------------------------------------------------------------------------


def erase_due() -> int:
    """Erase the jobs whose time in the trash is over; return how many. May be repeated, and goes on after a crash."""
    due = Job.objects.filter(erase_at__lte=timezone.now(), erased_at=None).order_by("erase_at")[:MAX_ERASED]
    for job in due:
        erase(job)
    return len(due)


def erase(job: Job) -> None:
    """Remove all that was stored of a job whose time in the trash is over: first the files, then the rows that name them."""
    for folder in _folders_of(job):
        shutil.rmtree(folder, ignore_errors=True)
    with transaction.atomic():
        row = lifecycle.get_locked(job.pk)
        if row.erase_at is None or row.erased_at is not None:
            return
        attempts = row.attempts.all()
        for rows in (
            Output.objects.filter(job=row),
            CheckpointSet.objects.filter(job=row),
            LogStream.objects.filter(container__attempt__in=attempts),
            MetricPoint.objects.filter(attempt__in=attempts),
            StepStat.objects.filter(attempt__in=attempts),
            Progress.objects.filter(attempt__in=attempts),
            NetworkUse.objects.filter(container__attempt__in=attempts),
            TimeExtension.objects.filter(job=row),
        ):
            rows.delete()
        attempts.update(cause={})
        for name, value in ERASED.items():
            setattr(row, name, value)
        row.erased_at = timezone.now()
        row.save(update_fields=[*ERASED, "erased_at"])


def _folders_of(job: Job) -> list[Path]:
    return [outputs.folder_of(job), checkpoints.folder_of(job), *log_folders_of(job)]


def log_folders_of(job: Job) -> list[Path]:
    """Return the folders of the logs of a job's containers, of earlier releases too."""
    logs = Path(settings.HOME) / "logs"
    streams = LogStream.objects.filter(container__attempt__job=job).values_list("folder", "container_id").distinct()
    names = {folder or str(container) for folder, container in streams}
    names |= set(Container.objects.filter(attempt__job=job).values_list("name", flat=True))
    return [logs / name for name in sorted(names)]
