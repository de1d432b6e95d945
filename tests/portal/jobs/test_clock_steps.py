"""The wall clock is set while jobs run: limits go on from where they were, and nothing ends before it began."""

import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.jobs import lifecycle
from portal.jobs.clock import MAX_MEASUREMENT_SECONDS, STARTUP_DOUBT_SECONDS, WallClock
from portal.jobs.models import Allocation, Attempt, Container, Job
from portal.jobs.rules import ASSIGNED_SECONDS, STOP_SECONDS
from tests.examples import HUNT
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place

pytestmark = pytest.mark.django_db(transaction=True)

BEGIN = datetime(2040, 1, 1, tzinfo=UTC)
HOUR, DAY = 3600.0, 86_400.0
SEEDS = int(os.environ.get("CLOCK_SEEDS", "12" if HUNT else "4"))
STEPS = (HOUR, -HOUR, DAY, -DAY, 30.0, -30.0)


class Times:
    """The portal's clocks. ``pass_by`` looks as the scheduler does, once in a few seconds, and its nodes report."""

    def __init__(self) -> None:
        self.steady, self.set_by = 0.0, 0.0

    def wall(self) -> float:
        return BEGIN.timestamp() + self.steady + self.set_by

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall(), UTC)

    def pass_by(self, seconds: float, *, reports: bool = True) -> None:
        until = self.steady + seconds
        while self.steady < until:
            self.steady = min(until, self.steady + 5)
            if reports:
                Node.objects.update(last_seen_at=self.now())
            lifecycle.sweep()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(timezone, "now", times.now)
    clock = WallClock(times.wall, lambda: times.steady)
    monkeypatch.setattr(lifecycle, "wall_clock", clock)
    return times


def placed(times: Times, state: str = "RUNNING", **job: Any) -> Attempt:
    node = make_node(gpus=2, last_seen_at=times.now())
    usual = {"launcher": "command", "time_limit_seconds": 600}
    attempt = place(make_job(make_project(make_user("alice")), **{**usual, **job}), list(Gpu.objects.filter(node=node)))
    Attempt.objects.update(created_at=times.now())
    Container.objects.update(assigned_at=times.now(), state_since=times.now())
    Allocation.objects.update(allocated_at=times.now())
    if state != "ASSIGNED":
        lifecycle.advance(attempt.containers.get(), state)
    times.pass_by(STARTUP_DOUBT_SECONDS)
    return attempt


@pytest.mark.parametrize("step", STEPS)
def test_a_job_runs_for_its_time_limit_and_no_longer(step: float, times: Times) -> None:
    attempt = placed(times)
    times.pass_by(300)
    times.set_by += step
    times.pass_by(270)
    assert Attempt.objects.get().wanted == "run"
    times.pass_by(45)
    attempt.refresh_from_db()
    assert attempt.stop_reason == "timed_out"


@pytest.mark.parametrize("step", STEPS)
def test_a_container_has_as_long_to_start_as_ever(step: float, times: Times) -> None:
    placed(times, "ASSIGNED")
    times.pass_by(100)
    times.set_by += step
    times.pass_by(ASSIGNED_SECONDS - 150)
    assert Attempt.objects.get().wanted == "run"
    times.pass_by(60)
    assert Attempt.objects.get().stop_reason == "stuck"


@pytest.mark.parametrize("step", STEPS)
def test_what_does_not_stop_is_given_up_as_soon_as_ever(step: float, times: Times) -> None:
    attempt = placed(times)
    lifecycle.stop_attempt(attempt, "preempted")
    times.pass_by(60)
    times.set_by += step
    times.pass_by(STOP_SECONDS - 65)
    assert Container.objects.get().state == "RUNNING"
    times.pass_by(60)
    assert Container.objects.get().state == "EXITED"
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize("step", STEPS)
def test_what_is_asked_to_stop_right_after_the_step_has_its_whole_time(step: float, times: Times) -> None:
    attempt = placed(times)
    times.set_by += step
    lifecycle.stop_attempt(attempt, "preempted")
    times.pass_by(STOP_SECONDS)
    assert Container.objects.get().state == "RUNNING"
    times.pass_by(60)
    assert Container.objects.get().state == "EXITED"


@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_goes_away_with_the_step_is_lost_within_two_minutes(step: float, times: Times) -> None:
    placed(times)
    times.set_by += step
    times.pass_by(30, reports=False)
    assert Container.objects.get().state == "RUNNING"
    times.pass_by(90, reports=False)
    assert Container.objects.get().exit_reason == "lost"


