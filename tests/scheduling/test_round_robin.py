"""Round robin: each job goes to the next node of the ring."""

from scheduling.check import violations
from scheduling.policies.round_robin import RoundRobin
from scheduling.types import Plan, Snapshot
from tests.scheduling.worlds import World, draw, running, sizes, waiting


def decide(snapshot: Snapshot, policy: RoundRobin | None = None) -> Plan:
    plan = (policy or RoundRobin()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def places(plan: Plan) -> dict[str, dict[str, int]]:
    return {job: dict(where) for job, where in plan.target.items()}


def test_jobs_go_around_the_ring() -> None:
    lab = draw({"a": 4, "b": 4, "c": 4}, *(waiting(f"j{number}") for number in range(5)))
    assert places(decide(lab)) == {"j0": {"a": 1}, "j1": {"b": 1}, "j2": {"c": 1}, "j3": {"a": 1}, "j4": {"b": 1}}


def test_the_next_turn_goes_on_where_the_last_one_ended() -> None:
    world = World.of(draw({"a": 4, "b": 4, "c": 4}, waiting("x"), waiting("y")))
    world.turn(RoundRobin())
    world.submit(waiting("z"))
    world.turn(RoundRobin())
    assert dict(world.jobs["z"].now_on) == {"c": 1}


def test_a_look_at_a_full_node_turns_the_ring_too() -> None:
    lab = draw({"a": 1, "b": 2, "c": 2}, running("r", {"a": 1}), waiting("x"), waiting("y"))
    plan = decide(lab)
    assert places(plan) == {"r": {"a": 1}, "x": {"b": 1}, "y": {"c": 1}}
    assert plan.state == {"last": "c"}


def test_a_job_that_fits_nowhere_leaves_the_ring_as_it_was() -> None:
    lab = draw({"a": 2, "b": 2}, running("r", {"a": 1, "b": 1}), waiting("x", 2), state={"last": "a"})
    plan = decide(lab)
    assert plan.state == {"last": "a"}
    assert plan.reasons == {"x": "It needs 2 GPUs at once; the largest group of free ones is 1, on node a."}


def test_a_job_larger_than_any_node_is_spread_over_neighbours() -> None:
    lab = draw({"a": 2, "b": 2, "c": 2}, waiting("x", 3), state={"last": "b"})
    assert places(decide(lab)) == {"x": {"c": 2, "a": 1}}


def test_a_job_that_would_fit_an_empty_node_waits_for_one() -> None:
    lab = draw({"a": 2, "b": 2}, running("r", {"a": 1, "b": 1}), waiting("x", 2))
    assert sizes(decide(lab)) == {"r": 2}


def test_a_node_that_joins_does_not_turn_the_ring() -> None:
    lab = draw({"a": 2, "b": 2, "bb": 2, "c": 2}, waiting("x"), state={"last": "b"})
    assert places(decide(lab)) == {"x": {"bb": 1}}


def test_a_range_takes_what_the_node_has_or_its_least() -> None:
    lab = draw({"a": 3}, waiting("x", 1, 4))
    assert sizes(decide(lab)) == {"x": 3}
    assert sizes(decide(lab, RoundRobin(size="least"))) == {"x": 1}


def test_nodes_a_job_cannot_run_on_are_passed() -> None:
    lab = draw({"a": 2, "b": 2}, waiting("x", nodes=frozenset({"b"})))
    assert places(decide(lab)) == {"x": {"b": 1}}
