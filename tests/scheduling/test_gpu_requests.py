"""Which GPUs jobs get that do not accept all: kinds, memory, one kind for all ranks, and machines with several kinds."""

import json
from dataclasses import replace
from typing import Any

from scheduling import registry, wire
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.failures import GpusOfExcludedNode, GpusOfSeveralKinds, GpusOfSeveralNodes
from scheduling.gpu_requests import NoWholeMachine, OfRequestedGpus, accepts
from scheduling.toolkit.reasons import TooLarge
from scheduling.types import ANY_GPU, Curve, GpuRequest, Job, Node, Plan, Snapshot
from tests.scheduling.worlds import NOW, running, waiting

FIFO = registry.build("fifo", {})
BIG, A100 = GpuRequest(memory_mib=30_000), GpuRequest(kinds=("A100",))
ALIKE = GpuRequest(same_kind=True)


def node(id: str, kind: str, gpus: int, memory: int, **facts: Any) -> Node:
    return Node(id, id, gpus, facts.pop("free", gpus), kind=kind, gpu_memory_mib=memory, **facts)


def lab(*jobs: Job, nodes: tuple[Node, ...] | None = None) -> Snapshot:
    """Return a snapshot of two machines of two kinds, if nothing else is asked for; jobs come in the order of the list."""
    nodes = nodes or (node("a", "A100", 4, 40_960), node("t", "T4", 8, 15_360))
    jobs = tuple(replace(job, submitted_at=float(number)) for number, job in enumerate(jobs, 1))
    held = {each.id: sum(job.now_on.get(each.id, 0) for job in jobs) for each in nodes}
    nodes = tuple(replace(each, free=each.free - held[each.id]) for each in nodes)
    return Snapshot(NOW, nodes, jobs)


