"""The memory that attempts used at most is measured after their end, from samples and from hours."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.cluster.models import Gpu
from portal.jobs.models import Allocation, Attempt
from portal.monitoring import peaks
from portal.monitoring.models import Hour, Sample
from portal.monitoring.tasks import measure_peaks
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def gpus() -> list[Gpu]:
    node = world.make_node("alpha", 2)
    Gpu.objects.update(kind="cuda", model="A100")
    return list(node.gpus.order_by("index"))


def ended(gpus: list[Gpu], since: datetime, until: datetime) -> Attempt:
    job = world.make_job(world.make_project(world.make_user(f"user{Attempt.objects.count()}")))
    attempt = world.place(job, gpus)
    Allocation.objects.filter(attempt=attempt).update(allocated_at=since, released_at=until)
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=until, outcome="succeeded", created_at=since)
    return attempt


def sample(gpus: list[Gpu], at: datetime, *memory: int | None) -> None:
    readings = [[gpu.pk, 50, used, 60] for gpu, used in zip(gpus, memory, strict=True)]
    Sample.objects.create(node=gpus[0].node, at=at, readings=readings)


def peak_of(attempt: Attempt) -> int | None:
    attempt.refresh_from_db()
    return attempt.peak_gpu_memory_mib


def test_it_is_that_of_its_own_gpus_while_it_held_them(gpus: list[Gpu]) -> None:
    attempt = ended(gpus[:1], NOON, NOON + 5 * MINUTE)
    sample(gpus, NOON - MINUTE, 9_000, 0)
    sample(gpus, NOON + MINUTE, 3_000, 8_000)
    sample(gpus, NOON + 2 * MINUTE, 2_000, 8_000)
    sample(gpus, NOON + 6 * MINUTE, 9_500, 0)
    assert peaks.measure(NOON + 10 * MINUTE) == 1 and peak_of(attempt) == 3_000


def test_of_hours_without_samples_it_is_the_maximum_and_of_their_parts_that_of_minutes(gpus: list[Gpu]) -> None:
    attempt = ended(gpus[:1], NOON - 150 * MINUTE, NOON)
    minutes = {"memory": [20_000] * 20 + [4_000] * 40}
    Hour.objects.create(gpu=gpus[0], at=NOON - 3 * HOUR, memory_max_mib=21_000, minutes=minutes)
    Hour.objects.create(gpu=gpus[0], at=NOON - 2 * HOUR, memory_max_mib=6_000, minutes={"memory": [5_000] * 60})
    peaks.measure(NOON + MINUTE)
    assert peak_of(attempt) == 6_000


def test_what_reported_nothing_is_measured_once(gpus: list[Gpu]) -> None:
    attempt = ended(gpus, NOON, NOON + MINUTE)
    sample(gpus, NOON, None, None)
    assert peaks.measure(NOON + 2 * MINUTE) == 1 and peak_of(attempt) == 0
    assert peaks.measure(NOON + 2 * MINUTE) == 0


def test_attempts_that_run_or_have_only_just_ended_or_long_ago_are_left_alone(gpus: list[Gpu]) -> None:
    attempt = ended(gpus, NOON, NOON + MINUTE)
    assert peaks.measure(NOON + MINUTE + timedelta(seconds=5)) == 0
    assert peaks.measure(NOON + 5 * HOUR) == 0 and peak_of(attempt) is None
    running = world.place(world.make_job(world.make_project(world.make_user("zoe"))), gpus[:1])
    assert peaks.measure(NOON + 2 * MINUTE) == 1 and peak_of(running) is None


def test_the_task_asks_once_where_nothing_has_ended() -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        measure_peaks()
    assert len(queries) == 1
