import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.policies.fifo import Fifo
from scheduling.types import Plan, Reservation, Snapshot
from tests.scheduling.strategies import EXAMPLES, NODE_NAMES, OWNERS, built, snapshots, world
from tests.scheduling.worlds import NOW, Decided, World, comes_to_rest, draw, running, sizes, waiting

HOUR = 3600.0


def reserved(snapshot: Snapshot, gpus: int, start: float, end: float, node: str = "a") -> Plan:
    course = Reservation("the course", node, gpus, NOW + start, NOW + end, frozenset({"bob"}))
    return decide(Fifo(strict=False), replace(snapshot, reservations=(course,)))


def test_what_is_reserved_now_is_for_its_owners() -> None:
    lab = draw({"a": 4}, waiting("1", 1), waiting("2", 1), waiting("3", 2, owner="bob"))
    done = reserved(lab, 3, -60, HOUR)
    assert sizes(done) == {"1": 1, "3": 2}
    assert "3 GPUs of node a are reserved for the course for another 60 minutes." in done.reasons["2"]


def test_a_job_that_would_run_into_it_waits() -> None:
    lab = draw({"a": 4}, waiting("1", 2, longest_seconds=2 * HOUR), waiting("2", 2, longest_seconds=0.5 * HOUR))
    assert sizes(reserved(lab, 4, HOUR, 2 * HOUR)) == {"2": 2}


def test_a_job_that_can_stop_fills_the_time_before_it() -> None:
    lab = draw({"a": 4}, waiting("1", 4, preemptible=True))
    assert sizes(reserved(lab, 4, HOUR, 2 * HOUR)) == {"1": 4}


def test_when_it_begins_others_who_can_are_asked_to_leave() -> None:
    lab = draw({"a": 4}, running("1", {"a": 2}, preemptible=True), running("2", {"a": 2}), waiting("3", 2, owner="bob"))
    assert sizes(reserved(lab, 2, -1, HOUR)) == {"2": 2}


def test_elastic_jobs_give_only_what_is_reserved() -> None:
    lab = draw({"a": 4}, running("1", {"a": 4}, 1, 4))
    assert sizes(reserved(lab, 2, -1, HOUR)) == {"1": 2}


def test_owners_use_both_parts_of_the_node() -> None:
    lab = draw({"a": 4}, waiting("1", 4, owner="bob"))
    assert sizes(reserved(lab, 2, -1, HOUR)) == {"1": 4}


def test_once_over_it_is_forgotten() -> None:
    lab = draw({"a": 4}, waiting("1", 4))
    assert sizes(reserved(lab, 4, -HOUR, -1)) == {"1": 4}


calendars = st.lists(
    st.builds(
        lambda node, gpus, start, length, owner: Reservation(
            f"{owner}'s", node, gpus, NOW + start, NOW + start + length, frozenset({owner})
        ),
        node=st.sampled_from(NODE_NAMES),
        gpus=st.integers(1, 3),
        start=st.sampled_from([-100.0, -1.0, 60.0, 1e4]),
        length=st.sampled_from([50.0, 1e5]),
        owner=st.sampled_from(OWNERS),
    ),
    max_size=2,
)


def fits(snapshot: Snapshot, calendar: list[Reservation]) -> bool:
    """The portal lets nobody reserve more of a node than it has, so no calendar like that is ever seen."""
    return all(sum(item.gpus for item in calendar if item.node == node.id) <= node.total for node in snapshot.nodes)


@pytest.mark.parametrize(
    ("key", "seed", "size", "item"),
    [
        ("goodput", 4, (4, 3), Reservation("course", "d", 1, NOW + 60, NOW + 110, frozenset({"alice"}))),
        ("ffdl", 7347007, (2, 2), Reservation("course", "a", 2, NOW - 100, NOW + 99_900, frozenset({"alice"}))),
    ],
)
def test_a_policy_finds_jobs_on_the_parts_where_it_put_them(
    key: str, seed: int, size: tuple[int, int], item: Reservation
) -> None:
    """Found by the law below: they were shown on other GPUs of the node, and moved to and fro for ever."""
    lab = world(random.Random(seed), *size, calm=True)
    assert comes_to_rest(World.of(lab), Decided(built(key), (item,)))


EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


@EVERY
@MANY
@given(snapshot=snapshots(), calendar=calendars)
def test_laws_of_reservations_nobody_starts_on_what_is_reserved_for_others(
    key: str, snapshot: Snapshot, calendar: list[Reservation]
) -> None:
    assume(fits(snapshot, calendar))
    lab = replace(snapshot, reservations=tuple(calendar))
    done = decide(built(key), lab)
    assert violations(lab, done) == []
    left_out = {job.id for job in lab.jobs if job.waiting and not done.target.get(job.id)}
    assert set(done.reasons) == left_out
    totals = {node.id: node.total for node in lab.nodes}
    jobs = {job.id: job for job in lab.jobs}
    active = [item for item in calendar if item.start <= NOW < item.end and item.node in totals]
    if len(active) != 1:
        return
    item = active[0]
    others = {id: job for id, job in jobs.items() if job.owner not in item.owners}
    held = sum(job.now_on.get(item.node, 0) for job in others.values() if job.running)
    after = sum(done.target.get(id, {}).get(item.node, 0) for id in others)
    assert after <= max(held, totals[item.node] - item.gpus)


@EVERY
@MANY
@given(snapshot=snapshots(calm=True), calendar=calendars)
def test_laws_of_reservations_an_unchanged_world_comes_to_rest(
    key: str, snapshot: Snapshot, calendar: list[Reservation]
) -> None:
    assume(fits(snapshot, calendar))
    policy = Decided(built(key), tuple(calendar))
    assert comes_to_rest(World.of(snapshot), policy)
