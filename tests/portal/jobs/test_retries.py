"""Retries wait, longer each time, and end early when attempts fail in the same way within seconds."""

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.cluster.models import Gpu
from portal.jobs import lifecycle, logs, retries
from portal.jobs.models import Attempt, Job, JobEvent, JobState
from tests.portal.control_world import queue, ready_node, turn
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (10, 600), (1000, 600)]
)
def test_the_pause_doubles_up_to_ten_minutes(failures: int, seconds: int) -> None:
    assert retries.pause_seconds(failures) == seconds


@pytest.fixture
def job() -> Job:
    make_node(gpus=1)
    return make_job(make_project(make_user("alice")), launcher="command", retries=5)


def fail(job: Job, line: str = "", code: int = 1, seconds: float = 1.0, complete: bool = True) -> Attempt:
    """An attempt that fails after so many seconds, with this last line."""
    attempt = place(job, list(Gpu.objects.all()))
    part = attempt.containers.get()
    run(part)
    began = timezone.now() - timedelta(seconds=seconds)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=began, created_at=began)
    if line:
        logs.append(logs.open_stream(part, "0"), 0, f"{line}\n".encode())
    exit(part, code)
    if complete:
        lifecycle.record_collected(part)
    job.refresh_from_db()
    return Attempt.objects.get(pk=attempt.pk)


def test_the_same_failure_twice_within_seconds_is_the_last(job: Job) -> None:
    fail(job, "ValueError: bad row 17")
    assert job.state == JobState.QUEUED
    fail(job, "ValueError: bad row 9041")
    assert (job.state, job.attempts.count()) == (JobState.FAILED, 2)
    sentences = [event.sentence for event in JobEvent.objects.filter(job=job)]
    assert "Attempts 1 and 2 failed in the same way within seconds, so it is not tried again." in sentences


def test_it_is_seen_when_the_log_has_arrived(job: Job) -> None:
    """At its end an attempt has only its exit code, which the one before had as well, with a cause from its log."""
    fail(job, "ValueError: bad row")
    second = fail(job, complete=False)
    assert job.state == JobState.QUEUED
    part = second.containers.get()
    logs.append(logs.open_stream(part, "0"), 0, b"ValueError: bad row\n")
    lifecycle.record_collected(part)
    job.refresh_from_db()
    assert job.state == JobState.FAILED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"line": "ValueError: bad row"}, {"line": "KeyError: 'x'"}),
        ({"line": "ValueError: bad row"}, {"line": "ValueError: bad column"}),
        ({"code": 3}, {"code": 4}),
        ({"line": "ValueError: bad row", "seconds": 3600}, {"line": "ValueError: bad row"}),
        ({"line": "ValueError: bad row"}, {"line": "ValueError: bad row", "seconds": 90}),
    ],
)
def test_anything_else_is_tried_again(job: Job, first: dict[str, object], second: dict[str, object]) -> None:
    fail(job, **first)  # type: ignore[arg-type]
    fail(job, **second)  # type: ignore[arg-type]
    assert job.state == JobState.QUEUED


def test_a_pause_is_the_reason_to_wait_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a")
    job = queue(launcher="command", retries=2)
    turn()
    part = Attempt.objects.get().containers.get()
    run(part)
    exit(part, 1)
    turn()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    assert job.why_waiting == "Its code has failed: the next attempt may start 10 seconds after the last one ended."
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0)
    turn()
    assert job.attempts.count() == 2
