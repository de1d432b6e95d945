import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling import registry, tiers
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.policies.fifo import Fifo
from scheduling.types import Job, Plan, Reservation, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, NODE_NAMES, OWNERS, quick_policy, random_snapshot, snapshots
from tests.scheduling.worlds import NOW, DecidedPolicy, World, draw, reaches_stable_plan, running, sizes, waiting

HOUR = 3600.0


def reserved(snapshot: Snapshot, gpus: int, start: float, end: float, node: str = "a") -> Plan:
    course = Reservation("the course", node, gpus, NOW + start, NOW + end, frozenset({"bob"}))
    return decide(Fifo(strict=False), replace(snapshot, reservations=(course,)))


def test_what_is_reserved_now_is_for_its_owners() -> None:
    lab = draw({"a": 4}, waiting("1", 1), waiting("2", 1), waiting("3", 2, owner="bob"))
    done = reserved(lab, 3, -60, HOUR)
    assert sizes(done) == {"1": 1, "3": 2}
    assert "3 GPUs of node a are reserved for the course for another 60 minutes." in reasons_of(done)["2"]


def test_a_job_that_would_run_into_it_waits() -> None:
    lab = draw({"a": 4}, waiting("1", 2, longest_seconds=2 * HOUR), waiting("2", 2, longest_seconds=0.5 * HOUR))
    assert sizes(reserved(lab, 4, HOUR, 2 * HOUR)) == {"2": 2}


def test_a_job_that_can_stop_fills_the_time_before_it() -> None:
    lab = draw({"a": 4}, waiting("1", 4, preemptible=True))
    assert sizes(reserved(lab, 4, HOUR, 2 * HOUR)) == {"1": 4}


@pytest.mark.parametrize(
    ("facts", "starts"),
    [
        ({}, False),
        ({"longest_seconds": 2 * HOUR}, False),
        ({"longest_seconds": 0.5 * HOUR}, True),
        ({"preemptible": True}, True),
        ({"owner": "eve"}, True),
    ],
    ids=["no end", "ends too late", "ends in time", "can stop", "owns the next one, too"],
)
@pytest.mark.parametrize("gpus", [2, 1])
def test_a_job_in_its_own_reservation_does_not_run_into_the_next_one(
    facts: dict[str, Any], starts: bool, gpus: int
) -> None:
    """Bob has two GPUs for an hour. Then Eve has three, or two, for which one is left in addition to his, or two."""
    bob = Reservation("Bob's", "a", 2, NOW - 60, NOW + HOUR, frozenset({"bob", "eve"}))
    eve = Reservation("Eve's", "a", 1 + gpus, NOW + HOUR, NOW + 3 * HOUR, frozenset({"eve"}))
    busy = running("busy", {"a": 1}, owner="ann", longest_seconds=0.1 * HOUR, started_at=NOW - 60)
    lab = draw({"a": 4}, busy, waiting("1", 2, **{"owner": "bob", **facts}))
    done = decide(Fifo(strict=False), replace(lab, reservations=(bob, eve)))
    assert ("1" in sizes(done)) == (starts or gpus == 1)
    if "1" not in sizes(done):
        assert "reserved for Eve's in 60 minutes, before it would surely end." in reasons_of(done)["1"]


def test_when_it_begins_others_who_can_are_asked_to_leave() -> None:
    lab = draw({"a": 4}, running("1", {"a": 2}, preemptible=True), running("2", {"a": 2}), waiting("3", 2, owner="bob"))
    assert sizes(reserved(lab, 2, -1, HOUR)) == {"2": 2}


def test_elastic_jobs_give_only_what_is_reserved() -> None:
    lab = draw({"a": 4}, running("1", {"a": 4}, 1, 4))
    assert sizes(reserved(lab, 2, -1, HOUR)) == {"1": 2}


