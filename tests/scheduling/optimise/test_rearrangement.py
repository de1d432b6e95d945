"""From counts to placements that move the fewest workers, and the way there."""

import random
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from scheduling.check import violations
from scheduling.optimise.rearrangement import Bins, best_fit, rearrange, relabel
from scheduling.toolkit.target_plan import carry_out, recall, remember
from scheduling.types import Job, Placement, Snapshot
from tests.scheduling.strategies import random_snapshot, snapshots
from tests.scheduling.worlds import World, draw, running, waiting


def bins(room: dict[str, int]) -> Bins:
    return Bins(room, dict.fromkeys(room, ""))


def put(lab: Snapshot, **wanted: int) -> dict[str, Placement]:
    return rearrange(lab, [job for job in lab.jobs if job.running or job.waiting], wanted)


def test_a_split_job_gets_the_rest_of_it_and_not_the_whole_again() -> None:
    """Voda put 9 workers of a job of 5 on two nodes of 4, and left one of them with -1 GPUs."""
    free = bins({"a": 4, "b": 4})
    assert best_fit(free, 5, spread=True) == {"a": 4, "b": 1}
    assert best_fit(free, 2, spread=True) == {"b": 2}
    assert free.room == {"a": 0, "b": 1}


def test_a_job_counts_once_however_many_pieces_it_is_in() -> None:
    """Voda counted the pieces of split jobs. One job over three nodes is one torn job, not three."""
    lab = draw({"a": 2, "b": 2, "c": 2}, waiting("x", 5, 5), waiting("y", 1, 1))
    assert put(lab, x=5, y=1) == {"x": {"a": 2, "b": 2, "c": 1}, "y": {"c": 1}}


def test_what_does_not_fit_is_not_half_taken() -> None:
    free = bins({"a": 2, "b": 1})
    assert best_fit(free, 4, spread=True) is None
    assert best_fit(free, 3, spread=False) is None
    assert free.room == {"a": 2, "b": 1}
    assert best_fit(free, 3, spread=True) == {"a": 2, "b": 1}


def test_nodes_are_renamed_so_that_most_workers_stay() -> None:
    blank = {"x": {"a": 4}, "y": {"b": 3}, "z": {"b": 1}}
    now = {"x": {"b": 4}, "y": {"a": 3}}
    assert relabel(blank, now, [["a", "b"]]) == {"x": {"b": 4}, "y": {"a": 3}, "z": {"a": 1}}


def test_only_nodes_that_are_alike_change_names() -> None:
    blank, now = {"x": {"a": 4}}, {"x": {"b": 4}}
    assert relabel(blank, now, [["a"], ["b"]]) == {"x": {"a": 4}}


def test_who_keeps_its_count_keeps_its_place() -> None:
    lab = draw({"a": 4, "b": 4}, running("x", {"a": 1, "b": 1}, 1, 4, base={}, preemptible=True), waiting("y", 2, 2))
    assert put(lab, x=2, y=2) == {"x": {"a": 1, "b": 1}, "y": {"a": 2}}


def test_a_shrinking_job_draws_together() -> None:
    lab = draw({"a": 4, "b": 4}, running("x", {"a": 4, "b": 1}, 1, 8), waiting("y", 4, 4))
    assert put(lab, x=4, y=4) == {"x": {"a": 4}, "y": {"b": 4}}


def test_a_growing_job_that_may_be_stopped_moves_to_where_it_is_together() -> None:
    lab = draw({"a": 4, "b": 4}, running("x", {"a": 2}, 1, 4, base={}, preemptible=True), running("y", {"a": 2}))
    assert put(lab, x=4, y=2)["x"] == {"b": 4}
    fixed = draw({"a": 4, "b": 4}, running("x", {"a": 2}, 1, 4), running("y", {"a": 2}))
    assert put(fixed, x=4, y=2)["x"] == {"a": 2, "b": 2}


def test_small_jobs_move_together_for_a_large_one_that_is_out_of_place_otherwise() -> None:
    def small(id: str, on: Placement) -> Job:
        return running(id, on, 1, 2, base={}, preemptible=True)

    lab = draw({"a": 4, "b": 4}, small("x", {"a": 2}), small("y", {"b": 2}), waiting("z", 4, 4, spread=False))
    found = put(lab, x=2, y=2, z=4)
    assert found == {"x": {"b": 2}, "y": {"b": 2}, "z": {"a": 4}}
    rigid = draw({"a": 4, "b": 4}, running("x", {"a": 2}), running("y", {"b": 2}), waiting("z", 4, 4, spread=False))
    assert put(rigid, x=2, y=2, z=4) == {"x": {"a": 2}, "y": {"b": 2}}


