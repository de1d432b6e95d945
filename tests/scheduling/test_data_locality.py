"""Where data is counts between equal nodes only, under any policy, and changes nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling.data_locality import prefer_cached_data
from scheduling.decide import decide
from scheduling.registry import POLICIES
from scheduling.types import GpuRequest, Plan, Reservation, Snapshot
from tests.scheduling.worlds import NOW, draw, running, waiting


def planned(snapshot: Snapshot, **target: Mapping[str, int]) -> dict[str, Any]:
    return {job: dict(where) for job, where in prefer_cached_data(snapshot, Plan(target)).target.items()}


def test_a_job_starts_where_its_data_is_among_equal_nodes() -> None:
    snapshot = draw({"a": 4, "b": 4, "c": 4}, waiting("1", 2, cached_bytes={"c": 10, "b": 5}))
    assert planned(snapshot, **{"1": {"a": 2}}) == {"1": {"c": 2}}
    assert planned(snapshot, **{"1": {"b": 2}}) == {"1": {"c": 2}}
    assert planned(snapshot, **{"1": {"c": 2}}) == {"1": {"c": 2}}


def test_a_tighter_fit_goes_first() -> None:
    snapshot = draw({"a": 2, "b": 4}, waiting("1", 2, cached_bytes={"b": 10}))
    assert planned(snapshot, **{"1": {"a": 2}}) == {"1": {"a": 2}}


def test_two_jobs_with_the_same_data_do_not_both_get_its_place() -> None:
    data = {"c": 10}
    snapshot = draw({"a": 2, "b": 2, "c": 2}, waiting("1", 2, cached_bytes=data), waiting("2", 2, cached_bytes=data))
    assert planned(snapshot, **{"1": {"a": 2}, "2": {"b": 2}}) == {"1": {"c": 2}, "2": {"b": 2}}


def test_a_job_on_several_nodes_moves_each_part_to_a_node_that_is_as_free() -> None:
    snapshot = draw({"a": 4, "b": 4, "c": 4, "d": 2}, waiting("1", 6, cached_bytes={"c": 10, "d": 9}))
    assert planned(snapshot, **{"1": {"a": 4, "b": 2}}) == {"1": {"c": 4, "b": 2}}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": frozenset({"a"})},
        {"millicpus_per_gpu": 4000},
        {"gpu_request": GpuRequest(memory_mib=40_000)},
        {"stopping": True},
        {"cached_bytes": {}},
        {"cached_bytes": {"gone": 10}},
    ],
)
def test_jobs_that_cannot_or_need_not_move_stay(change: dict[str, Any]) -> None:
    job = waiting("1", 2, **{"cached_bytes": {"b": 10}, **change})
    assert planned(draw({"a": 4, "b": 4}, job), **{"1": {"a": 2}}) == {"1": {"a": 2}}


def test_running_jobs_closed_nodes_other_kinds_and_reservations_are_left_alone() -> None:
    job = waiting("1", 2, cached_bytes={"b": 10})
    stays = {"1": {"a": 2}}
    assert planned(draw({"a": 4, "b": 4}, running("1", {"a": 2}, cached_bytes={"b": 10})), **stays) == stays
    assert planned(draw({"a": 4, "b": 4}, job, closed=("b",)), **stays) == stays
    snapshot = draw({"a": 4, "b": 4}, job)
    other = replace(snapshot, nodes=(snapshot.nodes[0], replace(snapshot.nodes[1], kind="A100")))
    assert planned(other, **stays) == stays
    reserved = Reservation("course", "b", 2, NOW + 10, NOW + 20, frozenset({"bob"}))
    assert planned(replace(snapshot, reservations=(reserved,)), **stays) == stays
    kept = Plan({"1": {"a": 2}}, kept={"b": 1})
    assert prefer_cached_data(snapshot, kept).target == stays


def test_a_plan_without_data_is_the_same_object() -> None:
    plan = Plan({"1": {"a": 2}})
    assert prefer_cached_data(draw({"a": 4}, waiting("1", 2)), plan) is plan


@pytest.mark.parametrize("key", sorted(POLICIES))
def test_it_holds_for_each_policy(key: str) -> None:
    policy = POLICIES[key]()
    snapshot = draw({"a": 2, "b": 2, "c": 2}, waiting("1", 2))
    place = next(iter(decide(policy, snapshot).target.get("1", {})), None)
    if place is None:
        pytest.skip("it starts the job later")
    elsewhere = next(node for node in "cba" if node != place)
    job = replace(snapshot.jobs[0], cached_bytes={elsewhere: 1})
    assert dict(decide(policy, replace(snapshot, jobs=(job,))).target["1"]) == {elsewhere: 2}
