"""Submits the jobs of schedules whose time has come.

A round looks at all schedules that are not paused. What is due is computed from the clock and from the rows of runs, of which
each day has at most one by a constraint: a portal that was down, two rounds at once, and a clock that was set forward or
back never give two jobs for a day, and no burst for several. The row and the job are written in one transaction.
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone

from portal.accounts import outbox
from portal.accounts.services import active_admins
from portal.jobs import lifecycle
from portal.jobs import services as jobs
from portal.jobs.models import FINISHED_STATES, Job
from portal.jobs.spec import FIELDS, Submission
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.schedules import messages
from portal.schedules.models import Schedule, ScheduleRun
from scheduling.messages import Message

logger = logging.getLogger(__name__)

MAX_RUNS = 50
"""Submissions of one round; the next one, half a minute later, goes on."""
MAX_FAILURES = 5
"""Refusals in a row after which a schedule is paused."""
ON_TIME = timedelta(minutes=15)
"""A round that comes so late is not a missed one: rounds are half a minute apart, and a restart takes minutes."""
RUNS_READ = timedelta(days=10)
"""The last chosen day is at most a week ago."""
NOTICE = "schedule"
"""The kind of its notices (``portal.notifications.kinds``)."""
NOT_SCHEDULED = ("after", "use_outputs", "deadline")
"""Fields that mean one job or one moment."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    submitted: int = 0
    left: int = 0
    """Schedules that are due and were left to the next round."""


def run_due(now: datetime | None = None) -> RoundResult:
    """Submit what is due; return how much. May be repeated, and may run at several places at once."""
    now = now or timezone.now()
    rows = list(Schedule.objects.filter(paused_at=None, project__deleted_at=None).order_by("next_run_at", "pk"))
    done = _dates_done(now)
    submitted = left = handled = 0
    for row in rows:
        if row.since > now:  # the clock was set back: what comes from now on counts
            Schedule.objects.filter(pk=row.pk, since=row.since).update(since=now)
            row.since = now
        if not row.has_known_zone:
            _pause_without_zone(row.pk, now)
            continue
        due = row.timetable.latest(now)
        if due is not None and due[1] > row.since and due[0] not in done[row.pk]:
            if handled >= MAX_RUNS:
                left += 1
                continue
            handled += 1
            try:
                submitted += _run(row.pk, *due, now)
            except IntegrityError:
                logger.info("schedule %s has run on %s already: another round was faster", row.pk, due[0])
            except DatabaseError:
                # An error of one schedule must not keep back the others; the next round tries again, until it is too late.
                logger.exception("running schedule %s", row.pk)
            except Exception:
                logger.exception("running schedule %s", row.pk)
                _record_error(row.pk, *due, now)
        _show_next(row, now, done[row.pk])
    if left:
        logger.warning("%s schedules that are due are left to the next round", left)
    return RoundResult(submitted, left)


def _dates_done(now: datetime) -> defaultdict[int, set[date]]:
    """Return the days of schedules, by key, of which something became already."""
    found: defaultdict[int, set[date]] = defaultdict(set)
    for schedule, day in ScheduleRun.objects.filter(date__gte=(now - RUNS_READ).date()).values_list("schedule", "date"):
        found[schedule].add(day)
    return found


def _show_next(row: Schedule, now: datetime, done: Collection[date]) -> None:
    following = row.timetable.following(now, done)
    if following is not None and row.next_run_at != following[1]:
        Schedule.objects.filter(pk=row.pk, paused_at=None).update(next_run_at=following[1])


