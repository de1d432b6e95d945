"""Laws of every policy where jobs ask for processors and memory of their own."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.types import Plan, Snapshot
from tests.scheduling.claims import false_claims
from tests.scheduling.strategies import EXAMPLES, SHARE, quick_policy, snapshots, with_demands, with_shares
from tests.scheduling.worlds import DecidedPolicy, World, reaches_stable_plan

EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


@EVERY
@MANY
@given(snapshot=snapshots(), seed=st.integers(0, 2**32))
def test_no_node_gives_more_than_it_has(key: str, snapshot: Snapshot, seed: int) -> None:
    snapshot = with_demands(snapshot, seed)
    plan = quick_policy(key).plan(snapshot)
    assert violations(snapshot, plan) == [] == false_claims(snapshot, plan)


@EVERY
@MANY
@given(snapshot=snapshots(), seed=st.integers(0, 2**32))
def test_no_node_gives_more_than_it_has_under_the_rules_of_the_lab(key: str, snapshot: Snapshot, seed: int) -> None:
    snapshot = with_demands(snapshot, seed)
    plan = decide(quick_policy(key), snapshot)
    assert violations(snapshot, plan) == []
    left_out = {job.id for job in snapshot.jobs if job.waiting and not plan.target.get(job.id)}
    assert set(plan.reasons) == left_out
    assert false_claims(snapshot, plan) == []


@EVERY
@MANY
@given(snapshot=snapshots())
def test_jobs_without_demands_get_the_plans_that_they_got_before_nodes_had_shares(key: str, snapshot: Snapshot) -> None:
    assert decide(quick_policy(key), with_shares(snapshot)) == decide(quick_policy(key), snapshot)


@EVERY
@MANY
@given(snapshot=snapshots())
def test_jobs_that_ask_for_exactly_their_share_get_the_same_gpus(key: str, snapshot: Snapshot) -> None:
    shared = with_shares(snapshot)
    asking = replace(
        shared,
        jobs=tuple(
            replace(job, millicpus_per_gpu=SHARE.millicpus, memory_mib_per_gpu=SHARE.memory_mib) for job in shared.jobs
        ),
    )

    def targets(plan: Plan) -> dict[str, dict[str, int]]:
        return {job: dict(where) for job, where in plan.target.items()}

    policy = quick_policy(key)
    assert targets(policy.plan(asking)) == targets(policy.plan(snapshot))


@EVERY
@MANY
@given(snapshot=snapshots(calm=True), seed=st.integers(0, 2**32))
def test_an_unchanged_world_with_demands_comes_to_rest(key: str, snapshot: Snapshot, seed: int) -> None:
    world = World.of(with_demands(snapshot, seed))
    assert reaches_stable_plan(world, DecidedPolicy(quick_policy(key)), cycles=30)
