"""Samples are made from agents' reports, and hours from samples; both are deleted in time."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.agents import sync
from portal.cluster.models import Gpu
from portal.monitoring import rollups, sampling
from portal.monitoring.models import Hour, Sample
from portal.monitoring.sampling import Reading
from portal.monitoring.tasks import roll_up
from tests.portal.agents_world import Agent
from tests.portal.jobs_world import make_node

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    """The clock of the module that stores reports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_is = NOON
        monkeypatch.setattr(sync, "timezone", self)

    def now(self) -> datetime:
        return self.now_is


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def busy(agent: Agent, percent: int | None) -> None:
    for gpu in agent.report["gpus"]:
        gpu.update(utilisation_percent=percent, memory_used_mib=1000, temperature_celsius=60)


def readings_of(gpu: Gpu, values: list[tuple[int, int | None]], at: datetime = NOON) -> None:
    """Make readings from (seconds after ``at``, utilisation)."""
    for seconds, percent in values:
        sampling.store_sample(gpu.node, at + timedelta(seconds=seconds), [Reading(gpu.pk, percent, 1000, 50)])


def test_a_slot_is_sampled_once_however_often_a_node_reports(clock: Clock) -> None:
    agent = Agent()
    for seconds, percent in ((0, 10), (5, 20), (10, 30), (15, 40), (20, 50)):
        clock.now_is = NOON + timedelta(seconds=seconds)
        busy(agent, percent)
        agent.sync()
    gpus = list(Gpu.objects.order_by("pk"))
    assert [(row.at, row.readings) for row in Sample.objects.all()] == [
        (NOON, [[gpu.pk, 10, 1000, 60] for gpu in gpus]),
        (NOON + timedelta(seconds=15), [[gpu.pk, 40, 1000, 60] for gpu in gpus]),
    ]
    assert {gpu.utilisation_percent for gpu in gpus} == {40}  # what pages show is what was sampled last


def test_what_is_not_a_reading_is_written_at_once(clock: Clock) -> None:
    agent = Agent()
    agent.sync()
    clock.now_is += timedelta(seconds=5)
    agent.report["gpus"][0].update(healthy=False, problem="Xid 79", utilisation_percent=7)
    agent.sync()
    one = Gpu.objects.order_by("index")[0]
    assert (one.healthy, one.utilisation_percent) == (False, 7)


def test_between_samples_a_report_writes_nothing_about_gpus(clock: Clock) -> None:
    agent = Agent()
    busy(agent, 40)
    agent.sync()
    assert written(agent, clock, 5, 80) == []
    assert len(written(agent, clock, 10, 80)) == 1  # the next slot


def written(agent: Agent, clock: Clock, seconds: int, percent: int) -> list[str]:
    """Return the statements that change rows of GPUs when an agent reports this, so long after its last report."""
    clock.now_is += timedelta(seconds=seconds)
    busy(agent, percent)
    with CaptureQueriesContext(connection) as queries:
        agent.sync()
    return [each["sql"] for each in queries if re.search('UPDATE "?cluster_gpu', each["sql"])]


def test_slots_without_readings_leave_no_row(clock: Clock) -> None:
    Agent().sync()  # CPU slots
    assert not Sample.objects.exists()


def test_of_two_reports_at_once_one_sample_is_kept() -> None:
    node = make_node(gpus=1)
    gpu = node.gpus.get()
    readings_of(gpu, [(0, 10), (3, 90)])
    assert [row.readings[0][1] for row in Sample.objects.all()] == [10]


def test_an_hour_has_means_peaks_and_minutes() -> None:
    gpu = make_node(gpus=1).gpus.get()
    readings_of(gpu, [(0, 0), (15, 100), (30, 20), (120, None)])
    assert rollups.roll_up(NOON + timedelta(minutes=61)) == 1
    row = Hour.objects.get()
    assert (row.gpu_id, row.at) == (gpu.pk, NOON)
    assert (row.utilisation_mean, row.utilisation_max) == (40, 100)
    assert (row.memory_mean_mib, row.memory_max_mib, row.temperature_max) == (1000, 1000, 50)
    assert row.minutes["utilisation"][:3] == [40, None, None] and len(row.minutes["utilisation"]) == 60
    assert row.minutes["peak"][:2] == [100, None]
    assert row.minutes["memory"][2] == 1000


def test_an_hour_is_made_once_and_only_when_it_is_over() -> None:
    gpu = make_node(gpus=1).gpus.get()
    readings_of(gpu, [(0, 50), (3599, 70)])
    assert rollups.roll_up(NOON + timedelta(minutes=60)) == 0  # its last reports may still be on their way
    assert rollups.roll_up(NOON + timedelta(minutes=61)) == 1
    assert rollups.roll_up(NOON + timedelta(minutes=62)) == 0
    assert Hour.objects.get().utilisation_mean == 60


def test_all_hours_that_were_missed_are_made() -> None:
    gpu = make_node(gpus=1).gpus.get()
    readings_of(gpu, [(0, 50), (3600, 70), (2 * 3600, 90)])
    assert rollups.roll_up(NOON + timedelta(hours=2, minutes=2)) == 2
    assert list(Hour.objects.values_list("utilisation_mean", flat=True)) == [50, 70]


def test_what_is_old_is_forgotten() -> None:
    gpu = make_node(gpus=1).gpus.get()
    now = NOON + timedelta(days=40)
    for age in (timedelta(days=32), timedelta(days=30), timedelta(hours=4), timedelta(minutes=5)):
        readings_of(gpu, [(0, 50)], now - age)
    rollups.roll_up(now)
    assert [now - row.at for row in Sample.objects.all()] == [timedelta(minutes=5)]
    assert {(now - row.at).days for row in Hour.objects.all()} == {30, 0}


def test_a_gpu_that_is_gone_stops_no_roll_up() -> None:
    gpu = make_node(gpus=1).gpus.get()
    sampling.store_sample(gpu.node, NOON, [Reading(gpu.pk, 5, 5, 5), Reading(gpu.pk + 1000, 5, 5, 5)])
    assert rollups.roll_up(NOON + timedelta(hours=2)) == 1


def test_a_large_lab_costs_few_queries() -> None:
    def cost(nodes: int) -> int:
        for _ in range(nodes):
            node = make_node(gpus=4)
            sampling.store_sample(node, NOON, [Reading(gpu.pk, 5, 5, 5) for gpu in node.gpus.all()])
        with CaptureQueriesContext(connection) as queries:
            assert rollups.roll_up(NOON + timedelta(minutes=61)) == nodes * 4
        Sample.objects.all().delete()
        Hour.objects.all().delete()
        return len(queries)

    assert cost(2) == cost(12)


def test_the_task_rolls_up(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(rollups, "roll_up", lambda: called.append(True))
    roll_up()
    assert called
