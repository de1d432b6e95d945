"""GPUs that are free now come before those that are being given back, where they are as close together."""

import pytest

from scheduling import registry
from scheduling.decide import decide
from scheduling.types import Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import World, draw, waiting

NOT_ROUND_ROBIN = [key for key in registry.POLICIES if key != "round_robin"]
"""Round robin chooses nodes by its own rule."""
EVERY = pytest.mark.parametrize("key", NOT_ROUND_ROBIN)


def lab(free: dict[str, int], leaving: dict[str, int], count: int, tier: str = "standard", **facts: bool) -> Snapshot:
    nodes = {name: free.get(name, 0) + leaving.get(name, 0) for name in sorted(free | leaving)}
    return draw(nodes, waiting("first", count, tier=tier, **facts), leaving=leaving)


@EVERY
@pytest.mark.parametrize("tier", ["standard", "premium"])
def test_a_job_starts_on_free_gpus_although_others_would_be_a_tighter_fit(key: str, tier: str) -> None:
    plan = decide(registry.build(key, {}), lab({"b": 2, "c": 1}, {"a": 1}, 3, tier))
    assert plan.target["first"] == {"b": 2, "c": 1}
    assert "first" not in plan.reasons


@EVERY
def test_of_two_jobs_one_starts_and_the_other_waits_for_what_is_given_back(key: str) -> None:
    two = draw(
        {"a": 2, "b": 2}, waiting("first", 2, spread=False), waiting("second", 2, spread=False), leaving={"a": 2}
    )
    plan = decide(registry.build(key, {}), two)
    assert list(plan.target.values()) == [{"b": 2}]
    assert plan.reasons.keys() == {"first", "second"} - plan.target.keys()


@pytest.mark.parametrize("key", [key for key in NOT_ROUND_ROBIN if key != "fifo"])
def test_a_job_waits_for_one_node_rather_than_spread_over_two(key: str) -> None:
    """Except with ``fifo``, which looks at free GPUs only, so that a job starts as soon as enough are free."""
    plan = decide(registry.build(key, {}), lab({"b": 1, "c": 1}, {"a": 2}, 2))
    assert "first" not in plan.target, (
        "It must wait for node a, where 2 GPUs are being given back: choose the place in Capacity(snapshot, coming=True), then use "
        "start() of scheduling/toolkit/plan_builder.py (docs/policies/writing-one.md, The contract)."
    )
    assert "being given back" in reasons_of(plan)["first"]


@EVERY
def test_a_job_that_started_there_stays_there(key: str) -> None:
    """Policies that carry a decision out over several turns remember where it went."""
    world = World.of(lab({"b": 2, "c": 1}, {"a": 1}, 3, elastic=True, preemptible=True))
    policy = registry.build(key, {})
    world.carry_out(decide(policy, world.snapshot()))
    world.release()
    for _ in range(3):
        world.now += 1
        world.carry_out(decide(policy, world.snapshot()))
        assert {node: world.jobs["first"].now_on.get(node) for node in "bc"} == {"b": 2, "c": 1}
