"""GPUs that are held but idle: when that counts, who is warned, and what the rule of the lab does."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.jobs.models import Allocation, Job, JobEvent, JobState
from portal.monitoring import idle, idle_check, sampling
from portal.monitoring.idle import IdleRule
from portal.monitoring.models import Sample
from portal.monitoring.sampling import SLOT, Reading
from portal.scheduler.tasks import idle_gpus
from tests.portal import jobs_world as world

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULE = IdleRule(percent=5, after=timedelta(minutes=30), stops=True)


def readings(*percents: int | None, until: datetime = NOON) -> list[tuple[datetime, Reading]]:
    """Return a reading in each slot, the last at ``until``."""
    start = until - SLOT * (len(percents) - 1)
    return [(start + SLOT * place, Reading(1, percent, 0, 0)) for place, percent in enumerate(percents)]


@pytest.mark.parametrize(
    ("percents", "quiet_slots"),
    [
        ((0, 1, 4, 2), 3),
        ((0, 5, 0, 0), 1),  # five is not under five
        ((0, 0, 0, 90), None),
        ((0, None, 0, 0), 1),  # unknown
        ((0, 0, 0, None), None),
        ((), None),
    ],
)
def test_quiet_is_judged_from_the_newest_reading_back(
    percents: tuple[int | None, ...], quiet_slots: int | None
) -> None:
    since = idle.gpu_idle_since(readings(*percents), 5, NOON)
    assert since == (None if quiet_slots is None else NOON - SLOT * quiet_slots)


def test_a_silence_breaks_it() -> None:
    early, late = readings(0, 0, until=NOON - timedelta(minutes=5)), readings(0, 0)
    assert idle.gpu_idle_since([*early, *late], 5, NOON) == NOON - SLOT
    assert idle.gpu_idle_since(early, 5, NOON) is None  # what it does now is not known


def test_an_attempt_is_idle_when_all_its_gpus_are() -> None:
    long, short, works = readings(0, 0, 0, 0), readings(9, 9, 0, 0), readings(0, 0, 0, 9)
    assert idle.idle_since({1: long, 2: short}, NOON - SLOT * 9, 5, NOON) == NOON - SLOT
    assert idle.idle_since({1: long, 2: works}, NOON - SLOT * 9, 5, NOON) is None
    assert idle.idle_since({1: long, 2: []}, NOON - SLOT * 9, 5, NOON) is None
    assert idle.idle_since({1: long}, NOON - SLOT, 5, NOON) == NOON - SLOT  # before that, another attempt had it


@pytest.mark.parametrize(
    ("idle_minutes", "warned_minutes", "stops", "verdict"),
    [
        (29, None, True, ""),
        (30, None, True, "warn"),
        (45, 15, True, ""),
        (60, 30, True, "stop"),
        (60, 30, False, ""),
        (60, None, True, "warn"),  # no job is stopped without a warning
    ],
)
def test_first_a_warning_then_the_rule(
    idle_minutes: int, warned_minutes: int | None, stops: bool, verdict: str
) -> None:
    warned = None if warned_minutes is None else timedelta(minutes=warned_minutes)
    assert idle.judge(timedelta(minutes=idle_minutes), warned, IdleRule(5, timedelta(minutes=30), stops)) == verdict


@pytest.fixture
def job(db: None, settings: Any) -> Job:
    """A job that has held two GPUs for hours."""
    settings.IDLE_GPU_MINUTES, settings.IDLE_GPU_RULE = 10, "nothing"
    node = world.make_node(gpus=2)
    row = world.make_job(world.make_project(world.make_user("alice")))
    attempt = world.place(row, list(node.gpus.all()))
    world.run(attempt.containers.get())
    long_ago = timezone.now() - timedelta(hours=3)
    Allocation.objects.update(allocated_at=long_ago)
    row.attempts.update(created_at=long_ago)
    return row


def sampled(job: Job, minutes: float, percent: int = 0, until: datetime | None = None) -> None:
    node = job.attempts.get().containers.get().node
    gpus = list(node.gpus.all())
    until = until or timezone.now()
    for number in range(int(minutes * 4)):
        sampling.store_sample(node, until - number * SLOT, [Reading(gpu.pk, percent, 100, 40) for gpu in gpus])


def events(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job, kind__in=("idle", "held")).values_list("kind", flat=True))


def warned(job: Job, minutes_ago: int) -> None:
    seq = job.events.count() + 1
    at = timezone.now() - timedelta(minutes=minutes_ago)
    JobEvent.objects.create(job=job, seq=seq, kind="idle", at=at, text="Its GPUs have done nothing.")


def test_an_idle_time_is_reported_once(job: Job) -> None:
    sampled(job, 14.5)
    assert idle_check.sweep() == 1
    assert idle_check.sweep() == 0
    assert "less than 5 % for 14 min" in JobEvent.objects.get(job=job, kind="idle").sentence
    assert job.state == JobState.RUNNING


def test_work_and_short_rests_are_nobodys_business(job: Job) -> None:
    sampled(job, 8)
    sampled(job, 15, percent=80, until=timezone.now() - timedelta(minutes=8))
    assert idle_check.sweep() == 0


def test_a_new_idle_time_is_reported_again(job: Job) -> None:
    sampled(job, 12)
    warned(job, 90)
    assert idle_check.sweep() == 1
    assert events(job) == ["idle", "idle"]


def test_a_long_one_is_not_reported_twice(job: Job) -> None:
    sampled(job, 25)
    warned(job, 100)
    assert idle_check.sweep() == 0


def test_the_rule_puts_it_on_hold_after_as_long_again(job: Job, settings: Any) -> None:
    settings.IDLE_GPU_RULE = "stop"
    sampled(job, 25)
    warned(job, 11)
    assert idle_check.sweep() == 1
    job.refresh_from_db()
    assert job.intent == Job.Intent.HOLD and events(job) == ["idle", "held"]
    assert job.attempts.get().stop_reason == "held"


def test_the_rule_waits_as_long_again(job: Job, settings: Any) -> None:
    settings.IDLE_GPU_RULE = "stop"
    sampled(job, 25)
    warned(job, 8)
    assert idle_check.sweep() == 0


def test_a_job_that_its_owner_cancels_is_let_be(job: Job, settings: Any) -> None:
    settings.IDLE_GPU_RULE = "stop"
    sampled(job, 25)
    warned(job, 11)
    Job.objects.update(intent="cancel")
    idle_check.sweep()
    job.refresh_from_db()
    assert job.intent == Job.Intent.CANCEL


def test_without_readings_no_job_is_idle(job: Job) -> None:
    assert idle_check.sweep() == 0


def test_a_lab_may_look_for_nothing(job: Job, settings: Any) -> None:
    settings.IDLE_GPU_MINUTES = 0
    sampled(job, 40)
    assert idle_check.sweep() == 0


def test_the_jobs_page_warns(job: Job) -> None:
    client = Client()
    client.force_login(job.submitted_by)
    sampled(job, 15)
    assert "Its GPUs are idle." in client.get(f"/jobs/{job.pk}/gpus").content.decode()
    Sample.objects.all().delete()
    sampled(job, 15, percent=50)
    assert "Its GPUs are idle." not in client.get(f"/jobs/{job.pk}/gpus").content.decode()


def test_the_task_sweeps(job: Job) -> None:
    sampled(job, 15)
    idle_gpus()
    assert events(job) == ["idle"]
