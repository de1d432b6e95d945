"""PD-ORS: jobs book the cheapest GPUs over the coming hours, if their results are worth them."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.check import violations
from scheduling.optimise import booking
from scheduling.optimise.booking import Book, Market, ResultValue
from scheduling.policies.pdors import Pdors
from scheduling.types import Curve, Estimate, Limit, Node, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

SLOT = 600.0
NOW = 6_000.0
LINEAR = Curve(tuple(float(n) for n in range(1, 9)))


def slots(count: float) -> Estimate:
    return Estimate(count * SLOT)


def decide(snapshot: Snapshot, policy: Pdors | None = None) -> Plan:
    plan = (policy or Pdors()).plan(snapshot)
    assert violations(snapshot, plan) == []
    assert json.loads(json.dumps(plan.state, allow_nan=False)) == plan.state
    assert_sold_at_most_once(snapshot, plan)
    return plan


def assert_sold_at_most_once(snapshot: Snapshot, plan: Plan) -> None:
    sold: Counter[tuple[str, int]] = Counter()
    for runs in plan.state["book"].values():
        for first, last, where in runs:
            for slot in range(first, last + 1):
                sold.update({(node, slot): gpus for node, gpus in where.items()})
    total = {node.id: node.total for node in snapshot.nodes}
    assert all(gpus <= total[node] for (node, _), gpus in sold.items())


def booked(plan: Plan, job: str) -> list[tuple[int, int, dict[str, int]]]:
    """Slots counted from now."""
    return [(first - 10, last - 10, where) for first, last, where in plan.state["book"][job]]


def test_a_job_books_and_starts_at_once_where_all_is_free() -> None:
    plan = decide(draw({"a": 4}, waiting("x", 2, work=slots(3), speed=LINEAR), now=NOW))
    assert sizes(plan) == {"x": 2}
    assert booked(plan, "x") == [(0, 1, {"a": 2})]
    assert plan.again_at == NOW + SLOT


def test_a_job_that_must_wait_books_the_first_free_slot_and_has_it_as_its_reason() -> None:
    """Half the slots of the one who runs are over in six; whoever follows does not hold the GPUs idle meanwhile."""
    busy = running("busy", {"a": 2}, work=slots(12), speed=LINEAR)
    plan = decide(draw({"a": 2}, busy, waiting("x", 2, work=slots(2), speed=LINEAR), now=NOW))
    assert booked(plan, "busy")[0][1] == 6
    assert booked(plan, "x") == [(7, 7, {"a": 2})]
    assert reasons_of(plan)["x"] == "It has booked 2 GPUs from the slot that begins in about 70 minutes."


def cheap_one_in_a_busy_lab(**facts: Any) -> Snapshot:
    busy = running("busy", {"a": 1}, work=slots(500), weight=100.0)
    return draw({"a": 2}, busy, waiting("cheap", work=slots(40), weight=0.01, **facts), now=NOW)


def test_a_job_that_is_not_worth_its_price_waits_with_its_payoff_as_its_reason() -> None:
    lab = cheap_one_in_a_busy_lab()
    plan = decide(lab)
    assert sizes(plan) == {"busy": 1}
    worth, cost = plan.state["declined"]["cheap"]
    assert worth < cost
    assert reasons_of(plan)["cheap"] == (
        f"Not yet worth its price: its result is worth {worth:.3g} and the cheapest GPUs for it cost {cost:.3g}, "
        f"a payoff of {worth - cost:.3g}; it bids again in each slot of 10 minutes."
    )


def test_a_declined_job_bids_again_when_a_job_ends_or_a_slot_begins() -> None:
    lab = cheap_one_in_a_busy_lab()
    state = decide(lab).state
    same = decide(replace(lab, state=state, now=NOW + 60))
    assert sizes(same) == {"busy": 1}
    alone = replace(lab, jobs=lab.jobs[1:], nodes=(Node("a", "a", 2, 2),), state=state, now=NOW + 60)
    assert sizes(decide(alone)) == {"cheap": 1}


def test_what_an_early_end_leaves_is_sold_again() -> None:
    busy = running("busy", {"a": 2}, work=slots(12), speed=LINEAR)
    lab = draw({"a": 2}, busy, waiting("x", 2, work=slots(2), speed=LINEAR), now=NOW)
    plan = decide(lab)
    early = replace(lab, jobs=lab.jobs[1:], nodes=(Node("a", "a", 2, 2),), state=plan.state, now=NOW + 60)
    assert sizes(decide(early)) == {"x": 2}


def test_a_job_that_runs_longer_than_it_booked_keeps_what_it_has() -> None:
    """Its bookings are over, and another job is booked after it."""
    lab = draw({"a": 2}, running("long", {"a": 2}, work=slots(2)), waiting("x", 2, work=slots(2)), now=NOW)
    state = {"slot": 9, "book": {"long": [[8, 9, {"a": 2}]], "x": [[10, 11, {"a": 2}]]}, "declined": {}}
    plan = decide(replace(lab, state=state))
    assert sizes(plan) == {"long": 2}
    assert booked(plan, "long")[0][0] == 0
    assert booked(plan, "x")[0][0] > 0


def test_a_deadline_is_worth_more_than_an_early_result() -> None:
    """Both fit before it only one after the other; the one with the deadline came last."""
    easy = waiting("easy", work=slots(2))
    due = waiting("due", work=slots(2), deadline=NOW + 3 * SLOT)
    assert sizes(decide(draw({"a": 1}, easy, due, now=NOW))) == {"due": 1}


def test_a_job_that_suffers_from_distance_pays_more_to_be_on_one_node() -> None:
    """The emptier node has only two GPUs left, and two and two are slow together."""
    near = Curve((1.0, 2.0, 3.0, 4.0), apart=0.2)
    lab = draw(
        {"a": 4, "b": 4}, running("x", {"a": 4}, work=slots(2)), waiting("y", 4, work=slots(8), speed=near), now=NOW
    )
    assert booked(decide(lab), "y")[0][2] == {"b": 4}
    split = draw(
        {"a": 4, "b": 4}, running("x", {"a": 2}, work=slots(2)), running("z", {"b": 2}, work=slots(2)),
        waiting("y", 4, work=slots(8), speed=near), now=NOW,
    )  # fmt: skip
    first, _, where = booked(decide(split), "y")[0]
    assert first > 0 and list(where.values()) == [4]


def test_gpus_that_are_not_booked_are_lent_unless_switched_off() -> None:
    job = waiting("x", 1, 4, work=slots(100), speed=Curve((1.0, 1.1, 1.2, 1.3)), elastic=True)
    lab = draw({"a": 4}, job, now=NOW)
    booked_now = booked(decide(lab), "x")[0][2]["a"]
    assert booked_now < 4
    assert sizes(decide(lab)) == {"x": 4}
    assert sizes(decide(lab, Pdors(fill=False))) == {"x": booked_now}


def test_priority_is_worth_twice_as_much_for_each_step() -> None:
    assert Pdors().result_value(waiting("x", priority=3)).value == 8 * Pdors().result_value(waiting("x")).value


def test_rounding_books_like_the_exact_solver_and_the_same_each_time() -> None:
    lab = draw({"a": 2, "b": 3, "c": 1}, waiting("x", 5, work=slots(3)), now=NOW)
    exact, rounded = decide(lab), decide(lab, Pdors(solver="rounding"))
    assert sum(booked(exact, "x")[0][2].values()) == sum(booked(rounded, "x")[0][2].values()) == 5
    assert decide(lab, Pdors(solver="rounding")) == rounded


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_the_schedule_is_the_best_of_all(data: Any) -> None:
    """Every choice of sizes in three slots, by brute force, with the same prices and quanta."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes = [Node("a", "a", 3, 3), Node("b", "b", 2, 2)]
    book = Book(nodes, 10, 3)
    book.sold[:] = rng.integers(0, 3, book.sold.shape)
    speeds = np.cumsum(rng.uniform(0.2, 1.0, 3))
    job = waiting(
        "x", 1, 3, elastic=True, preemptible=bool(rng.integers(2)), submitted_at=NOW,
        speed=Curve(tuple(speeds / speeds[0])), work=slots(float(rng.uniform(0.5, 5.0))),
    )  # fmt: skip
    worth = ResultValue(
        float(rng.uniform(0.1, 3.0)), float(rng.uniform(0.0, 3.0)) / SLOT, float(rng.uniform(0.0, 3.0)) * SLOT
    )
    market = Market(book, NOW, SLOT, 0.1, 2.0, 6)
    assert market.bid(job, worth, 3).payoff == pytest.approx(_by_brute_force(market, job, worth))


