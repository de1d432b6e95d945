"""Laws of every policy in the registry, with its defaults; a policy's own options are tested beside it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.toolkit import reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.types import Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, reaches_stable_plan, waiting

EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


@EVERY
@MANY
@given(snapshot=snapshots())
def test_it_keeps_all_rules(key: str, snapshot: Snapshot) -> None:
    assert violations(snapshot, registry.build(key, {}).plan(snapshot)) == []


@EVERY
@MANY
@given(snapshot=snapshots(), data=st.data())
def test_equal_worlds_get_equal_plans_however_their_rows_are_ordered(key: str, snapshot: Snapshot, data: Any) -> None:
    policy = quick_policy(key)
    shuffled = replace(
        snapshot,
        nodes=tuple(data.draw(st.permutations(snapshot.nodes))),
        jobs=tuple(data.draw(st.permutations(snapshot.jobs))),
    )
    assert policy.plan(snapshot) == policy.plan(snapshot) == policy.plan(shuffled)


@EVERY
@MANY
@given(snapshot=snapshots())
def test_each_waiting_job_has_a_reason_and_no_other_has(key: str, snapshot: Snapshot) -> None:
    plan = quick_policy(key).plan(snapshot)
    left_out = {job.id for job in snapshot.jobs if job.waiting and not plan.target.get(job.id)}
    assert set(plan.reasons) == left_out
    for reason in reasons_of(plan).values():
        assert not reason[0].islower() and reason.endswith(".")
        if shortage := re.search(r"needs (\d+) GPUs? at once and only (\d+) (?:is|are) free", reason):
            assert int(shortage[2]) < int(shortage[1]), reason


@EVERY
@MANY
@given(snapshot=snapshots())
def test_it_decides_the_same_where_reasons_are_not_read(key: str, snapshot: Snapshot) -> None:
    """As the product asks it: with the lab's calendar and tiers around it."""
    explained, unexplained = (
        DecidedPolicy(quick_policy(key)).plan(replace(snapshot, explain=explain)) for explain in (True, False)
    )
    assert replace(unexplained, reasons=explained.reasons) == explained
    assert unexplained.reasons.keys() == explained.reasons.keys()


@EVERY
@MANY
@given(snapshot=snapshots(), data=st.data())
def test_a_job_that_could_run_starts_in_an_empty_lab(key: str, snapshot: Snapshot, data: Any) -> None:
    """Of one kind of GPU, whatever it may grow to and whatever limit it is under. PD-ORS books GPUs of one kind only."""
    job = data.draw(st.sampled_from([job for job in snapshot.jobs if job.waiting] or [waiting("a", 1, 8)]))
    nodes = tuple(replace(node, free=node.total, leaving=0, kind="") for node in snapshot.nodes)
    limits = tuple(replace(limit, leaving=0, elsewhere=0) for limit in snapshot.limits)
    alone = replace(snapshot, nodes=nodes, jobs=(job,), limits=limits, state={})
    assume(not reasons.impossible(job, Capacity(alone)))
    plan = registry.build(key, {}).plan(alone)
    assert sum(plan.target.get(job.id, {}).values()) >= job.min_gpus, plan.reasons


@EVERY
@MANY
@given(snapshot=snapshots())
def test_its_state_is_json(key: str, snapshot: Snapshot) -> None:
    state = quick_policy(key).plan(snapshot).state
    assert json.loads(json.dumps(state)) == state


@EVERY
@MANY
@given(snapshot=snapshots(calm=True))
def test_an_unchanged_world_comes_to_rest(key: str, snapshot: Snapshot) -> None:
    """As the product asks it: those that count GPUs without looking at nodes may go to and fro by themselves."""
    assert reaches_stable_plan(World.of(snapshot), DecidedPolicy(quick_policy(key)), cycles=30)


@EVERY
@MANY
@given(snapshot=snapshots(calm=True), data=st.data())
def test_a_switch_loses_and_doubles_nothing(key: str, snapshot: Snapshot, data: Any) -> None:
    world = World.of(snapshot)
    for _ in range(6):
        other = quick_policy(data.draw(st.sampled_from([key, *registry.POLICIES])))
        world.state = {}
        seen = world.snapshot()
        plan = other.plan(seen)
        assert violations(seen, plan) == []
        world.carry_out(plan)
        world.release(data.draw(st.integers(0, 3)))
        world.now += 30
    assert set(world.jobs) == {job.id for job in snapshot.jobs}
