"""Tiresias: the job that has had the least goes first, at the size that it asked for or not at all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from scheduling.check import violations
from scheduling.policies.tiresias import COMPACTION_THRESHOLD, Tiresias
from scheduling.types import Curve, Job, Limit, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import NOW, DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

REFERENCE = Tiresias(threshold=57_600, queues=2, knob=0)


def decide(snapshot: Snapshot, policy: Tiresias = REFERENCE) -> Plan:
    plan = policy.plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def served(job: Job, gpu_seconds: float, first: float | None = 10.0, **facts: Any) -> Job:
    return replace(job, served_gpu_seconds=gpu_seconds, first_started_at=first, preemptible=True, **facts)


def test_a_newcomer_goes_before_a_job_that_has_had_much() -> None:
    lab = draw({"a": 4}, served(running("long", {"a": 4}), 60_000.0), waiting("new", 2))
    plan = decide(lab)
    assert sizes(plan) == {}
    assert reasons_of(plan) == {"new": "2 GPUs are being given back by other jobs; then it starts."}


def test_a_newcomer_does_not_stop_a_job_of_its_own_queue() -> None:
    """Inside a queue the first start counts, not the arrival, so that few are stopped."""
    young = served(running("young", {"a": 4}, submitted_at=50.0), 1000.0)
    plan = decide(draw({"a": 4}, young, waiting("new", 2, submitted_at=5.0)))
    assert sizes(plan) == {"young": 4}
    assert reasons_of(plan) == {"new": "All 4 GPUs are in use."}


def test_a_job_gets_all_it_asked_for_or_nothing_and_smaller_ones_pass() -> None:
    lab = draw(
        {"a": 4}, served(running("r", {"a": 2}), 10.0), waiting("large", 4), waiting("range", 1, 4), waiting("x", 2)
    )
    assert sizes(decide(lab)) == {"r": 2, "x": 2}
    modest = replace(lab, jobs=tuple(replace(job, asked_gpus=2 if job.id == "range" else 0) for job in lab.jobs))
    assert sizes(decide(modest)) == {"r": 2, "range": 2}


def test_a_job_without_a_checkpoint_is_never_stopped_and_goes_before_all() -> None:
    rigid = replace(running("rigid", {"a": 3}), served_gpu_seconds=1e6)
    assert sizes(decide(draw({"a": 4}, rigid, waiting("new", 2), waiting("small", 1)))) == {"rigid": 3, "small": 1}


def test_running_jobs_keep_their_places() -> None:
    kept = served(running("kept", {"a": 1, "b": 1}), 10.0)
    plan = decide(draw({"a": 2, "b": 2}, kept, served(running("old", {"a": 1}), 1e5), waiting("new", 2)))
    assert dict(plan.target["kept"]) == {"a": 1, "b": 1}
    assert "old" not in plan.target


def test_as_few_are_stopped_as_it_takes_and_the_last_of_the_order_first() -> None:
    one = served(running("one", {"a": 2}), 60_000.0, first=10.0)
    two = served(running("two", {"a": 2}), 90_000.0, first=20.0)
    assert sizes(decide(draw({"a": 4}, one, two, waiting("new", 1)))) == {"one": 2}


def test_the_reason_of_a_stopped_job_has_what_goes_before_it() -> None:
    plan = decide(draw({"a": 2}, served(running("new", {"a": 2}), 10.0), served(waiting("old", 2), 72_000.0)))
    assert reasons_of(plan) == {
        "old": "All 2 GPUs are in use; it has had 20.0 GPU-hours, and jobs that had fewer go first."
    }


def test_more_queues_have_thresholds_that_grow() -> None:
    policy = Tiresias(threshold=100, queues=3, growth=10, knob=0)
    lab = draw({"a": 1}, served(running("third", {"a": 1}), 1000.0), served(waiting("second"), 999.0, first=50.0))
    assert "third" not in sizes(decide(lab, policy))
    assert sizes(decide(lab, replace(policy, queues=2))) == {"third": 1}


def test_it_asks_for_the_moment_a_job_leaves_its_queue_when_others_wait() -> None:
    young = served(running("young", {"a": 2}), 57_000.0)
    assert decide(draw({"a": 2}, young, waiting("new"))).again_at == NOW + 300
    assert decide(draw({"a": 2}, young)).again_at is None


def test_it_asks_for_the_moment_a_stopped_job_returns_to_the_first_queue() -> None:
    policy = Tiresias(threshold=100, knob=8)
    young = served(running("young", {"a": 1}), 10.0, first=500.0)
    old = served(waiting("old"), 200.0, first=1.0, run_seconds=100.0, since=NOW - 760)
    assert decide(draw({"a": 1}, young, old), policy).again_at == NOW + 40
    assert decide(draw({"a": 1}, young, old), replace(policy, knob=0)).again_at == NOW + 90
    again = replace(old, served_gpu_seconds=350.0, run_seconds=110.0)  # promoted before: what it ran since counts
    state = {"promoted": {"old": [200.0, 100.0]}}
    assert decide(draw({"a": 1}, young, replace(again, since=NOW - 50), state=state), policy).again_at == NOW + 30


def test_it_asks_for_the_moment_a_running_job_comes_to_its_next_gittins_rank() -> None:
    policy = Tiresias(threshold=800, knob=0, rank="gittins")
    lab = draw({"a": 2}, served(running("x", {"a": 2}), 40.0), waiting("new"))
    known = replace(lab, state={"seen": {}, "sizes": [100.0 * number for number in range(1, 30)]})
    assert decide(known, policy).again_at == NOW + 30  # an eighth of 800 is 100, of which 40 are had on two GPUs
    assert decide(lab, policy).again_at == NOW + 380  # too little is known: when it leaves its queue


def test_priority_goes_before_service() -> None:
    urgent = served(waiting("urgent", priority=1), 1e6)
    assert sizes(decide(draw({"a": 1}, waiting("new"), urgent))) == {"urgent": 1}


def test_who_waited_long_enough_returns_to_the_first_queue_and_stays_until_served_again() -> None:
    policy = Tiresias(threshold=100, knob=8)
    old = served(waiting("old"), 200.0, first=1.0, run_seconds=100.0, since=NOW - 800)
    young = served(running("young", {"a": 1}), 50.0, first=500.0)
    plan = decide(draw({"a": 1}, young, old), policy)
    assert sizes(plan) == {}
    assert plan.state == {"promoted": {"old": [200.0, 100.0]}}
    again = served(running("old", {"a": 1}), 250.0, first=1.0, run_seconds=150.0, since=NOW)
    fresh = served(waiting("fresh"), 99.0, first=400.0)
    assert sizes(decide(draw({"a": 1}, again, fresh, state=plan.state), policy)) == {"old": 1}
    spent = replace(again, served_gpu_seconds=300.0)
    assert sizes(decide(draw({"a": 1}, spent, fresh, state=plan.state), policy)) == {}
    assert sizes(decide(draw({"a": 1}, young, replace(old, since=NOW - 799)), policy)) == {"young": 1}
    assert sizes(decide(draw({"a": 1}, young, old), replace(policy, knob=0))) == {"young": 1}


def test_gittins_prefers_who_is_likely_to_end_soon() -> None:
    """Most jobs end before 100 or run to 1,000: one that has had 50 is nearer its end than one that has had 150."""
    policy = Tiresias(threshold=1000, knob=0, rank="gittins")
    state = {"seen": {}, "sizes": [100.0] * 20 + [1000.0] * 20}
    late = served(running("late", {"a": 1}), 150.0, first=1.0)
    soon = served(waiting("soon"), 50.0, first=5.0)
    assert sizes(decide(draw({"a": 1}, late, soon, state=state), policy)) == {}
    assert sizes(decide(draw({"a": 1}, late, soon), policy)) == {"late": 1}  # too little is known


def test_gittins_learns_from_the_jobs_that_end() -> None:
    policy = Tiresias(rank="gittins", knob=0)
    world = World.of(draw({"a": 2}, served(running("x", {"a": 1}), 70.0), waiting("never-ran", 9)))
    world.run_cycle(policy)
    world.end("x")
    world.end("never-ran")
    world.run_cycle(policy)
    assert world.state == {"seen": {}, "sizes": [70.0]}


def test_elastic_gives_idle_gpus_to_the_job_that_gains_the_most() -> None:
    policy = Tiresias(elastic=True, knob=0)
    poor = running("poor", {"a": 1}, 1, 4, asked_gpus=1, speed=Curve((1.0, 1.2, 1.3, 1.3)))
    good = running("good", {"a": 1}, 1, 4, asked_gpus=1, speed=Curve((1.0, 1.9, 2.7, 3.4)))
    assert sizes(decide(draw({"a": 5}, poor, good), policy)) == {"poor": 1, "good": 4}
    assert sizes(decide(draw({"a": 9}, poor, good), policy)) == {"poor": 3, "good": 4}  # the fourth would gain nothing
    assert sizes(decide(draw({"a": 5}, poor, good))) == {"poor": 1, "good": 1}


def test_elastic_starts_a_waiting_job_with_less_than_it_asked_for() -> None:
    lab = draw({"a": 4}, running("y", {"a": 1}), waiting("x", 1, 4, elastic=True))
    assert sizes(decide(lab, Tiresias(elastic=True))) == {"x": 3, "y": 1}
    assert sizes(decide(lab)) == {"y": 1}


def test_a_job_asks_for_no_more_than_the_lab_or_its_limit_could_ever_give() -> None:
    grows = waiting("x", 1, 8, elastic=True)
    assert sizes(decide(draw({"a": 3}, grows))) == {"x": 3}
    assert sizes(decide(draw({"a": 8}, grows, limits=(Limit("alice", 4, frozenset({"x"})),)))) == {"x": 4}


def test_elastic_shrinks_those_who_have_had_much_when_many_wait() -> None:
    policy = Tiresias(elastic=True, knob=0)
    old = running("old", {"a": 8}, 2, 8, served_gpu_seconds=1e6, speed=Curve((1.0, 2.0, 2.1)))
    crowd = [waiting(f"j{number:02}", 1) for number in range(COMPACTION_THRESHOLD + 1)]
    assert sizes(decide(draw({"a": 8}, old, *crowd), policy)) == {"old": 2}
    assert sizes(decide(draw({"a": 8}, old, *crowd[1:]), policy)) == {"old": 8}


OPTIONS = [
    Tiresias(threshold=1000, queues=3, growth=2),
    Tiresias(threshold=1000, rank="gittins"),
    Tiresias(threshold=1000, elastic=True),
    Tiresias(threshold=1000, rank="gittins", elastic=True),
    Tiresias(threshold=1000, rank="arrival", elastic=True),
]


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16))
def test_with_any_option_it_keeps_all_rules_and_explains_itself(policy: Tiresias, snapshot: Snapshot) -> None:
    plan = decide(replace(snapshot, state={"sizes": [600.0 * number for number in range(40)]}), policy)
    started = {job for job, where in plan.target.items() if sum(where.values())}
    assert {job.id for job in snapshot.jobs if job.waiting} - started == set(plan.reasons) - started


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16, calm=True))
def test_with_any_option_an_unchanged_world_comes_to_rest(policy: Tiresias, snapshot: Snapshot) -> None:
    world = World.of(snapshot)
    assert reaches_stable_plan(world, DecidedPolicy(policy))


def test_by_arrival_whoever_came_to_a_queue_first_goes_first_and_those_that_come_down_line_up() -> None:
    policy = Tiresias(threshold=100, knob=0, rank="arrival")
    lab = draw({"a": 1}, waiting("x", served_gpu_seconds=150), waiting("y", served_gpu_seconds=150))
    first = policy.plan(replace(lab, jobs=lab.jobs[1:], now=50.0))
    assert first.state["came"] == {"y": [1, 50.0]}
    later = policy.plan(replace(lab, state=first.state))
    assert sizes(later) == {"y": 1}