def _cheapest(prices: Any, free: Any, size: int, nodes: str) -> float:
    every = (some for some in product(*(range(int(gpus) + 1) for gpus in free)) if sum(some) == size)
    fits = [some for some in every if nodes == "many" or max(some) == size]
    return min((float(np.dot(some, prices)) for some in fits), default=np.inf)


def _by_brute_force(market: Market, job: Any, worth: ResultValue) -> float:
    assert job.work and job.speed
    options = [
        (size, nodes)
        for nodes in ("one", "many")
        for size in booking._candidate_sizes(job, 3)
        if nodes == "one" or size > 1
    ]
    prices, free = market.book.prices(market.low, market.high), market.book.free
    work = max(min(job.work.value, 0.9 * max(job.speed.speeds) * 3 * SLOT), 1.0)
    late = (job.work.value - work) / max(job.speed.speeds[size - 1] for size, _ in options)
    quanta = max(6, int(np.ceil(2 * work / SLOT)))

    def cost_of(slot: int, option: tuple[int, str]) -> float:
        return _cheapest(prices[:, slot], free[:, slot], *option)

    def done_by(option: tuple[int, str]) -> int:
        return int(job.speed.speeds[option[0] - 1] * SLOT / (work / quanta) + 1e-9)

    goal = min(quanta, 3 * max(map(done_by, options)))
    best = -np.inf
    for choice in product([None, *options], repeat=3):
        cost, done = 0.0, 0
        for slot, option in enumerate(choice):
            if option is None:
                continue
            cost += cost_of(slot, option)
            done += done_by(option)
        used = [slot for slot, option in enumerate(choice) if option]
        gaps = bool(used) and len(used) != used[-1] - used[0] + 1
        if used and done >= goal > 0 and (job.preemptible or not gaps) and np.isfinite(cost):
            best = max(best, float(worth((used[-1] + 1) * SLOT + late)) - cost)
    return best


