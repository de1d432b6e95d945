"""Damping: what was just placed is not stopped, what can shrink makes room at once, and a reservation goes first."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.policies.elastic_fifo import ElasticFifo
from scheduling.policies.fair_share import FairShare
from scheduling.policies.fifo import Fifo
from scheduling.types import Job, Limit, Reservation, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots
from tests.scheduling.worlds import NOW, DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

DAMPING = 30.0
FIFO = Fifo(strict=False)
SHARES = FairShare()
EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


def damped(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, damping_seconds=DAMPING)


def placed(seconds_ago: float, **facts: Any) -> Job:
    return running("1", {"a": 2}, tier="basic", preemptible=True, started_at=NOW - seconds_ago, **facts)


def test_a_job_that_was_just_placed_is_not_stopped_for_a_higher_tier() -> None:
    done = decide(FIFO, damped(draw({"a": 2}, placed(10), waiting("2", 2, tier="premium"))))
    assert sizes(done) == {"1": 2}
    assert reasons_of(done) == {"2": "All 2 GPUs are in use."}
    assert done.again_at == NOW + 20, "then it can be stopped"


def test_it_is_stopped_once_the_damping_time_is_over() -> None:
    done = decide(FIFO, damped(draw({"a": 2}, placed(DAMPING), waiting("2", 2, tier="premium"))))
    assert sizes(done) == {}
    assert reasons_of(done) == {"2": "2 GPUs are being given back by other jobs; then it starts."}


def test_a_job_that_was_placed_earlier_is_stopped_instead() -> None:
    young, old = placed(10), replace(placed(60), id="3", lost_gpu_seconds_if_stopped=900.0)
    assert sizes(decide(FIFO, damped(draw({"a": 4}, young, old, waiting("2", 2, tier="premium"))))) == {"1": 2}


def test_what_an_elastic_job_can_spare_is_given_back_at_once() -> None:
    lab = draw({"a": 4}, running("1", {"a": 4}, 1, 4, started_at=NOW - 1, since=NOW - 1), waiting("2", 2))
    assert sizes(decide(ElasticFifo(), damped(lab))) == {"1": 2}


def test_a_reservation_that_begins_stops_even_what_was_just_placed() -> None:
    course = Reservation("the course", "a", 2, NOW - 1, NOW + 3600, frozenset({"bob"}))
    assert sizes(decide(FIFO, replace(damped(draw({"a": 2}, placed(1))), reservations=(course,)))) == {}


def test_a_clock_that_was_set_back_shields_no_job_for_hours() -> None:
    assert sizes(decide(FIFO, damped(draw({"a": 2}, placed(-3600), waiting("2", 2, tier="premium"))))) == {}


def test_where_no_job_waits_time_changes_nothing() -> None:
    assert decide(FIFO, damped(draw({"a": 2}, placed(10)))).again_at is None


def test_a_job_grows_when_gpus_were_left_over_for_a_while() -> None:
    lab = damped(draw({"a": 4}, running("1", {"a": 1}, 1, 4)))
    at_first = decide(SHARES, lab)
    assert sizes(at_first) == {"1": 1} and at_first.again_at == NOW + 10
    later = replace(lab, now=NOW + 9, state=json.loads(json.dumps(at_first.state)))
    assert sizes(decide(SHARES, later)) == {"1": 1}
    assert sizes(decide(SHARES, replace(later, now=NOW + 10))) == {"1": 4}


def test_a_job_that_comes_meanwhile_starts_on_them_at_once() -> None:
    before = decide(SHARES, damped(draw({"a": 4}, running("1", {"a": 1}, 1, 4)))).state
    lab = draw({"a": 4}, running("1", {"a": 1}, 1, 4), waiting("2", 3), state=before, now=NOW + 3)
    assert sizes(decide(SHARES, damped(lab))) == {"1": 1, "2": 3}


def test_a_wish_that_was_given_up_begins_again() -> None:
    lab = damped(draw({"a": 4}, running("1", {"a": 1}, 1, 4)))
    full = damped(draw({"a": 4}, running("1", {"a": 1}, 1, 4), running("2", {"a": 3}), now=NOW + 5))
    state = decide(SHARES, replace(full, state=decide(SHARES, lab).state)).state
    assert decide(SHARES, replace(lab, now=NOW + 10, state=state)).again_at == NOW + 20


def test_the_reason_of_a_job_behind_such_gpus_is_that_they_are_kept() -> None:
    lab = damped(draw({"a": 4}, running("1", {"a": 2}, 1, 4), waiting("2", 4, owner="bob")))
    lab = replace(lab, jobs=(replace(lab.jobs[0], base={"a": 2}), lab.jobs[1]))
    done = decide(SHARES, lab)
    assert sizes(done) == {"1": 2}
    assert reasons_of(done)["2"].startswith("All 4 GPUs are in use or kept for jobs ahead of it;")


def test_gpus_for_a_growth_that_is_put_off_are_promised_and_not_in_use() -> None:
    limit = Limit("alice", 4, frozenset({"1", "2"}))
    lab = damped(draw({"a": 8}, running("1", {"a": 2}, 1, 4), waiting("2", 1, tier="basic"), limits=(limit,)))
    assert reasons_of(decide(SHARES, lab)) == {
        "2": "The limit of 4 GPUs for alice is reached: 4 are in use or promised and it needs 1."
    }


def test_the_reason_of_a_job_of_a_lower_tier_names_them_too() -> None:
    grows = running("1", {"a": 3}, 3, 8, tier="premium")
    done = decide(SHARES, damped(draw({"a": 4}, grows, waiting("2", 1, tier="standard", owner="bob"))))
    assert sizes(done) == {"1": 3}
    assert reasons_of(done)["2"].startswith("All 4 GPUs are in use or kept for jobs ahead of it")


def test_a_job_below_its_minimum_takes_at_once_what_it_lacks() -> None:
    lab = damped(draw({"a": 4}, running("1", {"a": 1}, 2, 4)))
    assert sizes(decide(SHARES, lab))["1"] >= 2


@EVERY
@MANY
@given(snapshot=snapshots())
def test_laws_of_damping_no_job_grows_before_it_has_waited_for_that(key: str, snapshot: Snapshot) -> None:
    lab = damped(snapshot)
    done = decide(quick_policy(key), lab)
    for job in lab.jobs:
        target = done.target.get(job.id, {})
        if job.running and job.gpus >= job.min_gpus and all(target.get(node, 0) >= n for node, n in job.now_on.items()):
            assert dict(target) == dict(job.now_on), f"job {job.id} grows at once"


@EVERY
@MANY
@given(snapshot=snapshots(calm=True))
def test_laws_of_damping_a_world_in_which_time_passes_comes_to_rest(key: str, snapshot: Snapshot) -> None:
    world, policy, quiet = World.of(damped(snapshot)), DecidedPolicy(quick_policy(key)), 0
    for _ in range(60):
        quiet = 0 if world.run_cycle(policy, 6) else quiet + 1
        world.release()
        if quiet > 6:
            return
    raise AssertionError("it keeps changing")


@EVERY
@MANY
@given(snapshot=snapshots(), data=st.data())
def test_laws_of_damping_no_placement_is_undone_within_the_damping_time(
    key: str, snapshot: Snapshot, data: Any
) -> None:
    ages = data.draw(st.lists(st.sampled_from([0.0, 1.0, 29.9, 30.0, 3600.0]), min_size=10, max_size=10))
    jobs = tuple(
        replace(job, started_at=NOW - age) if job.running else job
        for job, age in zip(snapshot.jobs, ages, strict=False)
    )
    lab = damped(replace(snapshot, jobs=jobs))
    done = decide(quick_policy(key), lab)
    assert violations(lab, done) == []
    left_out = {job.id for job in lab.jobs if job.waiting and not done.target.get(job.id)}
    assert set(done.reasons) == left_out
    for job in lab.jobs:
        if job.running and job.started_at is not None and NOW - job.started_at < DAMPING:
            assert done.target.get(job.id), f"job {job.id} is stopped {NOW - job.started_at} s after it was placed"
    assert done.again_at is None or done.again_at > NOW


@MANY
@given(snapshot=snapshots(calm=True), data=st.data())
def test_laws_of_damping_they_hold_while_jobs_come_and_policies_are_switched(snapshot: Snapshot, data: Any) -> None:
    world = World.of(damped(snapshot))
    world.jobs = {id: replace(job, tier="basic") for id, job in world.jobs.items()}
    for turn in range(8):
        world.submit(
            waiting(f"new{turn}", data.draw(st.integers(1, 3)), tier=data.draw(st.sampled_from(["basic", "premium"])))
        )
        world.state = {}
        seen = world.snapshot()
        done = decide(quick_policy(data.draw(st.sampled_from([*registry.POLICIES]))), seen)
        assert violations(seen, done) == []
        for job in seen.jobs:
            assert done.target.get(job.id) or not job.running or seen.now - (job.started_at or 0.0) >= DAMPING
        world.carry_out(done)
        world.release(data.draw(st.integers(0, 4)))
        world.now += data.draw(st.sampled_from([0.3, 3.0, 20.0]))


@EVERY
@MANY
@given(snapshot=snapshots(calm=True))
def test_laws_of_damping_an_unchanged_world_comes_to_rest(key: str, snapshot: Snapshot) -> None:
    assert reaches_stable_plan(World.of(damped(snapshot)), DecidedPolicy(quick_policy(key)), cycles=30)
