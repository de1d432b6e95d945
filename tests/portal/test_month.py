"""The made-up month is a history that could have been, the same each time."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from portal.jobs.models import Allocation, Attempt, Job, JobEvent
from portal.jobs.rules import attempt_outcome, job_state
from tests import month

NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="class")
def made(django_db_setup: None, django_db_blocker: Any) -> Iterator[month.Month]:
    """For the tests that only look at it."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield month.make(NOW)
        transaction.set_rollback(True)


class TestOneMonth:
    def test_a_month_has_everything_that_happens_in_a_lab(self, made: month.Month) -> None:
        assert len(made.jobs) > 1000 and made.running and made.queued
        assert {"SUCCEEDED", "FAILED", "CANCELLED", "RUNNING", "QUEUED"} <= {row.state for row in made.jobs}
        assert {"succeeded", "failed", "preempted", "cancelled", "lost"} <= set(
            Attempt.objects.values_list("outcome", flat=True)
        )
        assert {"resized", "held", "released", "stopping"} <= set(JobEvent.objects.values_list("kind", flat=True))

    def test_no_gpu_is_held_twice_and_nothing_runs_before_it_was_asked_for(self, made: month.Month) -> None:
        last: dict[int, datetime] = {}
        for gpu, since, until in Allocation.objects.order_by("gpu", "allocated_at").values_list(
            "gpu", "allocated_at", "released_at"
        ):
            assert since >= last.get(gpu, since)
            last[gpu] = until or datetime.max.replace(tzinfo=UTC)
        assert not Attempt.objects.filter(created_at__lt=F("job__submitted_at")).exists()
        assert not Allocation.objects.filter(released_at__lt=F("allocated_at")).exists()
        assert not Allocation.objects.filter(released_at=None, attempt__ended_at__isnull=False).exists()

    def test_states_are_what_the_rules_say_of_the_attempts(self, made: month.Month) -> None:
        for job in Job.objects.prefetch_related("attempts__containers"):
            attempts = list(job.attempts.all())
            assert job.state == job_state(job.intent, job.retries, [attempt.outcome for attempt in attempts]), job.pk
            for attempt in attempts:
                parts = list(attempt.containers.all())
                if attempt.ended_at:
                    assert attempt.outcome == attempt_outcome(attempt.stop_reason, job.elastic, parts), attempt.pk


@pytest.mark.thorough
def test_the_same_seed_makes_the_same_month() -> None:
    def shape() -> list[tuple[str, datetime, datetime | None]]:
        with transaction.atomic():
            month.make(NOW, count=200)
            rows = Allocation.objects.order_by("id").values_list("gpu__uuid", "allocated_at", "released_at")
            made = list(rows)
            transaction.set_rollback(True)
        return made

    assert shape() == shape()


@pytest.mark.thorough
def test_without_live_work_nothing_is_left_to_schedule() -> None:
    made = month.make(NOW, live=False)
    assert not made.running and not made.queued
    assert not Allocation.objects.filter(released_at=None).exists()
