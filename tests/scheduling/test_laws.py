"""Laws of every policy in the registry, with its defaults; a policy's own options are tested beside it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.types import Snapshot
from tests.scheduling.strategies import snapshots
from tests.scheduling.worlds import World

EVERY = pytest.mark.parametrize("key", registry.POLICIES)


@EVERY
@given(snapshot=snapshots())
def test_it_keeps_all_rules(key: str, snapshot: Snapshot) -> None:
    assert violations(snapshot, registry.build(key, {}).plan(snapshot)) == []


@EVERY
@given(snapshot=snapshots())
def test_equal_worlds_get_equal_plans(key: str, snapshot: Snapshot) -> None:
    policy = registry.build(key, {})
    assert policy.plan(snapshot) == policy.plan(snapshot)


@EVERY
@given(snapshot=snapshots())
def test_it_tells_each_waiting_job_why(key: str, snapshot: Snapshot) -> None:
    plan = registry.build(key, {}).plan(snapshot)
    started = {job for job, where in plan.target.items() if sum(where.values())}
    assert {job.id for job in snapshot.jobs if job.waiting} - started <= set(plan.reasons)


@EVERY
@given(snapshot=snapshots())
def test_its_state_is_json(key: str, snapshot: Snapshot) -> None:
    state = registry.build(key, {}).plan(snapshot).state
    assert json.loads(json.dumps(state)) == state


@EVERY
@given(snapshot=snapshots(calm=True))
def test_an_unchanged_world_comes_to_rest(key: str, snapshot: Snapshot) -> None:
    policy, world = registry.build(key, {}), World.of(snapshot)
    for _ in range(30):
        changed = world.turn(policy, seconds=0)
        world.let_go()
        if not changed and not world.turn(policy, seconds=0):
            return
    pytest.fail("it still changes something after 30 turns")


@EVERY
@given(snapshot=snapshots(calm=True), data=st.data())
def test_a_switch_loses_and_doubles_nothing(key: str, snapshot: Snapshot, data: Any) -> None:
    world = World.of(snapshot)
    for _ in range(6):
        other = registry.build(data.draw(st.sampled_from([key, *registry.POLICIES])), {})
        world.state = {}
        seen = world.snapshot()
        plan = other.plan(seen)
        assert violations(seen, plan) == []
        world.carry_out(plan)
        world.let_go(data.draw(st.integers(0, 3)))
        world.now += 30
    assert set(world.jobs) == {job.id for job in snapshot.jobs}
