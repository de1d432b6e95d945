"""Elastic first come, first served: the minimum of each job in order, then the rest evenly."""

from dataclasses import replace

from scheduling.check import violations
from scheduling.policies.elastic_fifo import ElasticFifo
from scheduling.types import Curve, Limit, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import World, draw, running, sizes, waiting

AT_ONCE = ElasticFifo(grow_after_seconds=0)


def decide(snapshot: Snapshot, policy: ElasticFifo = AT_ONCE) -> Plan:
    plan = policy.plan(snapshot)
    assert violations(snapshot, plan) == []
    return plan


def test_minima_go_first_in_order_then_the_rest_one_at_a_time() -> None:
    lab = draw({"a": 6}, waiting("x", 1, 4, elastic=True), waiting("y", 2, 4, elastic=True))
    assert sizes(decide(lab)) == {"x": 3, "y": 3}
    assert sizes(decide(draw({"a": 2}, waiting("x", 1, 4, elastic=True), waiting("y", 2, 4)))) == {"x": 2}


def test_a_lone_job_gets_its_maximum_and_no_more() -> None:
    assert sizes(decide(draw({"a": 8}, waiting("x", 1, 3)))) == {"x": 3}


def test_the_second_job_gets_at_least_its_minimum() -> None:
    """Voda's second phase could give fewer than the minimum: (1..4), (4..4) on 4 GPUs gave the second one 1."""
    lab = draw({"a": 4}, waiting("x", 1, 4, elastic=True), waiting("y", 4, 4))
    plan = decide(lab)
    assert sizes(plan) == {"x": 4}
    assert reasons_of(plan) == {"y": "All 4 GPUs are in use."}


def test_a_job_of_fixed_size_never_exceeds_it() -> None:
    """Voda's elastic shortest-job-first gave (2..2) four GPUs."""
    assert sizes(decide(draw({"a": 6}, waiting("x", 2, 2), waiting("y", 1, 4)))) == {"x": 2, "y": 4}


def test_a_newcomer_makes_running_jobs_shrink_and_waits_for_what_they_give_back() -> None:
    lab = draw({"a": 4}, running("x", {"a": 4}, 1, 4), waiting("y", 1, 1))
    plan = decide(lab)
    assert sizes(plan) == {"x": 3}
    assert reasons_of(plan) == {"y": "1 GPU is being given back by other jobs; then it starts."}


def test_what_is_leaving_is_not_asked_for_twice() -> None:
    lab = draw({"a": 4}, running("x", {"a": 3}, 1, 4), waiting("y", 1, 1), leaving={"a": 1})
    plan = decide(lab)
    assert sizes(plan) == {"x": 3}
    assert "being given back" in reasons_of(plan)["y"]


def test_a_job_whose_gpus_went_to_another_waits_for_no_more_than_is_given_back() -> None:
    lab = draw({"a": 3, "b": 2}, waiting("x", 2, 2), waiting("y", 3, 3), leaving={"b": 1})  # x was to go on b
    plan = decide(lab)
    assert plan.target == {"x": {"a": 2}}
    assert reasons_of(plan) == {"y": "1 GPU is being given back by other jobs; then it starts."}


def test_a_newcomer_shares_evenly_with_who_came_before() -> None:
    world = World.of(draw({"a": 4}, running("x", {"a": 4}, 1, 4), waiting("y", 1, 4, elastic=True)))
    for _ in range(6):
        world.run_cycle(AT_ONCE)
        world.release(1)
    assert {id: job.gpus for id, job in world.jobs.items()} == {"x": 2, "y": 2}


def test_an_elastic_new_job_starts_with_its_minimum_and_grows_as_more_becomes_free() -> None:
    world = World.of(draw({"a": 4}, running("x", {"a": 4}, 1, 4), waiting("y", 1, 4, elastic=True)))
    world.run_cycle(AT_ONCE)
    world.release(1)
    world.run_cycle(AT_ONCE)
    assert world.jobs["y"].gpus == 1
    world.release()
    world.run_cycle(AT_ONCE)
    assert world.jobs["y"].gpus == 2