@transaction.atomic
def _run(pk: int, day: date, due_at: datetime, now: datetime) -> bool:
    """Handle one day of a schedule; return whether a job was submitted. Raises IntegrityError if the day was handled."""
    row = Schedule.objects.select_for_update(of=("self",)).select_related("owner", "project", "environment").get(pk=pk)
    if row.paused_at is not None or due_at <= row.since or row.project.deleted_at is not None:
        return False
    if row.runs.filter(date=day).exists():
        return False
    result = ScheduleRun.Result
    if now - due_at > ON_TIME + timedelta(hours=row.max_late_hours):
        row.runs.create(date=day, due_at=due_at, at=now, result=result.MISSED)
        return False
    if why := _why_no_owner(row):
        pause(row, why, now)
        return False
    if row.overlap == Schedule.Overlap.SKIP and _previous_is_unfinished(row):
        row.runs.create(date=day, due_at=due_at, at=now, result=result.OVERLAP)
        return False
    try:
        job = submit(row)
    except Refused as refusal:
        row.runs.create(date=day, due_at=due_at, at=now, result=result.REFUSED, why=refusal.message)
        _count_refusal(row, refusal, now)
        return False
    row.runs.create(date=day, due_at=due_at, at=now, result=result.SUBMITTED, job=job)
    if row.failures:
        row.failures = 0
        row.save(update_fields=["failures"])
    return True


@transaction.atomic
def _record_error(pk: int, day: date, due_at: datetime, now: datetime) -> None:
    """Record a day on which submitting failed with an error of the portal, as a refusal."""
    row = Schedule.objects.select_for_update(of=("self",)).select_related("owner", "project").get(pk=pk)
    if row.paused_at is None and not row.runs.filter(date=day).exists():
        why = "The portal failed to submit it. Ask an admin: the log of the worker has the error."
        row.runs.create(date=day, due_at=due_at, at=now, result=ScheduleRun.Result.REFUSED, why=why)
        _count_refusal(row, Refused(why), now)


@transaction.atomic
def _pause_without_zone(pk: int, now: datetime) -> None:
    """Pause a schedule whose zone this machine does not know: the portal moved, or its time zone database changed."""
    row = Schedule.objects.select_for_update(of=("self",)).select_related("owner", "project").get(pk=pk)
    if row.paused_at is None and not row.has_known_zone:
        pause(row, messages.ZoneUnknown(row.zone), now)


def _why_no_owner(row: Schedule) -> Message | None:
    if not row.owner.is_active:
        return messages.OwnerInactive(str(row.owner))
    if row.project.archived_at is not None or not may_submit(role_of(row.owner, row.project)):
        return messages.OwnerWithoutAccess(str(row.owner))
    return None


def _previous_is_unfinished(row: Schedule) -> bool:
    return Job.objects.filter(schedule_runs__schedule=row).exclude(state__in=FINISHED_STATES).exists()


@transaction.atomic
def submit(row: Schedule) -> Job:
    """Submit the job of a schedule. Raises Refused."""
    job = jobs.submit(row.owner, row.project, submission_for(row))
    lifecycle.record(job, messages.FromSchedule(row.pk, row.name))
    return job


def submission_for(row: Schedule) -> Submission:
    """Return the job of a schedule as it would be submitted now. Raises Refused if the project has no code."""
    code = row.code or row.project.code_versions.first()
    if code is None:
        raise Refused("The project has no code. Upload some.", field="code")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.values.items()
        if name in FIELDS and name not in NOT_SCHEDULED
    }
    return Submission(code=code, environment=row.environment, launcher=row.launcher, entry=row.entry, **values)


def _count_refusal(row: Schedule, refusal: Refused, now: datetime) -> None:
    row.failures += 1
    row.save(update_fields=["failures"])
    if row.failures >= MAX_FAILURES:
        pause(row, messages.RefusedAgain(row.failures, refusal.message), now)
    else:
        outbox.notify(
            [row.owner], NOTICE, messages.ScheduleRefused(row.name, row.project.name, refusal.message), path_of(row)
        )


def pause(row: Schedule, why: Message, now: datetime) -> None:
    """Pause a schedule by itself, and notify its owner; admins where the owner does not read notices any more."""
    row.paused_at, row.pause_reason, row.next_run_at = now, why.data(), None
    row.save(update_fields=["paused_at", "pause_reason", "next_run_at"])
    readers = [row.owner] if isinstance(why, messages.RefusedAgain) else [row.owner, *active_admins()]
    active = {user.pk: user for user in readers if user.is_active}
    outbox.notify(active.values(), NOTICE, messages.SchedulePaused(row.name, row.project.name, why), path_of(row))


def path_of(row: Schedule) -> str:
    return reverse("schedules:detail", args=[row.pk])