OPTIONS = [Pdors(), Pdors(fill=False), Pdors(trade=False), Pdors(solver="rounding", slot_seconds=60.0, horizon=20)]


@pytest.mark.parametrize("policy", OPTIONS, ids=str)
@settings(max_examples=max(10, EXAMPLES // 4), deadline=None)
@given(
    snapshot=snapshots(), calm=snapshots(calm=True), steps=st.lists(st.sampled_from([3.0, 400.0, 1300.0]), max_size=6)
)
def test_no_slot_is_sold_twice_whatever_happens(
    policy: Pdors, snapshot: Snapshot, calm: Snapshot, steps: list[float]
) -> None:
    decide(snapshot, policy)
    world = World.of(calm)
    for seconds in steps:
        seen = world.snapshot()
        world.carry_out(decide(seen, policy))
        world.release(1)
        world.now += seconds
        if len(world.jobs) > 3 and seconds > 1000:
            world.end(min(world.jobs))
    assert reaches_stable_plan(world, DecidedPolicy(policy), cycles=30)


def test_a_job_longer_than_the_horizon_starts_in_an_empty_lab() -> None:
    """It ends after the last slot that can be booked, and is worth less then; the lowest price allows for that."""
    long = waiting("x", 2, 6, elastic=False, asked_gpus=5, spread=False, work=slots(340), submitted_at=5.0)
    slow = replace(long, speed=Curve((1.0, 1.0, 1.5, 2.4, 3.4, 3.4)))
    assert sizes(decide(draw({"a": 1, "b": 4}, slow, now=NOW)))["x"] >= 2


def test_sizes_that_never_fit_do_not_make_the_steps_of_work_too_large_for_the_others() -> None:
    """Six GPUs would be thirteen times as fast as four, but the lab has five."""
    curve = Curve((0.1, 0.1, 0.1, 0.1, 0.1, 1.3))
    job = waiting("x", 4, 6, elastic=True, speed=curve, work=slots(150))
    assert sizes(decide(draw({"a": 5}, job, now=NOW)))["x"] >= 4


def test_the_reason_of_a_job_that_a_limit_holds_back_is_the_limit() -> None:
    limit = Limit("alice", 2, frozenset({"x", "y"}))
    lab = draw(
        {"a": 8}, running("x", {"a": 2}, work=slots(20)), waiting("y", 1, work=slots(2)), limits=(limit,), now=NOW
    )
    assert reasons_of(decide(lab))["y"] == "The limit of 2 GPUs for alice is reached: 2 are in use and it needs 1."
    both = draw({"a": 8}, waiting("x", 2, work=slots(2)), waiting("y", 2, work=slots(2)), limits=(limit,), now=NOW)
    (reason,) = reasons_of(decide(both)).values()
    assert reason.startswith("The limit of 2 GPUs for alice is reached")