def test_a_newcomer_of_fixed_size_waits_for_all_it_will_ever_get() -> None:
    """It keeps what it starts with, so starting too early would cost it its share."""
    world = World.of(draw({"a": 4}, running("x", {"a": 4}, 1, 4), waiting("y", 1, 2)))
    world.run_cycle(AT_ONCE)
    world.release(1)
    world.run_cycle(AT_ONCE)
    assert world.jobs["y"].gpus == 0
    world.release()
    world.run_cycle(AT_ONCE)
    assert world.jobs["y"].gpus == 2


def test_the_base_is_never_asked_back() -> None:
    lab = draw({"a": 3}, running("x", {"a": 3}, 1, 3, base={"a": 2}), waiting("y", 1, 1), waiting("z", 1, 1))
    plan = decide(lab)
    assert sizes(plan) == {"x": 2}
    assert reasons_of(plan)["z"] == "All 3 GPUs are in use."


def test_the_richest_gives_first_and_among_equals_the_youngest() -> None:
    lab = draw(
        {"a": 8}, running("x", {"a": 3}, 1, 4), running("y", {"a": 2}, 1, 4), running("z", {"a": 3}, 1, 4),
        waiting("n", 1, 1),
    )  # fmt: skip
    assert sizes(decide(lab)) == {"x": 3, "y": 2, "z": 2}


def test_completions_let_the_least_served_grow_oldest_first() -> None:
    lab = draw({"a": 4}, running("x", {"a": 1}, 1, 4), running("y", {"a": 1}, 1, 4))
    assert sizes(decide(lab)) == {"x": 2, "y": 2}
    odd = draw({"a": 3}, running("x", {"a": 1}, 1, 4), running("y", {"a": 1}, 1, 4))
    assert sizes(decide(odd)) == {"x": 2, "y": 1}


def test_a_running_job_grows_only_after_gpus_were_left_over_for_a_while() -> None:
    policy = ElasticFifo(grow_after_seconds=10)
    world = World.of(draw({"a": 4}, running("x", {"a": 2}, 1, 4)))
    assert not world.run_cycle(policy, seconds=6)
    assert not world.run_cycle(policy, seconds=6)
    assert world.run_cycle(policy, seconds=6)
    assert world.jobs["x"].gpus == 4
    assert not world.run_cycle(policy)
    assert world.state == {"wish": {}}


def test_a_stream_of_short_jobs_does_not_make_a_running_job_breathe() -> None:
    """Between them the GPU is free for three seconds: too short to be worth two interruptions."""
    policy = ElasticFifo(grow_after_seconds=10)
    world = World.of(draw({"a": 2}, running("x", {"a": 1}, 1, 2)))
    for number in range(5):
        world.run_cycle(policy)
        world.submit(waiting(f"short{number}"))
        world.run_cycle(policy)
        assert world.jobs["x"].gpus == 1
        assert world.jobs[f"short{number}"].gpus == 1
        world.end(f"short{number}")
        world.state = {"wish": {}}


def test_a_job_that_lost_a_part_is_topped_up_even_at_the_cost_of_richer_ones() -> None:
    """Its minimum is more than it holds: a node was lost."""
    hurt = replace(running("x", {"a": 1}, 1, 4), min_gpus=2)
    plan = decide(draw({"a": 4}, hurt, running("y", {"a": 3}, 1, 4)))
    assert sizes(plan) == {"x": 1, "y": 2}


def test_it_prefers_the_node_where_a_new_job_fits_without_shrinking_another() -> None:
    lab = draw({"a": 2, "b": 2}, running("x", {"a": 2}, 1, 2), waiting("y", 1, 1))
    plan = decide(lab)
    assert dict(plan.target["y"]) == {"b": 1}
    assert dict(plan.target["x"]) == {"a": 2}


def test_it_makes_room_on_one_node_for_a_job_that_cannot_spread() -> None:
    lab = draw(
        {"a": 2, "b": 2}, running("x", {"a": 2}, 1, 2), running("y", {"b": 1}, 1, 1), waiting("z", 2, 2, spread=False)
    )
    plan = decide(lab)
    assert sizes(plan) == {"x": 2, "y": 1}  # not for a job that would still not fit
    assert reasons_of(plan)["z"] == "It needs 2 GPUs at once and only 1 is free."


def test_growing_prefers_the_nodes_a_job_is_on() -> None:
    plan = decide(draw({"a": 3, "b": 8}, running("x", {"a": 2}, 1, 4)))
    assert dict(plan.target["x"]) == {"a": 3, "b": 1}