@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_reports_again_within_half_a_minute_loses_nothing(step: float, times: Times) -> None:
    placed(times)
    times.set_by += step
    times.pass_by(30, reports=False)
    times.pass_by(120)
    assert Container.objects.get().state == "RUNNING"


@pytest.mark.both_databases
@pytest.mark.parametrize("step", STEPS)
def test_what_ends_right_after_the_step_did_not_end_before_it_began(step: float, times: Times) -> None:
    placed(times)
    times.pass_by(30)
    times.set_by += step
    lifecycle.advance(Container.objects.get(), "EXITED", exit_code=0)
    assert Job.objects.get().state == "SUCCEEDED"
    no_negative_durations()


@pytest.mark.parametrize("step", STEPS)
def test_a_restarted_scheduler_lets_no_limit_wait_for_a_time_in_the_future(
    step: float, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler cannot know by how much the clock was set while it was down."""
    placed(times, "ASSIGNED")
    times.set_by += step
    monkeypatch.setattr(lifecycle, "wall_clock", WallClock(times.wall, lambda: times.steady))
    times.pass_by(ASSIGNED_SECONDS + 60)
    assert Attempt.objects.get().stop_reason == "stuck"
    no_negative_durations()


def test_a_scheduler_that_stood_by_does_not_account_for_a_step_again(times: Times) -> None:
    clock = WallClock(times.wall, lambda: times.steady)
    times.steady += 10
    times.set_by += HOUR
    assert clock.step().seconds == pytest.approx(HOUR)
    assert clock.step().seconds == pytest.approx(HOUR)  # what it led to was rolled back
    clock.mark_corrected()
    assert clock.step().seconds == 0
    times.steady += MAX_MEASUREMENT_SECONDS + 1
    times.set_by -= HOUR
    assert clock.step().seconds == 0


def test_small_corrections_never_add_up_to_a_step(times: Times) -> None:
    clock = WallClock(times.wall, lambda: times.steady)
    for _ in range(20):
        times.steady += 3
        times.set_by += 1
        assert clock.step().seconds == 0
        clock.mark_corrected()


def test_a_step_moves_nothing_of_attempts_that_have_ended(times: Times) -> None:
    placed(times)
    lifecycle.advance(Container.objects.get(), "EXITED", exit_code=0)
    Container.objects.update(collected_at=times.now())
    before = list(Attempt.objects.values()) + list(Container.objects.values()) + list(Allocation.objects.values())
    times.set_by += DAY
    times.pass_by(60)
    assert before == list(Attempt.objects.values()) + list(Container.objects.values()) + list(
        Allocation.objects.values()
    )


@pytest.mark.both_databases
def test_a_clock_that_is_set_there_and_back_leaves_all_times_as_they_were(times: Times) -> None:
    attempt = placed(times)
    times.pass_by(100)
    names = ("assigned_at", "state_since", "running_at")
    before = Container.objects.values_list(*names).get()
    for step in (DAY, -DAY, -HOUR, HOUR):
        times.set_by += step
        times.pass_by(10)
    after = Container.objects.values_list(*names).get()
    assert all(abs(now - then) < timedelta(seconds=1) for now, then in zip(after, before, strict=True))
    attempt.refresh_from_db()
    assert (attempt.wanted, attempt.started_at) == ("run", Job.objects.get().started_at)


@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
def test_a_clock_that_is_set_again_and_again_changes_no_time_limit(seed: int, times: Times) -> None:
    chance = random.Random(seed)
    attempt = placed(times)
    ran = STARTUP_DOUBT_SECONDS
    for _ in range(chance.randint(2, 6)):
        rest = chance.uniform(1, 80)
        times.pass_by(rest)
        ran += rest
        times.set_by += chance.choice(STEPS) * chance.uniform(0.5, 1.5)
    times.pass_by(570 - ran)
    assert Attempt.objects.get().wanted == "run"
    times.pass_by(60)
    attempt.refresh_from_db()
    assert attempt.stop_reason == "timed_out"
    lifecycle.advance(Container.objects.get(), "EXITED", exit_reason="stopped", exit_code=143)
    no_negative_durations()


def no_negative_durations() -> None:
    for model, names in (
        (Attempt, ("created_at", "started_at", "ended_at")),
        (Container, ("assigned_at", "running_at", "exited_at")),
        (Allocation, ("allocated_at", "released_at")),
        (Job, ("started_at", "finished_at")),
    ):
        for row in model._default_manager.values_list(*names):
            known = [at for at in row if at is not None]
            assert known == sorted(known), (model.__name__, row)
