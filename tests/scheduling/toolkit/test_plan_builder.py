from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduling.check import violations
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.plan_builder import build_plan
from scheduling.types import Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import snapshots
from tests.scheduling.worlds import draw, running, sizes, waiting


def decide(snapshot: Snapshot, wanted: dict[str, int], order: str | None = None) -> Plan:
    known = {job.id: job for job in snapshot.jobs}
    ranked = [known[id] for id in order] if order else sorted(snapshot.jobs, key=lambda job: job.queue_key)
    return build_plan(snapshot, ranked, wanted)


def test_it_stops_a_preemptible_job_for_one_before_it() -> None:
    snapshot = draw({"a": 4}, running("1", {"a": 4}, preemptible=True), waiting("2", 4))
    plan = decide(snapshot, {"2": 4}, order="21")
    assert sizes(plan) == {}
    assert reasons_of(plan)["2"] == "4 GPUs are being given back by other jobs; then it starts."


def test_it_stops_no_job_without_need() -> None:
    snapshot = draw({"a": 2, "b": 2}, running("1", {"a": 1}, preemptible=True), waiting("2", 4, spread=False))
    assert sizes(decide(snapshot, {"2": 4}, order="21")) == {"1": 1}


def test_it_stops_no_more_than_it_takes() -> None:
    one, two = running("1", {"a": 1}, preemptible=True), running("2", {"a": 3}, preemptible=True)
    snapshot = draw({"a": 4}, one, two, waiting("3", 3))
    assert sizes(decide(snapshot, {"3": 3}, order="321")) == {"1": 1}


def test_a_job_that_is_to_have_none_spoils_nothing_for_those_behind_it() -> None:
    first, second = waiting("1", 1, 4, elastic=True), waiting("2", 1, 4, elastic=True)
    assert sizes(decide(draw({"a": 4}, first, second), {"2": 4}, order="12")) == {"2": 4}


def test_it_lets_a_job_that_cannot_stop_go_on() -> None:
    snapshot = draw({"a": 4}, running("1", {"a": 4}), waiting("2", 4))
    assert sizes(decide(snapshot, {"2": 4}, order="21")) == {"1": 4}


def test_it_resizes_elastic_jobs_in_place() -> None:
    snapshot = draw({"a": 4}, running("1", {"a": 3}, 1, 4), running("2", {"a": 1}, 1, 4))
    assert sizes(decide(snapshot, {"1": 1, "2": 3})) == {"1": 1, "2": 1}
    freed = draw({"a": 4}, running("1", {"a": 1}, 1, 4), running("2", {"a": 1}, 1, 4))
    assert sizes(decide(freed, {"1": 1, "2": 3})) == {"1": 1, "2": 3}


def test_an_elastic_job_starts_with_what_is_there() -> None:
    snapshot = draw({"a": 4}, running("1", {"a": 2}), waiting("2", 1, 4, elastic=True))
    assert sizes(decide(snapshot, {"2": 4})) == {"1": 2, "2": 2}


@given(snapshots(), st.data())
def test_whatever_is_wanted_the_plan_is_sound(snapshot: Snapshot, data: Any) -> None:
    order = data.draw(st.permutations(snapshot.jobs))
    wanted = {job.id: data.draw(st.integers(0, job.max_gpus + 1)) for job in snapshot.jobs}
    plan = build_plan(snapshot, order, wanted)
    assert violations(snapshot, plan) == []
    started = {job for job, where in plan.target.items() if sum(where.values())}
    assert {job.id for job in snapshot.jobs if job.waiting} <= started | set(plan.reasons)


def test_what_is_no_longer_reserved_leaves_no_trace() -> None:
    """Reasons of other jobs would name GPUs that are kept for nothing."""
    now = Capacity(draw({"a": 2, "b": 1}, waiting("x", 1, 1)))
    now.reserve({"a": 2})
    now.unreserve({"a": 1})
    assert (now.free["a"], now.kept, now.reserved) == (1, {"a": 1}, {"a": 1})
    now.unreserve({"a": 1})
    assert (now.free["a"], now.kept, now.reserved) == (2, {}, {})
