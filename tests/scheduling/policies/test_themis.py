"""Themis: the next GPU goes to whoever ends latest compared with a share of the cluster for itself."""

import pytest
from hypothesis import given, settings

from scheduling.check import violations
from scheduling.policies.themis import Themis
from scheduling.toolkit.fairness import Shares, rho
from scheduling.types import Curve, Estimate, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

LINEAR = Curve(tuple(float(n) for n in range(1, 9)))
HOUR = Estimate(3600.0, "history", 0.5)


def decide(snapshot: Snapshot, policy: Themis | None = None) -> Plan:
    plan = (policy or Themis()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def test_rho_is_the_time_it_takes_over_the_time_alone_on_its_share() -> None:
    """Two jobs on four GPUs: alone on two it would take 30 minutes; on one, started at once, it takes 60."""
    x = running("x", {"a": 1}, 1, 4, work=HOUR, speed=LINEAR, submitted_at=1000.0)
    y = running("y", {"a": 3}, 1, 4, work=HOUR, speed=LINEAR, submitted_at=1000.0)
    lab = draw({"a": 4}, x, y, now=1000.0)
    assert rho(x, lab).value == pytest.approx(2.0)
    assert rho(y, lab).value == pytest.approx(2 / 3)
    assert (rho(x, lab).source, rho(x, lab).error) == ("history", 0.5)


def test_rho_of_a_waiting_job_supposes_its_share_from_now_on() -> None:
    """It has waited the 30 minutes in which it could have been done."""
    x = waiting("x", 1, 4, work=HOUR, speed=LINEAR, submitted_at=1000.0)
    y = running("y", {"a": 4}, work=HOUR, submitted_at=1000.0)
    assert rho(x, draw({"a": 4}, x, y, now=2800.0)).value == pytest.approx(2.0)


def test_work_done_counts_for_the_time_alone() -> None:
    x = running("x", {"a": 1}, work=HOUR, speed=LINEAR, submitted_at=1000.0, progress=0.5)
    assert rho(x, draw({"a": 1}, x, now=4600.0)).value == pytest.approx(1.0)
    unreported = running(
        "x", {"a": 1}, work=HOUR, speed=LINEAR, submitted_at=1000.0, run_seconds=3600.0, served_gpu_seconds=3600.0
    )
    assert rho(unreported, draw({"a": 1}, unreported, now=4600.0)).value == pytest.approx(1.0)


def test_a_share_below_its_minimum_is_a_fraction_of_the_time() -> None:
    jobs = [waiting(str(number), 4, work=HOUR, speed=LINEAR, submitted_at=1000.0) for number in range(2)]
    assert Shares(draw({"a": 4}, *jobs)).speed(jobs[0]) == pytest.approx(2.0)


def test_rho_is_infinite_where_no_node_is_open() -> None:
    x = waiting("x")
    assert rho(x, draw({"a": 1}, x, closed=("a",))).value == float("inf")


def test_the_job_that_waited_longest_for_its_length_starts_first() -> None:
    """Both came at the same time, but waiting delays the short one by a larger part."""
    long = waiting("long", work=Estimate(36_000.0), submitted_at=1000.0)
    short = waiting("short", work=Estimate(600.0), submitted_at=1000.0)
    plan = decide(draw({"a": 1}, long, short, now=2000.0))
    assert sizes(plan) == {"short": 1}
    assert reasons_of(plan)["long"] == (
        "The only GPU is in use; even with its share of 0.5 GPUs from now on it takes 1.0 times as long as if it had "
        "had that from the start, and who is worse off goes first."
    )


def test_the_next_gpu_goes_to_the_largest_rho() -> None:
    late = running("late", {"a": 1}, 1, 8, work=HOUR, speed=LINEAR, submitted_at=1.0)
    fresh = running("fresh", {"a": 1}, 1, 8, work=HOUR, speed=LINEAR, submitted_at=7200.0)
    assert sizes(decide(draw({"a": 3}, late, fresh, now=7200.0))) == {"late": 2, "fresh": 1}


def test_a_job_whose_rho_does_not_fall_leaves_the_gpu_to_others() -> None:
    late = running("late", {"a": 1}, 1, 8, work=HOUR, speed=Curve((1.0, 1.0)), submitted_at=1.0)
    fresh = running("fresh", {"a": 1}, 1, 8, work=HOUR, speed=LINEAR, submitted_at=7200.0)
    assert sizes(decide(draw({"a": 3}, late, fresh, now=7200.0))) == {"late": 1, "fresh": 2}


def test_what_is_left_when_the_worst_are_well_off_goes_to_all() -> None:
    jobs = [running(str(n), {"a": 1}, 1, 8, work=HOUR, speed=LINEAR, submitted_at=1000.0) for n in range(4)]
    assert sizes(decide(draw({"a": 8}, *jobs, now=1000.0))) == {"0": 2, "1": 2, "2": 2, "3": 2}


def test_a_lease_keeps_a_job_from_being_stopped_until_it_ends() -> None:
    holder = running("holder", {"a": 1}, work=Estimate(360_000.0), preemptible=True, since=1000.0, submitted_at=1000.0)
    lab = draw({"a": 1}, holder, waiting("short", work=Estimate(600.0), submitted_at=1000.0), now=2000.0)
    plan = decide(lab)
    assert sizes(plan) == {"holder": 1}
    assert plan.again_at == 1000.0 + 20 * 60
    assert sizes(decide(lab, Themis(lease_minutes=10.0))) == {}
    assert sizes(decide(lab, Themis(lease_minutes=10.0, tolerance=5.0))) == {"holder": 1}


def test_in_its_lease_a_job_gives_what_is_beyond_its_share_to_a_newcomer() -> None:
    holder = running("holder", {"a": 4}, 1, 8, work=HOUR, speed=LINEAR, since=1000.0, submitted_at=1000.0)
    world = World.of(draw({"a": 4}, holder, waiting("new", 1, 8, work=HOUR, elastic=True, speed=LINEAR), now=1010.0))
    for _ in range(5):
        world.run_cycle(Themis(), seconds=0)
        world.release()
    assert {id: job.gpus for id, job in world.jobs.items()} == {"holder": 2, "new": 2}


OPTIONS = [
    Themis(lease_minutes=0.0),
    Themis(lease_minutes=0.0, tolerance=0.0),
    Themis(fairness=0.0),
    Themis(fairness=1.0),
]


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(), calm=snapshots(calm=True))
def test_the_laws_hold_for_each_option(policy: Themis, snapshot: Snapshot, calm: Snapshot) -> None:
    assert violations(snapshot, policy.plan(snapshot)) == []
    world = World.of(calm)
    assert reaches_stable_plan(world, DecidedPolicy(policy))


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots())
def test_rho_is_a_positive_number_for_every_job(snapshot: Snapshot) -> None:
    assert all(rho(job, snapshot).value >= 0 for job in snapshot.jobs)
