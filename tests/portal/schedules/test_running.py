"""Schedules submit their jobs: once for each day, never in a burst, with a record of what did not happen, and why."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from portal.accounts.models import User
from portal.forecast import advice
from portal.forecast.changes import ProposedChange
from portal.jobs import services as jobs
from portal.jobs.models import FINISHED_STATES, Job, JobEvent
from portal.notifications.expansion import expand
from portal.notifications.models import Notice
from portal.projects.models import Membership
from portal.refused import Refused
from portal.schedules import running, services
from portal.schedules.models import Schedule, ScheduleRun
from portal.schedules.running import run_due
from portal.sentences.notices import notice_text
from scheduling import types
from scheduling.messages import Text
from tests.portal.jobs_world import make_code, make_job, make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
DAY = timedelta(days=1)
TWO = datetime(2027, 5, 3, 2, 0, tzinfo=UTC)
"""A Monday."""


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def source(alice: User) -> Job:
    job = make_job(make_project(alice), launcher="command", entry="python train.py", env_vars={"SEED": "3"}, tags=["x"])
    Job.objects.filter(pk=job.pk).update(state="SUCCEEDED", finished_at=timezone.now())
    job.refresh_from_db()
    return job


def nightly(job: Job, since: datetime = TWO - DAY / 2, **values: Any) -> Schedule:
    row = services.create(job.submitted_by, job, {"at": time(2), "zone": "UTC", **values})
    Schedule.objects.filter(pk=row.pk).update(since=since)
    row.refresh_from_db()
    return row


def results(row: Schedule) -> list[str]:
    return list(row.runs.order_by("date").values_list("result", flat=True))


def end_all() -> None:
    Job.objects.exclude(state__in=FINISHED_STATES).update(state="SUCCEEDED", finished_at=timezone.now())


def test_it_submits_the_fields_of_the_job_when_its_time_comes(source: Job) -> None:
    row = nightly(source, name="every night")
    assert run_due(TWO - timedelta(seconds=1)).submitted == 0
    assert run_due(TWO).submitted == 1
    assert run_due(TWO + timedelta(seconds=30)).submitted == 0
    run = row.runs.get()
    job = run.job
    assert job and run.date == TWO.date() and run.due_at == TWO
    assert (job.entry, job.env_vars, job.tags, job.submitted_by) == (source.entry, source.env_vars, ("x",), row.owner)
    assert (
        JobEvent.objects.filter(job=job, kind="scheduled").get().sentence == "Submitted by the schedule “every night”."
    )
    row.refresh_from_db()
    assert row.next_run_at == TWO + DAY
    end_all()
    assert run_due(TWO + DAY).submitted == 1


def test_it_takes_the_newest_code_or_stays_with_one_version(source: Job) -> None:
    newest, fixed = nightly(source), nightly(source, newest_code=False)
    later = make_code(source.project, sha256="d" * 64)
    run_due(TWO)
    assert newest.runs.get().job.code == later and fixed.runs.get().job.code == source.code  # type: ignore[union-attr]


def test_chosen_days_only(source: Job) -> None:
    row = nightly(source, weekdays=[2, 4], overlap="queue")
    for number in range(7):
        run_due(TWO + number * DAY)
    assert [run.date.weekday() for run in row.runs.order_by("date")] == [2, 4]


class TestMissedRuns:
    @pytest.mark.parametrize(("hours", "outcome"), [(6, "submitted"), (6.3, "missed")])
    def test_one_is_made_up_for_within_the_limit(self, source: Job, hours: float, outcome: str) -> None:
        row = nightly(source, max_late_hours=6)
        run_due(TWO + timedelta(hours=hours))
        assert results(row) == [outcome]

    def test_several_give_one_job_and_no_burst(self, source: Job) -> None:
        row = nightly(source, overlap="queue")
        for seconds in range(0, 120, 30):
            run_due(TWO + 5 * DAY + timedelta(hours=1, seconds=seconds))
        assert results(row) == ["submitted"] and row.runs.get().date == (TWO + 5 * DAY).date()

    def test_a_round_that_comes_seconds_later_is_on_time(self, source: Job) -> None:
        row = nightly(source, max_late_hours=0)
        run_due(TWO + timedelta(seconds=40))
        end_all()
        run_due(TWO + DAY + timedelta(minutes=16))
        assert results(row) == ["submitted", "missed"]

    def test_what_was_before_it_was_made_or_resumed_was_not_missed(self, source: Job, alice: User) -> None:
        row = nightly(source, since=TWO + timedelta(minutes=1))
        run_due(TWO + timedelta(hours=1))
        assert results(row) == []


class TestOnce:
    def test_the_database_refuses_a_second_run_of_a_day(self, source: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two rounds at once: the second has read before the first wrote."""
        row = nightly(source)
        stale = running._dates_done(TWO)
        run_due(TWO)
        monkeypatch.setattr(running, "_dates_done", lambda now: stale)
        assert run_due(TWO).submitted == 0 and row.runs.count() == 1

    def test_a_portal_that_is_killed_before_the_end_leaves_neither_row_nor_job(
        self, source: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(BaseException):
            pass

        def killed(*args: Any, **kwargs: Any) -> None:
            raise Killed

        row, before = nightly(source), Job.objects.count()
        with monkeypatch.context() as patched:
            patched.setattr(ScheduleRun, "save", killed)
            with pytest.raises(Killed):
                run_due(TWO)
        assert Job.objects.count() == before and not row.runs.exists()
        assert run_due(TWO).submitted == 1

    def test_a_clock_that_is_set_forward_and_back_gives_one_job_a_day(self, source: Job) -> None:
        row = nightly(source, overlap="queue")
        for moment in (TWO, TWO + 3 * DAY, TWO, TWO + DAY, TWO + DAY, TWO + 2 * DAY, TWO + 3 * DAY, TWO + 4 * DAY):
            run_due(moment + timedelta(minutes=1))
        days = [run.date for run in row.runs.order_by("date")]
        assert days == [(TWO + number * DAY).date() for number in range(5)]
        assert results(row) == ["submitted"] * 5
        row.refresh_from_db()
        assert row.next_run_at == TWO + 5 * DAY

    def test_an_unexpected_error_of_one_does_not_keep_back_the_others(
        self, source: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad, good = nightly(source, name="bad"), nightly(source, name="good")
        real = running.submit

        def failing(row: Schedule) -> Job:
            if row.pk == bad.pk:
                raise RuntimeError("a bug")
            return real(row)

        monkeypatch.setattr(running, "submit", failing)
        run_due(TWO)
        assert results(bad) == ["refused"] and results(good) == ["submitted"]
        assert "Ask an admin" in bad.runs.get().why and Notice.objects.filter(kind="schedule").count() == 1

    def test_an_error_of_the_database_is_tried_again(self, source: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        row, real = nightly(source), running.submit

        def failing(row: Schedule) -> Job:
            raise OperationalError("the database is gone")

        monkeypatch.setattr(running, "submit", failing)
        run_due(TWO)
        assert results(row) == []
        monkeypatch.setattr(running, "submit", real)
        run_due(TWO + timedelta(seconds=30))
        assert results(row) == ["submitted"]

    def test_one_that_was_made_while_the_clock_was_ahead_runs_once_it_is_right(self, source: Job) -> None:
        row = nightly(source, since=TWO + 30 * DAY)
        run_due(TWO - timedelta(hours=1))
        run_due(TWO)
        assert results(row) == ["submitted"]

    def test_what_one_round_leaves_the_next_one_does(self, source: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(running, "MAX_RUNS", 2)
        for number in range(3):
            nightly(source, name=f"number {number}")
        assert (run_due(TWO).submitted, run_due(TWO).submitted) == (2, 1)


@pytest.mark.parametrize(("overlap", "outcome"), [("skip", "overlap"), ("queue", "submitted")])
def test_while_the_job_before_has_not_ended(source: Job, overlap: str, outcome: str) -> None:
    row = nightly(source, overlap=overlap)
    run_due(TWO)
    run_due(TWO + DAY)
    assert results(row) == ["submitted", outcome]
    end_all()
    run_due(TWO + 2 * DAY)
    assert results(row)[-1] == "submitted"


class TestRefusals:
    def test_one_is_recorded_notified_and_tried_again_the_next_day(self, source: Job) -> None:
        row = nightly(source)
        source.environment.retired = True
        source.environment.save()
        run_due(TWO)
        run = row.runs.get()
        assert (run.result, run.job) == ("refused", None) and "no longer offered" in run.why
        expand()
        notice = Notice.objects.get(kind="schedule")
        assert notice.user == row.owner and "could not submit its job" in notice_text(notice.content).title
        source.environment.retired = False
        source.environment.save()
        run_due(TWO + DAY)
        row.refresh_from_db()
        assert results(row) == ["refused", "submitted"] and row.failures == 0

    def test_five_in_a_row_pause_it(self, source: Job, alice: User) -> None:
        row = nightly(source)
        source.environment.retired = True
        source.environment.save()
        for number in range(7):
            run_due(TWO + number * DAY)
        row.refresh_from_db()
        assert row.paused_at and "refused 5 times in a row" in row.why_paused and row.next_run_at is None
        assert results(row) == ["refused"] * 5
        titles = [notice_text(notice.content).title for notice in Notice.objects.filter(kind="schedule")]
        assert titles.count(f"The schedule “{row.name}” is paused") == 1
        services.resume(alice, row)
        row.refresh_from_db()
        assert row.paused_at is None and row.failures == 0 and row.next_run_at

    def test_an_owner_who_left_pauses_it_and_admins_hear_of_it(self, source: Job) -> None:
        ada, row = make_user("ada", is_staff=True), nightly(source)
        User.objects.filter(pk=row.owner_id).update(is_active=False)
        run_due(TWO)
        row.refresh_from_db()
        assert "deactivated" in row.why_paused and not row.runs.exists()
        assert [notice.user for notice in Notice.objects.filter(kind="schedule")] == [ada]

    @pytest.mark.parametrize("role", ["viewer", None])
    def test_an_owner_without_access_pauses_it(self, source: Job, role: str | None) -> None:
        row = nightly(source)
        members = Membership.objects.filter(user=row.owner)
        members.update(role=role) if role else members.delete()
        run_due(TWO)
        row.refresh_from_db()
        assert "may no longer submit" in row.why_paused and Notice.objects.get(kind="schedule").user == row.owner

    def test_a_full_limit_is_a_refusal(self, source: Job, settings: Any) -> None:
        settings.MAX_WAITING_JOBS = 0
        row = nightly(source)
        run_due(TWO)
        assert results(row) == ["refused"]


def test_a_zone_that_the_portal_does_not_know_pauses_its_schedule_alone(source: Job, alice: User) -> None:
    lost, well = nightly(source), nightly(source)
    Schedule.objects.filter(pk=lost.pk).update(zone="Mars/Olympus_Mons")
    assert run_due(TWO).submitted == 1 and results(well) == ["submitted"]
    lost.refresh_from_db()
    assert "knows no time zone “Mars/Olympus_Mons”" in lost.why_paused and not lost.runs.exists()
    assert Notice.objects.filter(kind="schedule", user=alice).count() == 1
    with pytest.raises(Refused, match="knows no time zone"):
        services.resume(alice, lost)
    services.edit(alice, lost, {"zone": "Asia/Tokyo"})
    services.resume(alice, lost)
    lost.refresh_from_db()
    assert lost.next_run_at


@pytest.mark.parametrize("zone", ["localtime", "Factory", "../../etc/passwd", "Europe", ""])
def test_a_name_that_is_no_zone_of_all_machines_is_refused(source: Job, zone: str) -> None:
    with pytest.raises(Refused, match="knows no time zone"):
        nightly(source, zone=zone)


def test_the_next_run_is_not_on_a_day_that_has_one(source: Job, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    row = nightly(source)
    run_due(TWO)
    monkeypatch.setattr(timezone, "now", lambda: TWO + timedelta(hours=1))
    row = services.edit(alice, row, {"at": time(4)})
    assert row.next_run_at == TWO + DAY + timedelta(hours=2)
    run_due(TWO + timedelta(hours=1, seconds=30))
    row.refresh_from_db()
    assert row.next_run_at == TWO + DAY + timedelta(hours=2)


def test_a_copy_that_replaces_its_waiting_job_is_the_job_of_that_day(source: Job, alice: User) -> None:
    row = nightly(source)
    run_due(TWO)
    waiting = row.runs.get().job
    assert waiting is not None
    job = types.Job(str(waiting.pk), "alice", 0.0, 1, 1)
    copy = advice._requeue(
        alice, waiting, ProposedChange("shorter", Text(""), {"time_limit_seconds": 60}, job), Text("")
    )
    assert row.runs.get().job == copy
    run_due(TWO + DAY)
    assert results(row) == ["submitted", "overlap"]


def test_a_child_of_another_job_is_scheduled_without_its_parent(source: Job, alice: User) -> None:
    child = make_job(source.project, launcher="command", entry="true", after=source, use_outputs=True)
    row = nightly(child)
    run_due(TWO)
    job = row.runs.get().job
    assert job and job.after is None and not job.use_outputs


def test_a_value_of_another_release_is_left_out(source: Job) -> None:
    row = nightly(source)
    row.values |= {"of_a_later_release": 3}
    row.values.pop("retries")
    row.save()
    run_due(TWO)
    assert results(row) == ["submitted"] and jobs.submission_of(row.runs.get().job).retries == 0  # type: ignore[arg-type]