def test_a_job_that_cannot_spread_grows_at_home_only() -> None:
    plan = decide(draw({"a": 3, "b": 8}, running("x", {"a": 2}, 1, 4, spread=False)))
    assert dict(plan.target["x"]) == {"a": 3}


def test_a_limit_is_shared_by_shrinking_ones_own_jobs() -> None:
    limit = Limit("alice", 4, frozenset({"x", "y"}))
    lab = draw({"a": 8}, running("x", {"a": 4}, 1, 4), waiting("y", 1, 1), limits=(limit,))
    plan = decide(lab)
    assert sizes(plan) == {"x": 3}
    world = World.of(lab)
    world.run_cycle(AT_ONCE)
    world.release()
    world.run_cycle(AT_ONCE)
    assert world.jobs["y"].gpus == 1


def test_a_limit_keeps_a_running_job_from_growing() -> None:
    limit = Limit("alice", 2, frozenset({"x"}))
    assert sizes(decide(draw({"a": 8}, running("x", {"a": 2}, 1, 4), limits=(limit,)))) == {"x": 2}


def test_priority_goes_before_age() -> None:
    lab = draw({"a": 1}, waiting("old"), waiting("urgent", priority=5))
    assert sizes(decide(lab)) == {"urgent": 1}


def test_strictly_in_order_a_large_job_at_the_head_is_not_overtaken() -> None:
    lab = draw({"a": 4}, running("x", {"a": 2}), waiting("large", 4), waiting("small", 1))
    assert sizes(decide(lab)) == {"x": 2, "small": 1}
    plan = decide(lab, ElasticFifo(strict=True))
    assert sizes(plan) == {"x": 2}
    assert (
        reasons_of(plan)["small"]
        == "1 job is ahead of it and jobs start strictly in order; the first waits for 4 GPUs."
    )


def test_free_gpus_kept_for_a_job_ahead_are_not_given_away() -> None:
    lab = draw({"a": 4}, running("x", {"a": 3}, 1, 3), waiting("large", 3, 3), waiting("small", 1, 1))
    plan = decide(lab)
    assert sizes(plan) == {"x": 1}
    assert reasons_of(plan)["large"] == "2 GPUs are being given back by other jobs; then it starts."
    assert reasons_of(plan)["small"] == "All 4 GPUs are in use or kept for jobs ahead of it."


def test_a_closed_node_keeps_its_jobs_and_gets_no_more() -> None:
    lab = draw({"a": 4, "b": 1}, running("x", {"a": 1}, 1, 4, spread=False), waiting("y", 1, 4), closed=("a",))
    assert sizes(decide(lab)) == {"x": 1, "y": 1}


def test_jobs_grow_up_to_the_size_asked_for_or_to_their_maximum() -> None:
    lab = draw({"a": 8}, running("x", {"a": 1}, 1, 8, asked_gpus=2), waiting("y", 1, 8, elastic=True, asked_gpus=3))
    assert sizes(decide(lab)) == {"x": 2, "y": 3}
    assert sizes(decide(lab, ElasticFifo(grow_after_seconds=0, up_to="most"))) == {"x": 4, "y": 4}


def test_a_job_does_not_grow_where_its_measured_speed_gains_nothing() -> None:
    flat = running("flat", {"a": 1}, 1, 8, speed=Curve((1.0, 1.9, 1.93, 1.95)))
    lab = draw({"a": 8}, flat, running("unknown", {"a": 1}, 1, 8))
    assert sizes(decide(lab)) == {"flat": 2, "unknown": 6}
    assert sizes(decide(lab, ElasticFifo(grow_after_seconds=0, least_gain=0.0))) == {"flat": 4, "unknown": 4}


def test_a_dent_in_the_curve_does_not_stop_growth() -> None:
    """The third GPU is of another node and gains nothing alone; the fourth makes up for it."""
    dented = running("x", {"a": 2}, 1, 4, speed=Curve((1.0, 1.9, 1.8, 3.5)))
    assert sizes(decide(draw({"a": 4}, dented))) == {"x": 4}


def test_a_job_past_the_size_it_should_grow_to_gives_only_when_others_wait() -> None:
    large = running("large", {"a": 4}, 1, 4, asked_gpus=2)
    assert sizes(decide(draw({"a": 4}, large))) == {"large": 4}
    assert sizes(decide(draw({"a": 4}, large, waiting("y", 1)))) == {"large": 3}
