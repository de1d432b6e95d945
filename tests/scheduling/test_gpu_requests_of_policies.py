"""Laws of every policy in labs with several kinds of GPUs, where jobs do not accept all of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.gpu_requests import accepts
from scheduling.simulate import Submission, lasts, simulate
from scheduling.simulate.compare import parse_cluster
from scheduling.toolkit.resources import gpus_when_empty
from scheduling.types import GpuRequest, Job, Node, Plan, Reservation, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots, with_demands, with_gpu_requests
from tests.scheduling.worlds import NOW, DecidedPolicy, World, reaches_stable_plan, running, waiting

EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


def added_gpus(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[Job, list[Node], list[Node]]]:
    """Yield each job with the nodes on which it gets GPUs, and those on which it has some then."""
    nodes = {node.id: node for node in snapshot.nodes}
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        more = [nodes[node] for node, gpus in target.items() if gpus > job.now_on.get(node, 0)]
        yield job, more, [nodes[node] for node, gpus in target.items() if gpus]


def assert_requests_are_met(snapshot: Snapshot, plan: Plan) -> None:
    for job, more, there in added_gpus(snapshot, plan):
        request = job.gpu_request
        assert all(node.gpu_memory_mib >= request.memory_mib for node in more)
        assert not request.kinds or {node.kind for node in more} <= set(request.kinds)
        assert job.max_gpus == 1 or not any(node.parts_of_gpus for node in more)
        if more and request.same_kind:
            assert len({node.kind for node in there}) == 1
        if more and not job.spread:
            assert len({node.machine for node in there}) == 1


@EVERY
@MANY
@given(snapshot=snapshots(), seed=st.integers(0, 2**32))
def test_no_job_gets_a_gpu_that_it_does_not_accept(key: str, snapshot: Snapshot, seed: int) -> None:
    snapshot = with_gpu_requests(snapshot, seed)
    plan = decide(quick_policy(key), snapshot)
    assert violations(snapshot, plan) == []
    assert_requests_are_met(snapshot, plan)
    left_out = {job.id for job in snapshot.jobs if job.waiting and not plan.target.get(job.id)}
    assert set(plan.reasons) == left_out == set(reasons_of(plan))


@EVERY
@settings(max_examples=max(10, EXAMPLES // 3), deadline=None)
@given(snapshot=snapshots(), seed=st.integers(0, 2**32))
def test_requests_are_met_beside_reservations_and_demands(key: str, snapshot: Snapshot, seed: int) -> None:
    snapshot = with_gpu_requests(with_demands(snapshot, seed), seed)
    node = snapshot.nodes[seed % len(snapshot.nodes)]
    lesson = Reservation("lesson", node.id, max(1, node.total), NOW + 60, NOW + 3600, frozenset({"alice"}))
    snapshot = replace(snapshot, reservations=(lesson,))
    plan = decide(quick_policy(key), snapshot)
    assert violations(snapshot, plan) == []
    assert_requests_are_met(snapshot, plan)


@EVERY
@MANY
@given(snapshot=snapshots(calm=True), seed=st.integers(0, 2**32))
def test_an_unchanged_world_with_requests_comes_to_rest(key: str, snapshot: Snapshot, seed: int) -> None:
    world = World.of(with_gpu_requests(snapshot, seed))
    assert reaches_stable_plan(world, DecidedPolicy(quick_policy(key)), cycles=30)


@EVERY
@MANY
@given(snapshot=snapshots(), seed=st.integers(0, 2**32))
def test_a_job_alone_starts_where_one_kind_has_enough_gpus_for_it(key: str, snapshot: Snapshot, seed: int) -> None:
    snapshot = with_gpu_requests(with_demands(snapshot, seed) if seed % 2 else snapshot, seed)
    job = next((job for job in snapshot.jobs if job.waiting and not job.blocked), waiting("a", 2, 4))
    empty: dict[str, Any] = {
        "leaving": 0,
        "extra_millicpus": 0,
        "extra_memory_mib": 0,
        "leaving_millicpus": 0,
        "leaving_memory_mib": 0,
    }
    nodes = tuple(replace(node, free=node.total, open=True, **empty) for node in snapshot.nodes)
    by_kind: dict[str, list[int]] = {}
    for node in nodes:
        if accepts(job, node) and (job.nodes is None or node.id in job.nodes):
            by_kind.setdefault(node.kind, []).append(gpus_when_empty(node, job))
    assume(any((sum(totals) if job.spread else max(totals)) >= job.min_gpus for totals in by_kind.values()))
    alone = replace(snapshot, nodes=nodes, jobs=(job,), limits=(), state={})
    plan = decide(registry.build(key, {}), alone)
    assert sum(plan.target.get(job.id, {}).values()) >= job.min_gpus, plan.reasons


def pool(id: str, total: int, free: int, kind: str, **values: Any) -> Node:
    return Node(id, id, total, free, 0, True, kind, **values)


@EVERY
@pytest.mark.parametrize("demand", [{"memory_mib_per_gpu": 90_000}, {"millicpus_per_gpu": 12_000}])
def test_the_one_kind_is_one_with_enough_processors_and_memory_for_each_gpu(key: str, demand: dict[str, int]) -> None:
    small = {"gpu_memory_mib": 16_000, "millicpus_per_gpu": 4_000, "memory_mib_per_gpu": 16_000}
    large = {"gpu_memory_mib": 40_000, "millicpus_per_gpu": 16_000, "memory_mib_per_gpu": 128_000}
    nodes = (pool("small", 8, 8, "T4", **small), pool("large", 3, 3, "A100", **large))
    job = waiting("job", 3, 3, gpu_request=GpuRequest(same_kind=True), **demand)
    plan = decide(quick_policy(key), Snapshot(NOW, nodes, (job,), (), {}))
    assert plan.target.get("job") == {"large": 3}, plan.reasons


@EVERY
def test_gpus_that_are_kept_for_another_job_do_not_confine_a_job_to_their_kind(key: str) -> None:
    nodes = (pool("a", 6, 3, "T4", gpu_memory_mib=16_000), pool("b", 2, 2, "A100", gpu_memory_mib=40_000))
    jobs = (
        running("holds", {"a": 3}, preemptible=False, submitted_at=0.0, started_at=NOW - 60, longest_seconds=9_000.0),
        waiting("overdue", 6, 6, submitted_at=1.0, gpu_request=GpuRequest(kinds=("T4",)), longest_seconds=9_000.0),
        waiting("any kind", 2, 2, submitted_at=NOW - 5, gpu_request=GpuRequest(same_kind=True), owner="bob"),
    )
    plan = decide(quick_policy(key), Snapshot(NOW, nodes, jobs, (), {}, patience_seconds=600.0))
    assert plan.target.get("any kind") == {"b": 2}, plan.reasons
    assert not plan.target.get("overdue") and "b" not in plan.kept


@EVERY
@settings(max_examples=max(5, EXAMPLES // 20), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_simulations_give_no_job_a_smaller_gpu(key: str, seed: int) -> None:
    cluster = parse_cluster("2x4:T4/15+1x4:A100/40+1x2:A100 80GB/80")
    requests = [GpuRequest(), GpuRequest(16_384), GpuRequest(60_000), GpuRequest(0, ("T4",)), GpuRequest(0, (), True)]
    jobs = [
        waiting(str(n), 1 + (seed >> n) % 2, 2, submitted_at=60.0 * n, gpu_request=requests[(seed // 7**n) % 5])
        for n in range(12)
    ]
    seen: list[tuple[Snapshot, Plan]] = []
    result = simulate(
        quick_policy(key),
        cluster,
        [Submission(job, lasts(600.0, 1)) for job in jobs],
        on_turn=lambda snapshot, plan: seen.append((snapshot, plan)),
    )
    assert {node.gpu_memory_mib for node in cluster} == {15 * 1024, 40 * 1024, 80 * 1024}
    for snapshot, plan in seen:
        assert_requests_are_met(snapshot, plan)
    assert len(result.jobs) == len(jobs) and all(each.ended_at is not None for each in result.jobs)
