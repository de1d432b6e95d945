"""Deleting jobs: into a trash from which they come back, and for good.

A deleted job is hidden from pages, lists and the API. ``KEPT_FOR`` later, or at once if its owner wants that, its files, logs,
curves and texts are erased. Its row stays without them, because the GPU time that it used was used.
"""

import shutil

from django.db import transaction
from django.utils import timezone
from django.utils.text import get_text_list

from portal.accounts.audit import audit
from portal.accounts.models import User
from portal.jobs import events, lifecycle
from portal.jobs.models import (
    FINISHED_STATES,
    UNFINISHED_STATES,
    Container,
    Job,
    JobDataset,
    NetworkUse,
    Progress,
    StepStat,
    TimeExtension,
)
from portal.jobs.permissions import require_may_act
from portal.jobs.stored import PARTS
from portal.projects.deletable import end_time_in_trash, put_in_trash, require_restorable, take_out_of_trash
from portal.refused import Refused
from portal.wake import wake_job_viewers

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
ERASED_OF_SPECS = ("command", "env", "secrets", "datasets")
"""What is emptied in the specifications of containers."""


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
    put_in_trash(row, user, timezone.now())
    audit(user, "job.delete", f"job {row.pk}", after={"name": row.name})
    return _recorded(user, row, events.Deleted(str(user)))


@transaction.atomic
def restore(user: User, job: Job) -> Job:
    """Take a job out of the trash. Raises Refused when its time there is over."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    if row.deleted_at is None:
        return row
    require_restorable(row, f"Job {row.pk}")
    take_out_of_trash(row)
    audit(user, "job.restore", f"job {row.pk}", after={"name": row.name})
    return _recorded(user, row, events.Restored(str(user)))


@transaction.atomic
def delete_for_good(user: User, job: Job) -> Job:
    """Let a job in the trash be erased by the next round of tidying, within the hour."""
    require_may_act(user, job)
    row = lifecycle.get_locked(job.pk)
    end_time_in_trash(row, "job")
    audit(user, "job.erase", f"job {row.pk}", {"name": row.name})
    return row


def keep(user: User, job: Job) -> Job:
    """Protect a job from deletion and from rules that clean up."""
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
    for part in PARTS.values():
        for folder in part.folders(job):
            shutil.rmtree(folder, ignore_errors=True)
    with transaction.atomic():
        row = lifecycle.get_locked(job.pk)
        if row.erase_at is None or row.erased_at is not None:
            return
        for part in PARTS.values():
            part.delete_rows(row)
        attempts = row.attempts.all()
        for rows in (
            StepStat.objects.filter(attempt__in=attempts),
            Progress.objects.filter(attempt__in=attempts),
            NetworkUse.objects.filter(container__attempt__in=attempts),
            TimeExtension.objects.filter(job=row),
            JobDataset.objects.filter(job=row),
        ):
            rows.delete()
        attempts.update(cause={})
        for container in Container.objects.filter(attempt__in=attempts):
            container.spec |= {key: [] for key in ERASED_OF_SPECS if key in container.spec}
            container.save(update_fields=["spec"])
        for name, value in ERASED.items():
            setattr(row, name, value)
        row.erased_at = timezone.now()
        row.save(update_fields=[*ERASED, "erased_at"])