def targets(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    plan = decide(FIFO, snapshot)
    assert violations(snapshot, plan) == []
    return {job: dict(where) for job, where in plan.target.items() if where}


def test_a_job_gets_only_gpus_with_enough_memory_or_of_its_models() -> None:
    snapshot = lab(waiting("1", 2, gpu_request=BIG), waiting("2", 2, gpu_request=A100), waiting("3", 4))
    assert targets(snapshot) == {"1": {"a": 2}, "2": {"a": 2}, "3": {"t": 4}}


def test_its_reason_names_what_it_accepts_and_how_many_there_are() -> None:
    snapshot = lab(waiting("1", 4, gpu_request=BIG), waiting("2", 1, gpu_request=BIG))
    why = decide(FIFO, snapshot).reasons["2"]
    assert isinstance(why, OfRequestedGpus) and (why.memory_mib, why.accepted) == (30_000, 4)
    too_many = decide(FIFO, lab(waiting("1", 5, gpu_request=BIG))).reasons["1"]
    assert isinstance(too_many, OfRequestedGpus) and too_many.reason == TooLarge(5, 4, True)


def test_ranks_of_one_kind_start_where_most_gpus_of_one_kind_are_free() -> None:
    assert targets(lab(waiting("1", 2, 6, gpu_request=ALIKE))) == {"1": {"t": 6}}
    assert targets(lab(waiting("1", 9, gpu_request=ALIKE))) == {}
    assert targets(lab(waiting("1", 9))) == {"1": {"a": 1, "t": 8}}


def test_of_two_kinds_that_are_free_the_faster_is_chosen_then_the_one_with_less_memory() -> None:
    nodes = (node("a", "A100", 4, 40_960), node("t", "T4", 4, 15_360))
    assert targets(lab(waiting("1", 2, gpu_request=ALIKE), nodes=nodes)) == {"1": {"t": 2}}
    fast = Curve((1.0, 2.0), kinds={"T4": 0.2})
    assert targets(lab(waiting("1", 2, gpu_request=ALIKE, speed=fast), nodes=nodes)) == {"1": {"a": 2}}


def test_a_job_of_one_kind_grows_on_that_kind_only() -> None:
    grows = running("1", {"a": 2}, 2, 8, gpu_request=ALIKE, spread=True)
    elastic = registry.build("elastic_fifo", {"grow_after_seconds": 0})
    plan = decide(elastic, lab(grows))
    assert dict(plan.target["1"]) == {"a": 4}


def test_gpus_that_a_job_of_one_kind_waits_for_stay_kept() -> None:
    """The kind with the most GPUs, not the one with the most free: otherwise each release would change what is kept."""
    holder, first, second = running("1", {"t": 7}), waiting("2", 6, gpu_request=ALIKE), waiting("3", 1)
    nodes = (node("a", "A100", 4, 40_960), node("t", "T4", 8, 15_360))
    strict = decide(registry.build("fifo", {}), lab(holder, first, second, nodes=nodes))
    why = strict.reasons["2"]
    assert isinstance(why, OfRequestedGpus) and why.same_kind


def test_parts_of_gpus_are_for_jobs_of_one_gpu() -> None:
    parts = (node("m", "A100 MIG 1g.5gb", 7, 4_864, parts_of_gpus=True), node("t", "T4", 1, 15_360))
    snapshot = lab(waiting("1", 1), waiting("2", 1, 3), waiting("3", 2), nodes=parts)
    found = targets(snapshot)
    assert "3" not in found and "m" not in found.get("2", {})
    assert targets(lab(waiting("1", 1, gpu_request=GpuRequest(kinds=("A100 MIG 1g.5gb",))), nodes=parts)) == {
        "1": {"m": 1}
    }


MIXED = (node("5:A100", "A100", 2, 40_960, part_of="5"), node("5:T4", "T4", 2, 15_360, part_of="5"))


def test_a_plain_command_may_use_all_kinds_of_its_machine() -> None:
    command = waiting("1", 3, spread=False)
    snapshot = lab(command, nodes=(*MIXED, node("b", "T4", 2, 15_360)))
    assert targets(snapshot) == {"1": {"5:A100": 2, "5:T4": 1}}
    assert targets(lab(replace(command, gpu_request=ALIKE), nodes=MIXED)) == {}
    assert targets(lab(replace(command, gpu_request=BIG), nodes=MIXED)) == {}


def test_a_job_that_stays_on_its_machine_grows_onto_its_other_gpus() -> None:
    grows = running("1", {"5:T4": 1}, 1, 8, spread=False)
    nodes = (*MIXED, node("b", "T4", 4, 15_360))
    elastic = registry.build("elastic_fifo", {"grow_after_seconds": 0})
    assert dict(decide(elastic, lab(grows, nodes=nodes)).target["1"]) == {"5:A100": 2, "5:T4": 2}
    alike = replace(grows, gpu_request=ALIKE)
    assert dict(decide(elastic, lab(alike, nodes=nodes)).target["1"]) == {"5:T4": 2}


def test_a_job_that_fits_on_one_kind_of_its_machine_starts_there_though_it_could_use_more() -> None:
    nodes = (node("5:A100", "A100", 3, 40_960, part_of="5"), node("5:T4", "T4", 4, 15_360, part_of="5"))
    snapshot = lab(waiting("1", 4, 5, asked_gpus=4, spread=False, preemptible=True), nodes=nodes)
    assert dict(decide(registry.build("srjf", {}), snapshot).target["1"]) == {"5:T4": 4}


def test_a_machine_that_is_too_full_is_named_with_what_is_free() -> None:
    snapshot = lab(running("1", {"5:T4": 2}), waiting("2", 3, spread=False), nodes=MIXED)
    assert decide(FIFO, snapshot).reasons["2"] == NoWholeMachine(3, 2)


def test_gpus_that_others_start_on_in_this_cycle_are_not_given_twice() -> None:
    snapshot = lab(waiting("1", 2, spread=False), waiting("2", 3, spread=False), nodes=MIXED)
    plan = decide(FIFO, snapshot)
    assert violations(snapshot, plan) == [] and set(plan.target) == {"1"}


def test_the_check_refuses_what_a_policy_of_a_lab_may_do() -> None:
    big, alike, command = (
        waiting("1", 1, gpu_request=BIG),
        waiting("2", 2, gpu_request=ALIKE),
        waiting("3", 2, spread=False),
    )
    snapshot = lab(big, alike, command)
    assert violations(snapshot, Plan({"1": {"t": 1}})) == [GpusOfExcludedNode("1", "t")]
    assert violations(snapshot, Plan({"2": {"a": 1, "t": 1}})) == [GpusOfSeveralKinds("2")]
    assert violations(snapshot, Plan({"3": {"a": 1, "t": 1}})) == [GpusOfSeveralNodes("3")]
    mixed = lab(waiting("3", 2, spread=False), nodes=MIXED)
    assert violations(mixed, Plan({"3": {"5:A100": 1, "5:T4": 1}})) == []


def test_what_a_job_accepts_survives_a_recording() -> None:
    snapshot = lab(waiting("1", 1, gpu_request=GpuRequest(1, ("A100", "T4"), True)), waiting("2", 1), nodes=MIXED)
    assert wire.snapshot_from_json(json.loads(wire.snapshot_to_text(snapshot))) == snapshot


def test_a_recording_of_the_release_before_means_any_gpu() -> None:
    content = {"id": "1", "owner": "a", "submitted_at": 0.0, "min_gpus": 1, "max_gpus": 1}
    old = {
        "now": 0.0,
        "nodes": [{"id": "a", "name": "a", "total": 1, "free": 1}],
        "jobs": [content],
        "limits": [],
        "state": {},
    }
    snapshot = wire.snapshot_from_json(old)
    assert snapshot.jobs[0].gpu_request == ANY_GPU and accepts(snapshot.jobs[0], snapshot.nodes[0])