def test_kinds_do_not_mix() -> None:
    lab = draw({"a": 2, "b": 4}, waiting("x", 2, 4))
    nodes = tuple(replace(node, kind={"a": "A100", "b": "T4"}[node.id]) for node in lab.nodes)
    lab = replace(lab, nodes=nodes)
    assert rearrange(lab, lab.jobs, {"x": 4}, {"x": "A100"}) == {"x": {"a": 2}}
    assert rearrange(lab, lab.jobs, {"x": 4}, {"x": "T4"}) == {"x": {"b": 4}}


def test_no_job_is_stopped_or_shrunk_when_no_other_gains() -> None:
    lab = draw({"a": 4}, running("x", {"a": 2}, preemptible=True), running("y", {"a": 2}, 1, 2), waiting("z", 4, 4))
    assert put(lab, x=0, y=1, z=4) == {"x": {"a": 2}, "y": {"a": 2}}


def test_a_job_moves_at_once_where_its_new_place_is_free() -> None:
    lab = draw({"a": 4, "b": 4}, running("x", {"a": 2}, 1, 4, base={}, preemptible=True))
    plan = carry_out(lab, lab.jobs, {"x": {"b": 4}}, {}, {})
    assert plan.target == {"x": {"b": 4}}
    held = draw({"a": 4, "b": 4}, running("x", {"a": 2}, 1, 4, base={}, preemptible=True), leaving={"b": 4})
    assert not carry_out(held, held.jobs, {"x": {"b": 4}}, {}, {}).target


def test_a_target_is_pursued_until_it_is_reached_and_then_for_its_time() -> None:
    lab = draw({"a": 4}, running("x", {"a": 4}, 1, 4), waiting("y", 2, 2))
    target = {"x": {"a": 2}, "y": {"a": 2}}
    state = remember(lab, target, {})
    assert recall(replace(lab, state=state, now=lab.now + 100), 60) == (target, {})
    assert recall(replace(lab, state=state, now=lab.now + 700), 60) is None
    there = draw({"a": 4}, running("x", {"a": 2}, 1, 4), running("y", {"a": 2}), state=state, now=lab.now + 100)
    there = replace(
        there,
        jobs=tuple(
            replace(job, min_gpus=old.min_gpus, max_gpus=old.max_gpus)
            for job, old in zip(there.jobs, lab.jobs, strict=True)
        ),
    )
    assert recall(there, 60) is None
    assert recall(there, 120) == (target, {})


def test_a_target_is_dropped_when_a_job_comes() -> None:
    lab = draw({"a": 4}, waiting("x"))
    state = remember(lab, {"x": {"a": 1}}, {})
    assert recall(draw({"a": 4}, waiting("x"), waiting("y"), state=state), 60) is None
    assert recall(draw({"a": 5}, waiting("x"), state=state), 60) is None


@given(snapshot=snapshots(), counts=st.lists(st.integers(0, 8), min_size=10, max_size=10))
def test_whatever_is_wanted_it_keeps_all_rules(snapshot: Snapshot, counts: list[int]) -> None:
    order = [job for job in snapshot.jobs if job.running or (job.waiting and not job.blocked)]
    wanted = {job.id: count for job, count in zip(order, counts, strict=False)}
    for limit in snapshot.limits:
        wanted = {id: count for id, count in wanted.items() if id not in limit.jobs}
    target = rearrange(snapshot, order, wanted)
    assert violations(snapshot, carry_out(snapshot, order, target, {}, {})) == []


@given(snapshot=snapshots(calm=True), counts=st.lists(st.integers(0, 8), min_size=10, max_size=10))
@example(random_snapshot(random.Random(14942837), 3, 5, calm=True), [0, 5, 1, 0, 0, 0, 0, 0, 0, 0])
def test_a_target_is_reached(snapshot: Snapshot, counts: list[int]) -> None:
    """Within as many cycles as GPUs take to be released.

    A job whose GPUs are not free yet may start on others that no job of the target has; the target then has those.
    """
    snapshot = replace(snapshot, limits=())
    wanted = {job.id: count for job, count in zip(snapshot.jobs, counts, strict=False)}
    target = rearrange(snapshot, snapshot.jobs, wanted)
    state, world = remember(snapshot, target, {}), World.of(snapshot)
    for _ in range(4):
        seen = world.snapshot()
        plan = carry_out(seen, seen.jobs, state["aim"], {}, state)
        state = dict(plan.state)
        world.carry_out(plan)
        world.release()
    reached = {job.id: dict(job.now_on) for job in world.jobs.values() if job.now_on}
    assert reached == {job: dict(where) for job, where in state["aim"].items()}
    assert reached.keys() == target.keys()


def test_unknown_nodes_have_no_room() -> None:
    assert Bins({}, {}).tightest(1, None, None) is None
    assert best_fit(Bins({"a": 2}, {"a": "T4"}), 1, spread=True, kind="A100") is None
    assert best_fit(Bins({"a": 2}, {"a": "T4"}), 1, spread=True, allowed=frozenset({"b"})) is None
