"""A reservation for the job that was passed over for too long: drawn cases, and laws."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.check import violations
from scheduling.policies.fair_share import FairShare
from scheduling.simulate import JobResult, Options, Submission, lasts, simulate
from scheduling.toolkit.backfill import LENT, RESERVED
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.placement import minus
from scheduling.types import Estimate, Job, Limit, Node, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, random_snapshot, snapshots
from tests.scheduling.worlds import NOW, DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

HOUR = 3600.0
BOUNDED = FairShare(passed_over_hours=1.0, yields_after_minutes=0.0)
UNBOUNDED = FairShare(passed_over_hours=0.0, yields_after_minutes=0.0)
SOON = FairShare(passed_over_hours=0.01, yields_after_minutes=0.0)
"""In the random snapshots of the laws most waiting jobs have waited for that long."""
YIELDING = FairShare(passed_over_hours=0.01, yields_after_minutes=0.1)
BOTH = pytest.mark.parametrize("policy", [SOON, YIELDING], ids=["saving", "saving and yielding"])
MANY = settings(max_examples=EXAMPLES, deadline=None)


def large(gpus: int = 4, *, waited: float = 2 * HOUR, **facts: Any) -> Job:
    return waiting("large", gpus, owner="lena", submitted_at=NOW - waited, **facts)


def small(id: str = "small", **facts: Any) -> Job:
    return waiting(id, 1, owner="sam", submitted_at=NOW - 5, **facts)


def busy(gpus: int = 3, **facts: Any) -> Job:
    return running("busy", {"a": gpus}, owner="bo", submitted_at=NOW - 9000, started_at=NOW - 60, **facts)


# --- what is saved, and for whom


def test_gpus_are_saved_for_a_job_that_was_passed_over_for_too_long() -> None:
    lab = draw({"a": 4}, busy(), large(), small())
    plan = BOUNDED.plan(lab)
    assert sizes(plan) == {"busy": 3} and plan.state[RESERVED] == "large"
    assert reasons_of(plan)["large"] == (
        "It has waited for 2 hours and needs 4 GPUs at once, so GPUs are saved for it as they come free: 1 of 4 so far."
    )
    assert reasons_of(plan)["small"].startswith(
        "1 GPU is being saved for a job that has waited too long, and too few others are free; sam has 0 GPUs now"
    )


@pytest.mark.parametrize(
    ("policy", "waited"), [(BOUNDED, 0.9 * HOUR), (UNBOUNDED, 1000 * HOUR)], ids=["not yet", "switched off"]
)
def test_until_then_smaller_jobs_pass(policy: FairShare, waited: float) -> None:
    plan = policy.plan(draw({"a": 4}, busy(), large(waited=waited), small()))
    assert sizes(plan) == {"busy": 3, "small": 1} and not plan.state


def test_time_in_which_a_job_ran_is_not_waiting() -> None:
    plan = BOUNDED.plan(draw({"a": 4}, busy(), large(run_seconds=1.5 * HOUR), small()))
    assert sizes(plan) == {"busy": 3, "small": 1}


def test_gpus_that_are_not_needed_for_it_are_not_saved() -> None:
    lab = draw({"a": 4, "b": 4}, busy(), running("other", {"b": 3}, owner="bo"), large(4, spread=False), small())
    plan = BOUNDED.plan(lab)
    assert sizes(plan) == {"busy": 3, "other": 3, "small": 1} and plan.state[RESERVED] == "large"


def test_the_nodes_that_will_be_free_soonest_are_chosen() -> None:
    ends_first = running("short", {"b": 3}, owner="bo", work=Estimate(600.0))
    lab = draw({"a": 4, "b": 4}, busy(work=Estimate(9000.0)), ends_first, large(4, spread=False), small())
    assert BOUNDED.plan(lab).target["small"] == {"a": 1}


def test_a_job_of_an_account_above_its_share_waits_for_its_turn() -> None:
    """Its owner holds more than the others, so smaller jobs that go first do not pass it over."""
    lab = draw({"a": 4}, replace(busy(3), owner="lena"), large(), small(), small("small-2"))
    assert sizes(BOUNDED.plan(lab)) == {"busy": 3, "small": 1}


def test_nothing_is_saved_for_a_job_that_only_its_own_limit_holds_back() -> None:
    limit = Limit("bo", 4, frozenset({"busy", "large"}))
    lab = draw({"a": 6}, busy(), large(), small(), limits=(limit,))
    assert sizes(BOUNDED.plan(lab)) == {"busy": 3, "small": 1}


def test_the_reservation_stays_with_its_job_until_that_starts() -> None:
    world = World.of(draw({"a": 4}, busy(), large(), small()))
    world.run_cycle(BOUNDED)
    world.submit(waiting("earlier", 4, owner="zoe", submitted_at=NOW - 5 * HOUR))
    world.run_cycle(BOUNDED)
    assert world.state[RESERVED] == "large"
    world.end("busy")
    world.run_cycle(BOUNDED)
    assert dict(world.jobs["large"].now_on) == {"a": 4}
    world.run_cycle(BOUNDED)
    assert world.state.get(RESERVED) != "large"


# --- who may use saved GPUs meanwhile


def test_saved_gpus_are_lent_to_jobs_that_can_be_stopped_and_come_back() -> None:
    world = World.of(draw({"a": 4}, busy(), large(), small(preemptible=True)))
    world.run_cycle(BOUNDED)
    assert dict(world.jobs["small"].now_on) == {"a": 1} and world.state[LENT] == ["small"]
    world.run_cycle(BOUNDED)
    assert dict(world.jobs["small"].now_on) == {"a": 1}, "it keeps them for as long as they do not suffice"
    world.end("busy")
    world.run_cycle(BOUNDED)
    assert not world.jobs["small"].now_on and not world.jobs["large"].now_on
    world.release()
    world.run_cycle(BOUNDED)
    assert dict(world.jobs["large"].now_on) == {"a": 4}


def test_nothing_is_lent_for_less_than_a_restart_takes() -> None:
    lab = draw({"a": 4}, busy(work=Estimate(60.0)), large(), small(preemptible=True, restart_seconds=90.0))
    assert sizes(BOUNDED.plan(lab)) == {"busy": 3}


@pytest.mark.parametrize(
    ("facts", "passes"),
    [
        ({"work": Estimate(300.0)}, True),
        ({"longest_seconds": 300.0}, True),
        ({"work": Estimate(3000.0)}, False),
        ({}, False),
    ],
    ids=["short", "limited", "long", "of unknown length"],
)
def test_jobs_that_will_have_ended_in_time_may_pass(facts: dict[str, Any], passes: bool) -> None:
    lab = draw({"a": 4}, busy(1, work=Estimate(1000.0)), large(), small(**facts))
    assert ("small" in sizes(BOUNDED.plan(lab))) is passes


def test_elastic_jobs_make_room_when_that_completes_it() -> None:
    """With only what it waits for in this node: the usual plan counts GPUs of all nodes together."""
    world = World.of(
        draw(
            {"a": 4, "b": 4},
            running("grown", {"a": 3}, 1, 3, owner="bo"),
            running("fixed", {"b": 3}, owner="bo"),
            large(3, spread=False),
            small(),
        )
    )
    for _ in range(4):
        world.run_cycle(BOUNDED)
        world.release()
    assert dict(world.jobs["large"].now_on) == {"a": 3}


def test_a_job_on_several_nodes_borrows_saved_gpus_beside_others() -> None:
    """Neither the saved GPU nor the one that no other job wants is enough for it."""
    world = draw({"a": 4, "b": 1}, busy(work=Estimate(3600.0)), large(), small(preemptible=True))
    pair = waiting("pair", 2, owner="sam", submitted_at=NOW - 5, preemptible=True, spread=True)
    lab = replace(world, jobs=(*[job for job in world.jobs if job.id != "small"], pair))
    plan = BOUNDED.plan(lab)
    assert plan.target["pair"] == {"a": 1, "b": 1}
    assert (plan.state[RESERVED], plan.state[LENT]) == ("large", ["pair"])


def test_gpus_of_jobs_without_a_place_go_to_the_next_until_one_fits() -> None:
    """Each of the first three would get GPUs by its count, but finds none together."""
    wide = [waiting(f"wide-{n}", 3, owner=f"user-{n}", submitted_at=NOW - 50 + n, spread=False) for n in range(3)]
    held = [running(f"on-{node}", {node: 3}, owner="bo") for node in "abc"]
    lab = draw({"a": 4, "b": 4, "c": 4}, *held, *wide, waiting("fits", 1, owner="zoe", submitted_at=NOW - 5))
    assert sizes(UNBOUNDED.plan(lab)) == {"on-a": 3, "on-b": 3, "on-c": 3, "fits": 1}


# --- laws


@BOTH
@MANY
@given(snapshot=snapshots())
def test_laws_the_plan_keeps_all_rules_and_gives_each_waiting_job_a_reason(
    policy: FairShare, snapshot: Snapshot
) -> None:
    plan = policy.plan(snapshot)
    assert violations(snapshot, plan) == []
    assert set(plan.reasons) == {job.id for job in snapshot.jobs if job.waiting and not plan.target.get(job.id)}


@BOTH
@MANY
@given(snapshot=snapshots(), data=st.data())
def test_laws_equal_worlds_get_equal_plans(policy: FairShare, snapshot: Snapshot, data: Any) -> None:
    jobs = tuple(data.draw(st.permutations(snapshot.jobs)))
    nodes = tuple(data.draw(st.permutations(snapshot.nodes)))
    explained, unexplained = (
        policy.plan(replace(snapshot, jobs=jobs, nodes=nodes, explain=explain)) for explain in (True, False)
    )
    assert policy.plan(snapshot) == explained == replace(unexplained, reasons=explained.reasons)


@BOTH
@MANY
@given(snapshot=snapshots(calm=True))
def test_laws_an_unchanged_world_comes_to_rest(policy: FairShare, snapshot: Snapshot) -> None:
    assert reaches_stable_plan(World.of(snapshot), DecidedPolicy(policy), cycles=30)


@MANY
@given(snapshot=snapshots())
def test_laws_no_job_that_can_be_stopped_waits_while_saved_gpus_would_do(snapshot: Snapshot) -> None:
    """Work conservation within the reservation: what is saved is idle only for jobs that could not give it back.

    Restarts take no time here, so that a loan of any length pays.
    """
    snapshot = replace(snapshot, jobs=tuple(replace(job, restart_seconds=0.0) for job in snapshot.jobs))
    plan = SOON.plan(snapshot)
    usual = UNBOUNDED.plan(snapshot)
    promised = any("being given back" in reason for reason in (*reasons_of(usual).values(), *reasons_of(plan).values()))
    if RESERVED not in plan.state or promised or could_start(snapshot, usual):
        return
    others = could_start(snapshot, plan) - {plan.state[RESERVED]}
    assert not others, {job: reasons_of(plan)[job] for job in others}


def could_start(snapshot: Snapshot, plan: Plan) -> set[str]:
    """Return the waiting jobs that can be stopped and for which the plan leaves enough GPUs idle.

    A job that cannot be resized needs as many as it would get, which may be more than its minimum.
    """
    left = Capacity(snapshot)
    for job in snapshot.jobs:
        if job.id in plan.target and (more := minus(plan.target[job.id], job.now_on)):
            left.give(job, more)
    waits = [job for job in snapshot.jobs if job.id in plan.reasons and job.preemptible and not job.blocked]
    return {job.id for job in waits if left.fit(job, job.min_gpus if job.elastic else job.asked)}


@MANY
@given(snapshot=snapshots())
def test_laws_running_jobs_lose_nothing_to_what_is_only_saved(snapshot: Snapshot) -> None:
    """As long as the job cannot start, no running job loses a GPU that it would keep without the reservation."""
    plan, usual = SOON.plan(snapshot), UNBOUNDED.plan(snapshot)
    if plan.state.get(RESERVED) is None or "saved for it" not in reasons_of(plan)[plan.state[RESERVED]]:
        return
    for job in snapshot.jobs:
        if job.running and sum(usual.target.get(job.id, {}).values()) >= job.gpus and not job.elastic:
            assert job.id in plan.target


@pytest.mark.parametrize("seed", [659, 7076, 14161, 23669, 23953])
def test_saving_stops_no_running_job_in_labs_where_it_did(seed: int) -> None:
    rng = random.Random(seed)
    snapshot = random_snapshot(rng, rng.randint(1, 4), rng.randint(1, 8))
    plan, usual = SOON.plan(snapshot), UNBOUNDED.plan(snapshot)
    assert "saved for it" in reasons_of(plan)[plan.state[RESERVED]]
    for job in snapshot.jobs:
        if job.running and sum(usual.target.get(job.id, {}).values()) >= job.gpus and not job.elastic:
            assert job.id in plan.target


@pytest.mark.parametrize("can_stop", [True, False])
@settings(max_examples=max(5, EXAMPLES // 6), deadline=None)
@given(seed=st.integers(0, 10_000), gpus=st.integers(3, 8), spread=st.booleans())
def test_laws_in_a_lab_that_short_jobs_keep_busy_a_large_one_starts_in_time(
    can_stop: bool, seed: int, gpus: int, spread: bool
) -> None:
    """Within the bound, the time that the longest running job still takes, and the time until the policy looks again."""
    waited = _wait_of_large(BOUNDED, seed, gpus if spread else min(gpus, 4), spread, can_stop)
    assert waited is not None and waited <= HOUR + LONGEST + 60.0


LONGEST = 240.0


def _wait_of_large(policy: FairShare, seed: int, gpus: int, spread: bool, can_stop: bool) -> float | None:
    """Two nodes with 4 GPUs, and more work of short jobs than these can do."""
    stream = [
        Submission(
            Job(f"s{number:04}", f"user{(number * 7 + seed) % 5}", 20.0 * number, 1, 1, preemptible=False),
            lasts(120.0 + (seed * 31 + number * 17) % 121, 1),
        )
        for number in range(400)
    ]
    wide = Job("large", "lena", 1000.0, gpus, gpus, preemptible=can_stop, spread=spread)
    nodes = [Node("a", "a", 4, 4), Node("b", "b", 4, 4)]
    result = simulate(
        policy, nodes, [*stream, Submission(wide, lasts(600, gpus))], now=0.0, options=Options(until=2.2 * HOUR)
    )
    return _job(result.jobs, "large").waiting


def test_without_the_bound_such_a_lab_never_starts_it() -> None:
    assert _wait_of_large(UNBOUNDED, 3, 8, spread=True, can_stop=False) is None


def _job(jobs: Any, id: str) -> JobResult:
    found: JobResult = next(job for job in jobs if job.id == id)
    return found
