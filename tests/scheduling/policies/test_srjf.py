"""Shortest remaining job first, and elastic: GPUs to whoever comes nearest to its end by them."""

from typing import Any

import pytest
from hypothesis import given, settings

from scheduling.check import violations
from scheduling.policies.srjf import Srjf
from scheduling.types import Curve, Estimate, Job, Plan, Snapshot
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

ELASTIC = Srjf()
RIGID = Srjf(elastic=False)


def decide(snapshot: Snapshot, policy: Srjf | None = None) -> Plan:
    plan = (policy or Srjf()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def left(seconds: float, **facts: Any) -> dict[str, Any]:
    return {"work": Estimate(seconds), **facts}


def test_the_job_that_ends_soonest_starts_first() -> None:
    lab = draw({"a": 2}, waiting("long", 2, **left(900)), waiting("short", 2, **left(600)))
    assert sizes(decide(lab)) == {"short": 2}


def test_it_is_the_time_that_counts_and_not_the_work() -> None:
    lab = draw({"a": 4}, waiting("one", 1, **left(500)), waiting("four", 4, **left(900)))
    assert sizes(decide(lab, RIGID)) == {"four": 4}


def test_a_longer_job_is_stopped_for_a_shorter_one_if_it_can_go_on_later() -> None:
    def lab(**facts: Any) -> Snapshot:
        return draw({"a": 2}, running("long", {"a": 2}, **left(9000, **facts)), waiting("short", 1, **left(60)))

    assert sizes(decide(lab(preemptible=True))) == {}
    assert sizes(decide(lab(preemptible=True), Srjf(preempt=False))) == {"long": 2}
    assert sizes(decide(lab())) == {"long": 2}


@pytest.mark.parametrize("policy", [ELASTIC, RIGID], ids=str)
def test_a_stopped_job_must_win_back_its_restart(policy: Srjf) -> None:
    stopped = waiting("stopped", **left(100, served_gpu_seconds=50.0, preemptible=True))
    runs = running("runs", {"a": 1}, **left(120, preemptible=True))
    assert sizes(decide(draw({"a": 1}, runs, stopped), policy)) == {"runs": 1}
    runs = running("runs", {"a": 1}, **left(140, preemptible=True))
    assert sizes(decide(draw({"a": 1}, runs, stopped), policy)) == {}


@pytest.mark.parametrize("policy", [ELASTIC, RIGID], ids=str)
def test_jobs_of_unknown_length_do_not_take_turns(policy: Srjf) -> None:
    """Each second of service makes a guess longer; it must not cost the job its place at once."""
    one = running("one", {"a": 1}, served_gpu_seconds=4100.0, preemptible=True)
    two = waiting("two", served_gpu_seconds=4000.0, preemptible=True)
    assert sizes(decide(draw({"a": 1}, one, two), policy)) == {"one": 1}


def test_what_does_not_fit_is_passed() -> None:
    lab = draw({"a": 2}, running("r", {"a": 1}), waiting("large", 2, **left(60)), waiting("small", 1, **left(900)))
    assert sizes(decide(lab)) == {"r": 1, "small": 1}


def test_priority_goes_before_length() -> None:
    lab = draw({"a": 1}, waiting("short", **left(60)), waiting("urgent", priority=1, **left(900)))
    assert sizes(decide(lab)) == {"urgent": 1}


def test_elastic_a_job_of_fixed_size_never_exceeds_it() -> None:
    """Voda's elastic form gave (2..2) four GPUs where (1..4) came with it on six."""
    lab = draw({"a": 6}, waiting("x", 2, 2, **left(60)), waiting("y", 1, 4, elastic=True, **left(900)))
    assert sizes(decide(lab, ELASTIC)) == {"x": 2, "y": 4}


def test_elastic_a_gpu_goes_where_its_value_is_highest() -> None:
    """Short jobs first, but not for GPUs of which they make little use."""

    def job(id: str, seconds: float, *speeds: float) -> Job:
        return waiting(id, 1, 4, elastic=True, speed=Curve(speeds), **left(seconds))

    equal = draw({"a": 4}, job("long", 6000, 1.0, 1.8, 2.4, 2.8), job("short", 600, 1.0, 1.8, 2.4, 2.8))
    assert sizes(decide(equal, ELASTIC)) == {"short": 3, "long": 1}
    poor = draw({"a": 4}, job("short", 600, 1.0, 1.05, 1.1, 1.1), job("long", 6000, 1.0, 1.8, 2.4, 2.8))
    assert sizes(decide(poor, ELASTIC)) == {"short": 1, "long": 3}


def test_elastic_a_curve_with_a_dent_is_passed_over_it() -> None:
    """Three GPUs are slower than two, four faster than both."""
    dented = Curve((1.0, 1.9, 1.5, 3.6))
    lab = draw({"a": 4}, running("x", {"a": 1}, 1, 4, speed=dented, **left(600)))
    assert sizes(decide(lab, ELASTIC)) == {"x": 4}
    flat = Curve((1.0, 1.9, 1.5, 1.9))
    assert sizes(decide(draw({"a": 4}, running("x", {"a": 1}, 1, 4, speed=flat, **left(600))), ELASTIC)) == {"x": 2}


def test_elastic_a_running_job_grows_only_if_that_pays() -> None:
    """It stands still for ten seconds: too long for the last twelve of it."""
    curve = Curve((1.0, 1.9))
    nearly = running("nearly", {"a": 1}, 1, 2, speed=curve, **left(12))
    assert sizes(decide(draw({"a": 2}, nearly), ELASTIC)) == {"nearly": 1}
    assert sizes(decide(draw({"a": 2}, running("x", {"a": 1}, 1, 2, speed=curve, **left(900))), ELASTIC)) == {"x": 2}


def test_elastic_priority_goes_before_worth() -> None:
    lab = draw(
        {"a": 2}, waiting("short", 1, 2, elastic=True, **left(60)), waiting("urgent", 1, 2, priority=1, **left(9000))
    )
    assert sizes(decide(lab, ELASTIC)) == {"urgent": 2}


def test_elastic_a_running_job_shrinks_for_a_shorter_one() -> None:
    world = World.of(draw({"a": 4}, running("long", {"a": 4}, 1, 4, **left(9000)), waiting("short", 2, **left(60))))
    world.run_cycle(ELASTIC)
    world.release()
    world.run_cycle(ELASTIC)
    assert {id: job.gpus for id, job in world.jobs.items()} == {"long": 2, "short": 2}


OPTIONS = [ELASTIC, RIGID, Srjf(preempt=False), Srjf(preempt=False, elastic=False)]


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16))
def test_with_any_option_it_keeps_all_rules_and_explains_itself(policy: Srjf, snapshot: Snapshot) -> None:
    plan = decide(snapshot, policy)
    assert {job.id for job in snapshot.jobs if job.waiting and not plan.target.get(job.id)} == set(plan.reasons)


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16, calm=True))
def test_with_any_option_an_unchanged_world_comes_to_rest(policy: Srjf, snapshot: Snapshot) -> None:
    world = World.of(snapshot)
    assert reaches_stable_plan(world, DecidedPolicy(policy))
