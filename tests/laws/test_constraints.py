"""Each illegal write is refused by the database itself, for raw updates without a service. On both databases."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from portal.cluster.models import Gpu
from portal.jobs import lifecycle, services
from portal.jobs.models import (
    Allocation,
    Attempt,
    IdempotencyKey,
    Job,
    JobEvent,
    LogStream,
    Output,
)
from tests.portal.jobs_world import exit, make_job, make_node, make_project, make_user, place, run

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def running() -> Attempt:
    job = make_job(make_project(make_user("alice")), launcher="command")
    attempt = place(job, list(Gpu.objects.filter(node=make_node(gpus=2))))
    run(attempt.containers.get())
    return attempt


@pytest.fixture
def finished(running: Attempt) -> Attempt:
    exit(running.containers.get())
    running.refresh_from_db()
    return running


def refused(write: Callable[[], object]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        write()


def refused_update(row: models.Model, **values: Any) -> None:
    """Check that an update is refused, and that the row is otherwise valid: writing its present values is accepted."""
    rows = type(row)._default_manager.filter(pk=row.pk)
    refused(lambda: rows.update(**values))


NOW = timezone.now()


def test_a_gpu_is_in_one_live_allocation(running: Attempt) -> None:
    held = running.allocations.first()
    assert held is not None
    refused(lambda: Allocation.objects.create(gpu=held.gpu, attempt=running, container=held.container))


def test_a_released_gpu_is_free_for_others_but_not_for_its_old_allocation(finished: Attempt) -> None:
    old = finished.allocations.first()
    assert old is not None
    Allocation.objects.create(gpu=old.gpu, attempt=finished, container=old.container)
    refused_update(old, released_at=None)
    refused_update(old, released_at=NOW + timedelta(days=1))


def test_an_allocation_keeps_its_gpu(running: Attempt) -> None:
    first = running.allocations.first()
    assert first is not None
    refused_update(first, gpu=make_node(gpus=1).gpus.get())


def test_a_job_has_one_live_attempt(running: Attempt) -> None:
    refused(lambda: Attempt.objects.create(job=running.job, number=2, secret="x"))


def test_an_attempt_number_is_given_once(finished: Attempt) -> None:
    refused(lambda: Attempt.objects.create(job=finished.job, number=1, secret="x"))
    refused_update(finished, number=2)


@pytest.mark.parametrize("state", ["ASSIGNED", "PREPARING", "nonsense"])
def test_a_container_does_not_move_backwards(running: Attempt, state: str) -> None:
    refused_update(running.containers.get(), state=state)


@pytest.mark.parametrize("state", ["ASSIGNED", "PREPARING", "RUNNING", "STOPPING"])
def test_an_exited_container_stays_exited(finished: Attempt, state: str) -> None:
    refused_update(finished.containers.get(), state=state, exited_at=None)


def test_how_a_container_exited_does_not_change(finished: Attempt) -> None:
    refused_update(finished.containers.get(), exit_reason="oom")


def test_exited_at_and_exited_go_together(running: Attempt) -> None:
    part = running.containers.get()
    refused_update(part, state="EXITED")
    refused_update(part, exited_at=NOW)


def test_a_container_keeps_its_node(running: Attempt) -> None:
    refused_update(running.containers.get(), node=make_node())


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "HELD", "FAILED", "CANCELLED"])
def test_a_finished_job_keeps_its_state(finished: Attempt, state: str) -> None:
    job = Job.objects.get(pk=finished.job_id)
    assert job.state == "SUCCEEDED"
    refused_update(job, state=state)
    refused_update(job, state=state, finished_at=None)
    refused_update(job, finished_at=NOW + timedelta(days=1))


def test_finished_at_and_a_finished_state_go_together(running: Attempt) -> None:
    refused_update(running.job, finished_at=NOW)
    refused_update(running.job, state="FAILED")


def test_an_ended_attempt_stays_ended(finished: Attempt) -> None:
    refused_update(finished, ended_at=None, outcome="")
    refused_update(finished, outcome="failed")


def test_an_outcome_and_an_end_go_together(running: Attempt) -> None:
    refused_update(running, outcome="failed")
    refused_update(running, ended_at=NOW)


def test_a_stop_has_a_reason(running: Attempt) -> None:
    refused_update(running, wanted="stop")
    refused_update(running, stop_reason="cancelled")


def test_a_job_asks_for_gpus_from_min_to_max(running: Attempt) -> None:
    refused_update(running.job, min_gpus=0)
    refused_update(running.job, min_gpus=3, max_gpus=2)


def test_a_log_never_shrinks(running: Attempt) -> None:
    stream = LogStream.objects.create(container=running.containers.get(), name="0", size=10, marks=2)
    refused_update(stream, size=9)
    refused_update(stream, marks=1)
    LogStream.objects.filter(pk=stream.pk).update(size=11, cut=True)
    refused_update(stream, size=12)


def test_a_stream_is_made_once(running: Attempt) -> None:
    LogStream.objects.create(container=running.containers.get(), name="0")
    refused(lambda: LogStream.objects.create(container=running.containers.get(), name="0"))


def test_an_event_number_is_given_once(running: Attempt) -> None:
    refused(lambda: JobEvent.objects.create(job=running.job, seq=1, kind="x", text="x"))


def test_history_is_append_only(running: Attempt) -> None:
    event = running.job.events.first()
    assert event is not None
    refused_update(event, text="never happened")
    refused(lambda: JobEvent.objects.filter(pk=event.pk).delete())


def test_an_idempotency_key_is_used_once(running: Attempt) -> None:
    user = running.job.submitted_by
    IdempotencyKey.objects.create(user=user, key="k", body_sha256="a" * 64, job=running.job)
    refused(lambda: IdempotencyKey.objects.create(user=user, key="k", body_sha256="b" * 64, job=running.job))


def test_an_output_path_is_kept_once_per_job(running: Attempt) -> None:
    fields: dict[str, Any] = {"job": running.job, "attempt": running, "path": "a", "size": 1, "sha256": "a" * 64}
    Output.objects.create(**fields)
    refused(lambda: Output.objects.create(**fields))


def test_what_is_legal_is_not_refused(running: Attempt) -> None:
    """The guards above bite on illegal writes only: a whole life of a job passes them."""
    services.cancel(running.job.submitted_by, running.job)
    part = running.containers.get()
    lifecycle.advance(part, "STOPPING")
    exit(part, None, "stopped")
    assert Job.objects.get(pk=running.job_id).state == "CANCELLED"
