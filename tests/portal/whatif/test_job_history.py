"""The lab's past in a simulation: the same jobs with the work they had, compared with what really happened."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.limits import set_limit
from portal.accounts.models import User
from portal.cluster.models import Gpu, Node
from portal.jobs.models import Allocation, Attempt, Job, JobEvent
from portal.usage.models import CapacitySpell
from portal.whatif import figures, history
from portal.whatif.history import PastJob, World
from scheduling import registry
from scheduling.simulate import Options, Plain, Result, simulate
from scheduling.toolkit.estimates import DEFAULT_EXPONENT
from tests import month
from tests.portal.control_world import queue, ready_node
from tests.portal.jobs_world import make_environment, place
from tests.portal.past import attempt, ran

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
HOUR = 3600.0


@cache
def now() -> datetime:
    """The same moment for all of a test."""
    return timezone.now().replace(microsecond=0)


@pytest.fixture(autouse=True)
def _another_now() -> None:
    now.cache_clear()


def ago(hours: float) -> datetime:
    return now() - timedelta(hours=hours)


@pytest.fixture
def node() -> Node:
    node = ready_node("alpha", 4)
    offered(node, 400)
    return node


def offered(node: Node, since: float, until: float | None = None) -> None:
    CapacitySpell.objects.bulk_create(
        CapacitySpell(gpu=gpu, since=ago(since), until=None if until is None else ago(until))
        for gpu in Gpu.objects.filter(node=node)
    )


def world(days: int = 7) -> World:
    return history.read(ago(24 * days), ago(0))


def only(found: World) -> PastJob:
    [job] = found.jobs
    return job


def work(job: PastJob) -> float:
    assert isinstance(job.submission.truth, Plain)
    return job.submission.truth.work


def live(found: World, key: str = "fifo", **params: Any) -> Result:
    return simulate(
        registry.build(key, params),
        found.nodes,
        [job.submission for job in found.jobs],
        now=found.start,
        limits=found.limits,
        accounts=found.accounts,
        reservations=found.reservations,
        options=Options(losses=found.losses, until=found.end + 30 * 24 * HOUR),
    )


class TestOneJob:
    def test_its_work_is_the_time_it_trained_read_through_its_speed(self, node: Node) -> None:
        job = ran(node, 2, 2 * HOUR, ago(10), elastic=False, submitted_at=ago(14))
        found = only(world())
        assert work(found) == pytest.approx(2 * HOUR * 2**DEFAULT_EXPONENT)
        assert found.compared and job.finished_at and found.ended == job.finished_at.timestamp()
        assert found.gpu_seconds == 4 * HOUR and found.lost_gpu_seconds == 0
        [row] = live(world()).jobs
        assert row.waiting == 0 and row.turnaround == pytest.approx(2 * HOUR)

    def test_failures_happen_again_and_lost_work_does_not(self, node: Node) -> None:
        job = queue(1, state="FAILED", finished_at=ago(1), submitted_at=ago(20), resumable=False)
        attempt(job, node, 1, ago(19), ago(17), "lost", 1)
        attempt(job, node, 1, ago(16), ago(15), "failed", 1)
        attempt(job, node, 1, ago(4), ago(1), "failed", 1)
        found = only(world())
        assert work(found) == 4 * HOUR
        assert (found.restarts, found.preemptions, found.lost_gpu_seconds) == (2, 0, 2 * HOUR)

    def test_a_stop_is_carried_on_from_only_by_those_that_can(self, node: Node) -> None:
        for resumable, total in ((True, 3 * HOUR), (False, HOUR)):
            job = queue(1, state="SUCCEEDED", finished_at=ago(1), submitted_at=ago(20), resumable=resumable)
            attempt(job, node, 1, ago(19), ago(17), "preempted", 1)
            attempt(job, node, 1, ago(2), ago(1), "succeeded", 1)
            found = world().jobs[-1]
            assert work(found) == total and found.preemptions == 1
            assert found.submission.job.preemptible == resumable
            assert found.lost_gpu_seconds == (0 if resumable else 2 * HOUR)

    def test_a_cancelled_one_is_given_up_when_it_was_and_not_compared(self, node: Node) -> None:
        queue(1, state="CANCELLED", intent="cancel", finished_at=ago(5), submitted_at=ago(20))
        found = only(world())
        assert found.submission.cancelled_at == ago(5).timestamp() and not found.compared
        [row] = live(world()).jobs
        assert row.outcome in ("cancelled", "ended") and row.ended_at and row.ended_at <= ago(5).timestamp()

    def test_one_on_hold_wants_nothing_and_one_released_comes_then(self, node: Node) -> None:
        queue(1, state="HELD", intent="hold", submitted_at=ago(20))
        assert not world().jobs
        job = ran(node, 1, HOUR, ago(2), submitted_at=ago(20))
        JobEvent.objects.create(job=job, seq=90, at=ago(19), kind="held", text="x")
        JobEvent.objects.create(job=job, seq=91, at=ago(8), kind="released", text="x")
        assert only(world()).submission.job.submitted_at == ago(8).timestamp()

    def test_one_that_ran_at_the_start_goes_on_where_it_was(self, node: Node) -> None:
        ran(node, 2, 10 * HOUR, ago(24 * 7 - 4), elastic=False, submitted_at=ago(24 * 7 + 8))
        found = only(world())
        job = found.submission.job
        assert dict(job.now_on) == {str(node.pk): 2} and job.served_gpu_seconds == pytest.approx(12 * HOUR)
        assert found.gpu_seconds == pytest.approx(8 * HOUR)
        [row] = live(world()).jobs
        assert row.ended_at == pytest.approx(found.ended, abs=1)
        assert figures.simulated_outcomes(world(), live(world()))[0].waiting is None

    def test_one_that_runs_still_is_supposed_to_go_on(self, node: Node) -> None:
        job = queue(1, submitted_at=ago(9))
        tried = place(job, list(node.gpus.all()[:1]))
        Attempt.objects.filter(pk=tried.pk).update(created_at=ago(8), started_at=ago(8))
        Allocation.objects.update(allocated_at=ago(8))
        found = only(world())
        assert not found.compared and found.ended is None and work(found) == pytest.approx(1.5 * 8 * HOUR, rel=0.01)

    def test_it_may_run_where_its_environment_is_ready_or_it_ran(self, node: Node) -> None:
        other = ready_node("beta", 4, ("other",))
        offered(other, 400)
        ran(node, 1, HOUR, environment=make_environment("other"), submitted_at=ago(3))
        assert only(world()).submission.job.nodes == {str(node.pk), str(other.pk)}


class TestTheLab:
    def test_nodes_come_and_go_as_they_did(self, node: Node) -> None:
        late, gone = ready_node("beta", 2), ready_node("gamma", 2)
        offered(late, 48)
        offered(gone, 400, 100)
        offered(gone, 90, 24)
        found = world()
        assert [(each.name, each.total) for each in found.nodes] == [("alpha", 4), ("beta", 2), ("gamma", 2)]
        hours = [
            (
                each.node,
                round((each.at - found.start) / HOUR),
                each.back_at and round((each.back_at - found.start) / HOUR),
            )
            for each in found.losses
        ]
        assert hours == [(str(late.pk), 0, 120), (str(gone.pk), 68, 78), (str(gone.pk), 144, None)]
        assert found.capacity_gpu_seconds / HOUR == pytest.approx(4 * 168 + 2 * 48 + 2 * (68 + 66), abs=0.1)

    def test_limits_are_those_of_now(self, node: Node) -> None:
        job = ran(node, 1, HOUR, submitted_at=ago(3))
        set_limit(job.submitted_by, job.submitted_by, max_gpus=3, max_queued=None)
        [limit] = world().limits
        assert (limit.max_gpus, limit.jobs) == (3, {str(job.pk)})

    def test_reading_takes_a_constant_number_of_queries(self, node: Node) -> None:
        def count() -> int:
            with CaptureQueriesContext(connection) as seen:
                world()
            return len(seen)

        ran(node, 1, HOUR, submitted_at=ago(30))
        one = count()
        for hours in range(8):
            ran(node, 2, HOUR, ago(1 + 2 * hours), submitted_at=ago(30), owner=f"u{hours}")
        assert count() == one < 25


class TestAMonth:
    @pytest.fixture
    def past(self) -> Iterator[World]:
        month.make(NOW, rolled=False)
        yield history.read(NOW - timedelta(days=30), NOW)

    @pytest.mark.thorough
    def test_three_policies_over_a_month(self, past: World) -> None:
        real = figures.summarise(past, figures.actual_outcomes(past))
        found = {
            key: figures.summarise(past, figures.simulated_outcomes(past, live(past, key)))
            for key in ("fifo", "elastic_fifo", "tiresias")
        }
        for figure in (real, *found.values()):
            assert figure["total"]["compared"] == real["total"]["compared"] > 1000 and figure["total"]["unended"] == 0
            assert set(figure["people"]) == set(month.PEOPLE) and set(figure["groups"]) == {
                "vision",
                "speech",
                "theory",
            }
            assert sum(one["compared"] for one in figure["people"].values()) == figure["total"]["compared"]
            assert 0.3 < figure["total"]["utilisation"] < 1
        really = real["total"]["turnaround"]["mean"]
        assert abs(found["fifo"]["total"]["turnaround"]["mean"] / really - 1) < 0.1, (
            "first come, first served, as it was"
        )
        assert found["elastic_fifo"]["total"]["resizes"] > 0 and found["tiresias"]["total"]["preemptions"] > 0
        means = {key: figure["total"]["turnaround"]["mean"] for key, figure in found.items()}
        assert len(set(means.values())) == 3

    def test_what_really_happened_agrees_with_the_rows(self, past: World) -> None:
        ended = Job.objects.filter(state__in=["SUCCEEDED", "FAILED"], finished_at__gt=NOW - timedelta(days=30))
        held = set(JobEvent.objects.filter(kind="held").values_list("job", flat=True))
        expected = {
            str(job.pk): (job.finished_at - job.submitted_at).total_seconds()
            for job in ended
            if job.pk not in held and job.finished_at
        }
        figure = {
            job.submission.job.id: row.turnaround
            for job, row in zip(past.jobs, figures.actual_outcomes(past), strict=True)
            if row.compared and int(job.submission.job.id) not in held
        }
        assert figure == pytest.approx({key: expected[key] for key in figure})
        assert len(figure) > 0.97 * len(expected)
        hours = sum(
            ((until or NOW) - max(since, NOW - timedelta(days=30))).total_seconds() / HOUR
            for since, until in Allocation.objects.values_list("allocated_at", "released_at")
            if until is None or until > NOW - timedelta(days=30)
        )
        assert sum(job.gpu_seconds for job in past.jobs) / HOUR == pytest.approx(hours, rel=0.01)

    def test_the_window_may_begin_in_the_midst_of_work(self) -> None:
        month.make(NOW, rolled=False)
        found = history.read(NOW - timedelta(days=14), NOW)
        assert sum(bool(job.submission.job.now_on) for job in found.jobs) > 3
        figure = figures.summarise(found, figures.simulated_outcomes(found, live(found, strict=False)))
        assert figure["total"]["unended"] == 0 and User.objects.filter(username__in=figure["people"]).count() > 5
