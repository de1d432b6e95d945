"""A clock that jumps, or a machine that slept, is no reason to declare nodes lost."""

import pytest

from portal.cluster.models import Gpu
from portal.jobs import lifecycle
from portal.jobs.clock import STARTUP_DOUBT_SECONDS, WallClock
from portal.jobs.models import Allocation, Container
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place


class Times:
    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.steady = 50.0

    def pass_by(self, seconds: float, jump: float = 0.0) -> None:
        self.steady += seconds
        self.wall += seconds + jump


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 86_400.0])
def test_it_doubts_for_a_while_after_a_jump(jump: float) -> None:
    times = Times()
    clock = WallClock(lambda: times.wall, lambda: times.steady)
    times.pass_by(100)
    assert not clock.is_in_doubt(45)
    times.pass_by(3, jump)
    assert clock.is_in_doubt(45)
    times.pass_by(44)
    assert clock.is_in_doubt(45)
    times.pass_by(2)
    assert not clock.is_in_doubt(45)


def test_small_corrections_are_no_jump() -> None:
    times = Times()
    clock = WallClock(lambda: times.wall, lambda: times.steady)
    times.pass_by(STARTUP_DOUBT_SECONDS)
    for _ in range(10):
        times.pass_by(3, 1)
        assert not clock.is_in_doubt(45)


def test_it_doubts_for_a_moment_after_the_start() -> None:
    times = Times()
    clock = WallClock(lambda: times.wall, lambda: times.steady)
    times.pass_by(STARTUP_DOUBT_SECONDS - 1)
    assert clock.is_in_doubt(45)
    times.pass_by(2)
    assert not clock.is_in_doubt(45)


@pytest.mark.django_db
@pytest.mark.parametrize("slept", [True, False])
def test_after_a_sleep_nodes_get_the_time_to_be_heard_of(slept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times()
    monkeypatch.setattr(lifecycle, "wall_clock", WallClock(lambda: times.wall, lambda: times.steady))
    node = make_node(gpus=1, last_seen_at="2020-01-01T00:00:00Z")
    place(make_job(make_project(make_user("alice"))), list(Gpu.objects.filter(node=node)))
    times.pass_by(STARTUP_DOUBT_SECONDS + 3, 7200 if slept else 0)
    lifecycle.sweep()
    assert Container.objects.get().state == ("ASSIGNED" if slept else "EXITED")


@pytest.mark.django_db
@pytest.mark.parametrize("slept", [True, False])
def test_after_a_sleep_a_stopping_container_keeps_its_gpus_until_its_lease_has_run_out(
    slept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times()
    monkeypatch.setattr(lifecycle, "wall_clock", WallClock(lambda: times.wall, lambda: times.steady))
    node = make_node(gpus=1)
    attempt = place(make_job(make_project(make_user("alice"))), list(Gpu.objects.filter(node=node)))
    lifecycle.stop_attempt(attempt, "preempted")
    Container.objects.update(stop_requested_at="2020-01-01T00:00:00Z")
    times.pass_by(STARTUP_DOUBT_SECONDS + 3, 7200 if slept else 0)
    lifecycle.sweep()
    assert Container.objects.get().state == ("ASSIGNED" if slept else "EXITED")
    assert Allocation.objects.filter(released_at=None).exists() == slept
