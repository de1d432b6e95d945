"""The actions of users on schedules. Each raises Refused with a sentence for the user."""

from collections.abc import Collection, Mapping
from datetime import time
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import services as jobs
from portal.jobs.models import Job
from portal.jobs.spec import FIELDS, ROWS, as_columns, submission_of
from portal.names import name_problem
from portal.projects.models import Project
from portal.projects.services import lock_code, may_manage, may_submit, require_member, role_of
from portal.refused import Refused
from portal.schedules.days import DAYS_SEARCHED
from portal.schedules.models import Schedule
from portal.schedules.running import NOT_SCHEDULED, submission_for, submit

MAX_SCHEDULES = 50
"""Of one person in one project."""
MAX_LATE_HOURS = 23
TIMES = ("name", "at", "weekdays", "zone", "max_late_hours", "overlap", "newest_code")
"""What a person chooses of a schedule, in addition to the job whose fields it has."""


def may_edit(user: User, row: Schedule) -> bool:
    """Return whether a user may change what a schedule submits, and when: only its owner, whose jobs these are."""
    return row.owner_id == user.pk and may_submit(role_of(user, row.project))


def may_stop(user: User, row: Schedule) -> bool:
    """Return whether a user may pause or delete a schedule: its owner, owners of the project, and admins."""
    return row.owner_id == user.pk or may_manage(role_of(user, row.project))


@transaction.atomic
def create(user: User, job: Job, values: Mapping[str, Any]) -> Schedule:
    """Make a schedule that submits the fields of a job. ``values``: see ``TIMES``."""
    require_member(user, job.project)
    Project.objects.select_for_update(no_key=True).get(pk=job.project_id)
    if Schedule.objects.filter(owner=user, project=job.project_id).count() >= MAX_SCHEDULES:
        raise Refused(f"You may have at most {MAX_SCHEDULES} schedules in a project. Delete one first.", "limit")
    row = Schedule(owner=user, project=job.project)
    _take_fields(row, job, newest_code=values.get("newest_code", True))
    _take_times(row, {"name": job.name, **values})
    row.save()
    return row


@transaction.atomic
def edit(user: User, schedule: Schedule, values: Mapping[str, Any], job: Job | None = None) -> Schedule:
    """Change when a schedule runs, and with a ``job`` also what it submits: the fields of that job."""
    row = _locked(schedule)
    _require(may_edit(user, row), "Only the owner of a schedule may change it.")
    if job is not None:
        if job.project_id != row.project_id:
            raise Refused("This job belongs to another project. Choose one of this project.", field="job")
        _take_fields(row, job, newest_code=row.code_id is None)
    if "newest_code" in values:
        source = row.copied_from
        if not values["newest_code"] and row.code_id is None:
            row.code = source.code if source else row.project.code_versions.first()
            if row.code is not None:
                lock_code(row.code)
        elif values["newest_code"]:
            row.code = None
    _take_times(row, values)
    row.save()
    return row


@transaction.atomic
def pause(user: User, schedule: Schedule) -> Schedule:
    row = _locked(schedule)
    _require(may_stop(user, row), "Only the owner of a schedule, owners of its project and admins may pause it.")
    if row.paused_at is None:
        row.paused_at, row.pause_reason, row.next_run_at = timezone.now(), "", None
        row.save(update_fields=["paused_at", "pause_reason", "next_run_at"])
    return row


@transaction.atomic
def resume(user: User, schedule: Schedule) -> Schedule:
    """Let a schedule run again, from its next moment on."""
    row = _locked(schedule)
    _require(may_edit(user, row), "Only the owner of a schedule may resume it.")
    if row.paused_at is not None:
        if not row.has_known_zone:
            raise _unknown_zone(row.zone)
        row.paused_at, row.pause_reason, row.failures = None, "", 0
        _start_from_now(row)
        row.save()
    return row


@transaction.atomic
def submit_now(user: User, schedule: Schedule) -> Job:
    """Submit the job of a schedule, also of one that is paused; it does not count as the run of a day."""
    row = _locked(schedule)
    _require(may_edit(user, row), "Only the owner of a schedule may submit its job.")
    return submit(row)


@transaction.atomic
def delete(user: User, schedule: Schedule) -> None:
    """Delete a schedule. Its jobs stay."""
    row = _locked(schedule)
    _require(may_stop(user, row), "Only the owner of a schedule, owners of its project and admins may delete it.")
    row.delete()


def _locked(schedule: Schedule) -> Schedule:
    rows = Schedule.objects.select_for_update(of=("self",)).select_related("owner", "project", "environment", "code")
    row = rows.filter(pk=schedule.pk).first()
    if row is None:
        raise Refused("This schedule has been deleted.", "conflict")
    return row


def _require(allowed: bool, sentence: str) -> None:
    if not allowed:
        raise Refused(sentence, "forbidden")


def _take_fields(row: Schedule, job: Job, *, newest_code: bool) -> None:
    """Let the schedule submit what a job was. Raises Refused for one that could not be submitted now."""
    asked = submission_of(job)
    columns = as_columns(asked) | {name: list(getattr(asked, name)) for name in ROWS}
    values = {name: columns[name] for name in FIELDS if name not in NOT_SCHEDULED}
    row.launcher, row.entry, row.values = job.launcher, job.entry, values
    row.environment, row.copied_from = job.environment, job
    row.code = None if newest_code else job.code
    if row.code is not None:
        lock_code(row.code)
    jobs.check(job.project, submission_for(row))


def _take_times(row: Schedule, values: Mapping[str, Any]) -> None:
    before = row.at, row.weekdays, row.zone
    row.name = str(values.get("name", row.name)).strip()
    if not row.name or len(row.name) > 80:
        raise Refused("Enter a name of at most 80 characters.", field="name")
    if problem := name_problem(row.name):
        raise Refused(problem, field="name")
    row.at = _checked_time(values.get("at", row.at))
    row.weekdays = _checked_weekdays(values.get("weekdays", list(map(int, row.weekdays))))
    row.zone = str(values.get("zone", row.zone))
    if not row.has_known_zone:
        raise _unknown_zone(row.zone)
    row.max_late_hours = int(values.get("max_late_hours", row.max_late_hours))
    if not 0 <= row.max_late_hours <= MAX_LATE_HOURS:
        raise Refused(f"Choose from 0 to {MAX_LATE_HOURS} hours.", field="max_late_hours")
    row.overlap = str(values.get("overlap", row.overlap))
    if row.overlap not in Schedule.Overlap.values:
        raise Refused(f"Choose one of: {', '.join(Schedule.Overlap.values)}.", field="overlap")
    if before != (row.at, row.weekdays, row.zone) or row.pk is None:
        _start_from_now(row)


def _unknown_zone(name: str) -> Refused:
    return Refused(f"The portal knows no time zone “{name[:64]}”. Choose one such as Europe/Berlin.", field="zone")


def _checked_time(at: Any) -> time:
    if not isinstance(at, time):
        raise Refused("Enter a time of day, such as 02:00.", field="at")
    return at.replace(second=0, microsecond=0, tzinfo=None)


def _checked_weekdays(days: Collection[int]) -> str:
    if not days or any(day not in range(7) for day in days):
        raise Refused("Choose at least one day of the week.", field="weekdays")
    return "".join(map(str, sorted(set(days))))


def _start_from_now(row: Schedule) -> None:
    row.since = timezone.now()
    done = set(row.runs.order_by("-date").values_list("date", flat=True)[:DAYS_SEARCHED]) if row.pk else set()
    following = row.timetable.following(row.since, done)
    row.next_run_at = following[1] if following and row.paused_at is None else None
