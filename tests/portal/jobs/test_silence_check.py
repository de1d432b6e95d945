"""The owner of a silent job gets one notice for each silence, and the job is left alone."""

from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache

from portal.accounts.models import User
from portal.celery import app
from portal.jobs import causes, lifecycle
from portal.jobs import silence_check as look
from portal.jobs.models import Attempt, Job, JobEvent, JobState, Outcome, StopReason
from portal.scheduler.tasks import silent_jobs
from tests.portal.outbox import deliver
from tests.portal.silence_world import Lab

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


@pytest.fixture
def job(lab: Lab) -> Job:
    return lab.job([lab.node()])


def notices(job: Job) -> list[str]:
    return [event.sentence for event in JobEvent.objects.filter(job=job, kind="silent").order_by("seq")]


def test_a_silence_is_reported_once_in_the_history_and_by_mail(lab: Lab, job: Job, settings: Any) -> None:
    settings.SITE_URL = "https://lab.example.org"
    lab.passes(31)
    assert lab.looks() == 1
    for _ in range(5):
        lab.passes(60)
        assert lab.looks() == 0
    assert len(notices(job)) == 1
    assert notices(job)[0].startswith("No output for 32 min") and notices(job)[0].endswith(
        "It is not stopped for this."
    )
    [sent] = mail.outbox
    assert sent.to == ["alice@example.org"]
    assert sent.subject == f"Schedulearn: No output from job {job.pk} “train” for 32 min"
    assert f"https://lab.example.org/jobs/{job.pk}/" in sent.body


def test_the_cause_at_the_time_limit_differs_for_silent_and_busy_jobs(lab: Lab, job: Job) -> None:
    busy = lab.job([lab.node("gpu-2")])
    for _ in range(35):
        lab.passes(1)
        lab.prints(busy)
    lab.looks()
    for each in (job, busy):
        attempt = each.attempts.get()
        attempt.outcome = Outcome.TIMED_OUT
        attempt.cause = causes.explain(each, attempt, list(attempt.containers.all()))
        assert ("may have hung" in attempt.explanation["advice"]) == (each == job)


def test_it_never_stops_a_job(lab: Lab, job: Job) -> None:
    for _ in range(24):
        lab.passes(60)
        lab.looks()
    lifecycle.sweep(lab.now)
    job.refresh_from_db()
    attempt = job.attempts.get()
    # Its time limit of an hour is another matter, and the only one.
    assert attempt.stop_reason in ("", StopReason.TIMED_OUT) and job.intent == Job.Intent.RUN
    assert job.state == JobState.RUNNING


def test_a_later_silence_is_reported_again(lab: Lab, job: Job) -> None:
    lab.passes(31)
    assert lab.looks() == 1
    lab.prints(job)
    assert lab.looks() == 0
    lab.passes(31)
    assert lab.looks() == 1
    assert (len(notices(job)), len(mail.outbox)) == (2, 2)


def test_the_silence_of_a_single_rank_is_reported_once_by_its_name(lab: Lab) -> None:
    job = lab.job([lab.node("gpu-1"), lab.node("gpu-2")])
    for minute in range(0, 180, 5):
        lab.passes(5)
        for host in (0, 1) if minute < 60 else (0,):
            lab.prints(job, host=host)
        look.sweep()
        deliver()
    assert len(notices(job)) == len(mail.outbox) == 1
    assert "rank 1 on gpu-2 has printed nothing for" in notices(job)[0]
    assert mail.outbox[0].subject.startswith(f"Schedulearn: Ranks of job {job.pk} “train” are silent for")
    lab.passes(31)
    assert lab.looks() == 1, "now all are silent"
    assert notices(job)[1].startswith("No output for")


def test_output_that_was_waiting_while_the_portal_was_away_is_waited_for(lab: Lab, job: Job) -> None:
    lab.prints(job)
    lab.passes(120)  # the node is back in contact; its agent has not sent the log yet
    assert look.sweep() == 0
    lab.prints(job)
    lab.passes(1)
    assert look.sweep() == 0
    assert notices(job) == []


def test_looks_that_are_far_apart_are_not_two_in_a_row(lab: Lab, job: Job) -> None:
    lab.passes(31)
    look.sweep()
    cache.clear()  # as time does
    lab.passes(60)
    assert look.sweep() == 0


@pytest.mark.parametrize("fields", [{"email": ""}, {"is_active": False}])
def test_an_owner_who_cannot_get_mail_gets_none(lab: Lab, job: Job, fields: dict[str, Any]) -> None:
    User.objects.update(**fields)
    lab.passes(31)
    assert lab.looks() == 1
    assert len(notices(job)) == 1 and not mail.outbox


def test_a_demo_sends_no_mail(lab: Lab, job: Job, settings: Any) -> None:
    settings.DEMO = True
    lab.passes(31)
    assert lab.looks() == 1
    assert not mail.outbox


def test_a_job_that_is_stopped_between_look_and_report_gets_none(
    lab: Lab, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.passes(31)
    look.sweep()
    lab.passes(1)
    reported = look._last_reported

    def stop(jobs: list[int]) -> Any:
        lifecycle.stop_attempt(Attempt.objects.get(job=job), StopReason.HELD)
        return reported(jobs)

    monkeypatch.setattr(look, "_last_reported", stop)
    assert look.sweep() == 0
    assert notices(job) == [] and not mail.outbox


def test_two_looks_at_once_report_once(lab: Lab, job: Job) -> None:
    lab.passes(31)
    look.sweep()
    seen = dict(look.silence.silences(lab.now))
    assert [look._record(each, lab.now) for each in (*seen.values(), *seen.values())] == [True, False]
    deliver()
    assert len(mail.outbox) == 1


def test_the_queries_are_few_however_many_are_silent(lab: Lab, django_assert_max_num_queries: Any) -> None:
    node = lab.node(gpus=12)
    for _ in range(12):
        lab.job([node])
    lab.passes(31)
    assert lab.looks() == 12
    lab.passes(1)
    with django_assert_max_num_queries(5):
        assert look.sweep() == 0


def test_the_task_looks_each_minute(lab: Lab, job: Job) -> None:
    entry = {"task": "portal.scheduler.tasks.silent_jobs", "schedule": 60.0, "options": {"expires": 50}}
    assert entry in list(app.conf.beat_schedule.values())
    lab.passes(31)
    silent_jobs()
    lab.passes(1)
    silent_jobs()
    assert len(notices(job)) == 1
