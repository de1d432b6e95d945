"""Round robin: each job goes to the next node in cyclic order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from scheduling.check import violations
from scheduling.policies.round_robin import RoundRobin
from scheduling.types import Job, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import NOW, World, draw, running, sizes, waiting


def decide(snapshot: Snapshot, policy: RoundRobin | None = None) -> Plan:
    plan = (policy or RoundRobin()).plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def places(plan: Plan) -> dict[str, dict[str, int]]:
    return {job: dict(where) for job, where in plan.target.items()}


def test_jobs_go_to_the_nodes_in_cyclic_order() -> None:
    lab = draw({"a": 4, "b": 4, "c": 4}, *(waiting(f"j{number}") for number in range(5)))
    assert places(decide(lab)) == {"j0": {"a": 1}, "j1": {"b": 1}, "j2": {"c": 1}, "j3": {"a": 1}, "j4": {"b": 1}}


def test_the_next_turn_goes_on_where_the_last_one_ended() -> None:
    world = World.of(draw({"a": 4, "b": 4, "c": 4}, waiting("x"), waiting("y")))
    world.run_cycle(RoundRobin())
    world.submit(waiting("z"))
    world.run_cycle(RoundRobin())
    assert dict(world.jobs["z"].now_on) == {"c": 1}


def test_a_full_node_is_skipped_in_the_cyclic_order() -> None:
    lab = draw({"a": 1, "b": 2, "c": 2}, running("r", {"a": 1}), waiting("x"), waiting("y"))
    plan = decide(lab)
    assert places(plan) == {"r": {"a": 1}, "x": {"b": 1}, "y": {"c": 1}}
    assert plan.state == {"last": "c"}


def test_a_job_that_fits_nowhere_does_not_change_the_next_node() -> None:
    lab = draw({"a": 2, "b": 2}, running("r", {"a": 1, "b": 1}), waiting("x", 2), state={"last": "a"})
    plan = decide(lab)
    assert plan.state == {"last": "a"}
    assert reasons_of(plan) == {"x": "It needs 2 GPUs at once; the largest group of free ones is 1, on node a."}


def test_a_job_larger_than_any_node_is_spread_over_neighbours() -> None:
    lab = draw({"a": 2, "b": 2, "c": 2}, waiting("x", 3), state={"last": "b"})
    assert places(decide(lab)) == {"x": {"c": 2, "a": 1}}


def test_a_job_that_would_fit_an_empty_node_waits_for_one() -> None:
    lab = draw({"a": 2, "b": 2}, running("r", {"a": 1, "b": 1}), waiting("x", 2))
    assert sizes(decide(lab)) == {"r": 2}


def test_a_node_that_joins_does_not_change_the_next_node() -> None:
    lab = draw({"a": 2, "b": 2, "bb": 2, "c": 2}, waiting("x"), state={"last": "b"})
    assert places(decide(lab)) == {"x": {"bb": 1}}


def test_a_range_takes_what_the_node_has_or_its_minimum() -> None:
    lab = draw({"a": 3}, waiting("x", 1, 4))
    assert sizes(decide(lab)) == {"x": 3}
    assert sizes(decide(lab, RoundRobin(size="least"))) == {"x": 1}


def test_nodes_a_job_cannot_run_on_are_passed() -> None:
    lab = draw({"a": 2, "b": 2}, waiting("x", nodes=frozenset({"b"})))
    assert places(decide(lab)) == {"x": {"b": 1}}


SLICES = RoundRobin(rotate="time", slice_seconds=600)


def since(job: Job, seconds: float) -> Job:
    return replace(job, started_at=NOW - seconds, since=NOW - seconds, preemptible=True)


def test_a_job_makes_room_when_its_slice_is_over_and_not_before() -> None:
    x, y = running("x", {"a": 1}), waiting("y", submitted_at=NOW - 550)
    over = decide(draw({"a": 1}, since(x, 600), y), SLICES)
    assert sizes(over) == {} and "then it starts" in reasons_of(over)["y"]
    early = decide(draw({"a": 1}, since(x, 599), y), SLICES)
    assert sizes(early) == {"x": 1}
    assert reasons_of(early) == {"y": "The only GPU is in use; jobs that can be stopped make room after about 10 min."}
    assert early.again_at == NOW + 1


def test_who_comes_in_the_middle_of_a_further_slice_waits_for_its_end() -> None:
    lab = draw({"a": 1}, since(running("x", {"a": 1}), 700), waiting("y", submitted_at=NOW - 50))
    assert sizes(decide(lab, SLICES)) == {"x": 1}
    assert decide(lab, SLICES).again_at == NOW + 500


def test_who_was_stopped_goes_to_the_end_of_the_line() -> None:
    stopped = waiting("stopped", submitted_at=1.0, since=NOW - 5, first_started_at=10.0)
    assert sizes(decide(draw({"a": 1}, stopped, waiting("new", submitted_at=NOW - 6)), SLICES)) == {"new": 1}
    assert sizes(decide(draw({"a": 1}, stopped, waiting("new", submitted_at=NOW - 4)), SLICES)) == {"stopped": 1}


def test_jobs_take_turns() -> None:
    world = World.of(draw({"a": 1}, waiting("x", preemptible=True), waiting("y", preemptible=True), now=0.0))
    ran = []
    for _ in range(40):
        before = {job.id for job in world.jobs.values() if job.running}
        world.run_cycle(SLICES, seconds=100)
        world.release()
        for job in list(world.jobs.values()):
            if job.id in before and not job.running:
                world.jobs[job.id] = replace(job, since=world.now)
            if job.id not in before and job.running:
                ran.append(job.id)
    assert ran == ["x", "y", "x", "y", "x", "y"]


def test_a_slice_is_at_least_ten_times_a_restart() -> None:
    slow = replace(since(running("x", {"a": 1}), 2000), restart_seconds=300.0)
    assert sizes(decide(draw({"a": 1}, slow, waiting("y")), SLICES)) == {"x": 1}


def test_no_job_is_stopped_while_none_waits_or_without_a_checkpoint() -> None:
    assert sizes(decide(draw({"a": 1}, since(running("x", {"a": 1}), 9000)), SLICES)) == {"x": 1}
    rigid = replace(since(running("x", {"a": 1}), 9000), preemptible=False)
    assert sizes(decide(draw({"a": 1}, rigid, waiting("y")), SLICES)) == {"x": 1}


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(max_jobs=16, calm=True))
def test_with_time_slices_an_unchanged_world_comes_to_rest(snapshot: Snapshot) -> None:
    world = World.of(snapshot)
    for _ in range(40):
        plan = decide(world.snapshot(), SLICES)
        assert {job.id for job in world.jobs.values() if job.waiting and not plan.target.get(job.id)} == set(
            plan.reasons
        )
        changed = world.run_cycle(SLICES, seconds=0)
        world.release()
        if not changed and not world.run_cycle(SLICES, seconds=0):
            return
    pytest.fail("it still changes something after 40 turns")
