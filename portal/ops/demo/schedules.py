"""A schedule that submits a job every night, with what became of its last nights."""

from datetime import datetime, timedelta

from portal.ops.demo.history import HistoryLine
from portal.ops.demo.rows import MonthRows
from portal.ops.demo.workload import MISSED_NIGHT, NIGHTLY, NIGHTLY_AT, SKIPPED_NIGHT, nights
from portal.schedules import services
from portal.schedules.messages import FromSchedule
from portal.schedules.models import ScheduleRun

ABOUT = {"name": "Nightly evaluation", "at": NIGHTLY_AT, "zone": "UTC", "max_late_hours": 0}
DOWN = timedelta(hours=1, minutes=10)
"""How late the portal came back in the night that was missed."""
ROUND = timedelta(seconds=6)
"""From when a run is due until its job is submitted."""


def write_schedule(written: MonthRows, now: datetime) -> dict[int, list[HistoryLine]]:
    """Make the schedule with its runs; return the lines of its jobs' histories."""
    pairs = zip(written.demo_jobs, written.jobs, strict=True)
    jobs = [(demo.request.submitted, job) for demo, job in pairs if demo.request.pattern is NIGHTLY]
    if not jobs:
        return {}
    _, newest = jobs[-1]
    schedule = services.create(newest.submitted_by, newest, ABOUT)
    due = nights(now)
    left = {job.submitted_at.date(): job for _, job in jobs}
    runs = []
    for number, at in enumerate(due):
        run = ScheduleRun(schedule=schedule, date=at.date(), due_at=at, at=at + ROUND)
        if number == MISSED_NIGHT:
            run.result, run.at = ScheduleRun.Result.MISSED, at + DOWN
        elif number == SKIPPED_NIGHT:
            run.result = ScheduleRun.Result.OVERLAP
        else:
            run.result, run.job = ScheduleRun.Result.SUBMITTED, left[at.date()]
        runs.append(run)
    ScheduleRun.objects.bulk_create(reversed(runs))
    following = schedule.timetable.following(now, {at.date() for at in due})
    schedule.created_at = schedule.since = due[-1] - timedelta(hours=9)
    schedule.next_run_at = following[1] if following else None
    schedule.save(update_fields=["created_at", "since", "next_run_at"])
    return {job.pk: [(at + 0.001, FromSchedule(schedule.pk, schedule.name), False)] for at, job in jobs}