def test_jobs_of_a_lower_tier_make_room_before_higher_ones_are_stopped() -> None:
    stops: dict[str, Any] = {"preemptible": True, "lost_gpu_seconds_if_stopped": 0.0}
    spare = running("3", {"a": 1}, opportunistic=True, preemptible=True, lost_gpu_seconds_if_stopped=9e4)
    premium = running("1", {"a": 2}, tier="premium", **stops)
    basic = running("2", {"a": 1}, tier="basic", **stops)
    assert sizes(reserved(draw({"a": 4}, premium, basic, spare), 1, -1, HOUR)) == {"1": 2, "2": 1}
    assert sizes(reserved(draw({"a": 4}, premium, basic, spare), 2, -1, HOUR)) == {"1": 2}
    assert sizes(reserved(draw({"a": 4}, premium, basic, spare), 4, -1, HOUR)) == {}


def test_elastic_jobs_of_the_lowest_tier_shrink_first_and_all_of_them_before_any_is_stopped() -> None:
    premium = running("1", {"a": 3}, 1, 4, tier="premium", preemptible=True)
    basic = running("2", {"a": 3}, 1, 4, tier="basic", preemptible=True)
    fixed = running("3", {"a": 2}, opportunistic=True, preemptible=True)
    assert sizes(reserved(draw({"a": 8}, premium, basic, fixed), 2, -1, HOUR)) == {"1": 3, "2": 1, "3": 2}
    assert sizes(reserved(draw({"a": 8}, premium, basic, fixed), 4, -1, HOUR)) == {"1": 1, "2": 1, "3": 2}


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
    """The portal does not allow reservations of more GPUs than a node has, so such snapshots do not occur."""
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
    lab = random_snapshot(random.Random(seed), *size, calm=True)
    assert reaches_stable_plan(World.of(lab), DecidedPolicy(quick_policy(key), (item,)))


EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


@EVERY
@MANY
@given(snapshot=snapshots(), calendar=calendars)
def test_laws_of_reservations_no_job_starts_on_gpus_reserved_for_others(
    key: str, snapshot: Snapshot, calendar: list[Reservation]
) -> None:
    assume(fits(snapshot, calendar))
    lab = replace(snapshot, reservations=tuple(calendar))
    done = decide(quick_policy(key), lab)
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


@MANY
@given(snapshot=snapshots(), gpus=st.integers(1, 6), node=st.sampled_from(NODE_NAMES))
def test_laws_of_reservations_tiers_hold_when_one_begins(snapshot: Snapshot, gpus: int, node: str) -> None:
    """With no job waiting, under a policy that stops none by itself, all that changes is what the reservation needs."""
    lab = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.running))
    done = reserved(lab, gpus, -1, HOUR, node)
    assert violations(lab, done) == []
    place = next((each for each in lab.nodes if each.id == node), None)
    if place is None:
        return
    ours = sum(job.now_on.get(node, 0) for job in lab.jobs if job.owner == "bob")
    lacking = min(gpus, place.total) - ours - place.free - place.leaving
    depth = {id: tiers.LAYERS.index(layer) for id, layer in tiers.layer_by_job(lab).items()}
    others = [job for job in lab.jobs if job.owner != "bob" and node in job.now_on]
    for stopped in (job for job in others if not done.target.get(job.id)):
        lower = [job for job in others if job.preemptible and depth[job.id] > depth[stopped.id]]
        enough = sum(job.now_on[node] for job in lower) + sum(spare(job, node) for job in others if job not in lower)
        assert enough < lacking, f"job {stopped.id} is stopped where jobs of lower tiers could have made room"


def spare(job: Job, node: str) -> int:
    """GPUs of a node that it can give back without a restart."""
    outside = job.now_on[node] - job.base.get(node, 0)
    return max(0, min(job.gpus - job.min_gpus, outside)) if job.elastic else 0


@EVERY
@MANY
@given(snapshot=snapshots(calm=True), calendar=calendars)
def test_laws_of_reservations_an_unchanged_world_comes_to_rest(
    key: str, snapshot: Snapshot, calendar: list[Reservation]
) -> None:
    assume(fits(snapshot, calendar))
    policy = DecidedPolicy(quick_policy(key), tuple(calendar))
    assert reaches_stable_plan(World.of(snapshot), policy)
