"""Processors and memory beside GPUs: what fits, who goes first, and what the waiting ones read."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from scheduling import registry
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.failures import MoreThanFree
from scheduling.simulate import Options, Submission, lasts, simulate
from scheduling.toolkit import reasons, resources
from scheduling.toolkit.capacity import Capacity
from scheduling.types import Job, Node, Plan, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.worlds import NOW, World, running, waiting

GIB = 1024


def lab(*jobs: Job, gpus: int = 4, nodes: str = "a") -> Snapshot:
    """Return nodes with 4 GPUs, each with 4 processors and 16 GiB; jobs hold what they demand."""
    empty = {name: Node(name, name, gpus, gpus, 0, True, "", 0, 4000, 16 * GIB) for name in nodes}
    placed = {job.id: replace(job, submitted_at=job.submitted_at or 1.0 + n) for n, job in enumerate(jobs)}
    return World(empty, placed).snapshot()


def plan(snapshot: Snapshot, key: str = "fifo", **params: Any) -> Plan:
    done = decide(registry.build(key, params), snapshot)
    assert violations(snapshot, done) == []
    return done


def test_a_job_takes_as_many_gpus_as_its_memory_allows() -> None:
    capacity = Capacity(lab(waiting("x", 1, 4, memory_mib_per_gpu=24 * GIB), waiting("y", 1, 4)))
    big, usual = waiting("x", 1, 4, memory_mib_per_gpu=24 * GIB), waiting("y", 1, 4)
    assert capacity.best_fit(big, 4) == {"a": 2}
    capacity.give(big, {"a": 1})
    assert capacity.best_fit(usual, 4) == {"a": 2}, "the third free GPU has only 8 GiB left"
    assert capacity.best_fit(waiting("z", 1, 4, memory_mib_per_gpu=8 * GIB), 4) == {"a": 3}


def test_a_job_that_asks_for_less_leaves_more_to_others() -> None:
    done = plan(lab(waiting("small", 2, memory_mib_per_gpu=4 * GIB), waiting("big", 2, memory_mib_per_gpu=28 * GIB)))
    assert done.target == {"small": {"a": 2}, "big": {"a": 2}}


def test_usual_jobs_fit_wherever_a_gpu_is_free() -> None:
    done = plan(lab(running("r", {"a": 2}), waiting("x", 1, millicpus_per_gpu=5000), waiting("y", 1)))
    assert done.target == {"r": {"a": 2}, "x": {"a": 1}} and list(done.reasons) == ["y"]
    done = plan(lab(running("r", {"a": 2}), waiting("x", 1, millicpus_per_gpu=3000), waiting("y", 1)))
    assert done.target.keys() == {"r", "x", "y"}


def test_the_first_of_the_queue_waits_for_memory_and_holds_others_up_where_jobs_start_in_order() -> None:
    snapshot = lab(
        running("r", {"a": 1}, memory_mib_per_gpu=40 * GIB), waiting("x", 1, memory_mib_per_gpu=30 * GIB), waiting("y")
    )
    assert reasons_of(plan(snapshot)) == {
        "x": "It needs 1 GPU with 30 GiB of memory; node a has 3 GPUs free, but only 24 GiB of memory left.",
        "y": "1 job is ahead of it and jobs start strictly in order; the first waits for 1 GPU.",
    }
    assert plan(snapshot, strict=False).target == {"r": {"a": 1}, "y": {"a": 1}}


def test_what_no_node_can_give_is_impossible_and_what_is_possible_is_in_the_sentence() -> None:
    snapshot = lab(waiting("x", 2, memory_mib_per_gpu=2048 * GIB), waiting("y", 1), nodes="ab")
    done = plan(snapshot)
    assert done.target == {"y": {"a": 1}}
    assert reasons_of(done)["x"] == (
        "It asks for 2048 GiB of memory per GPU, which no node can give it for all its GPUs: ask for at most 64 GiB of memory."
    )
    alone = reasons.impossible(replace(snapshot.jobs[0], spread=False), Capacity(snapshot))
    assert alone == reasons.TooMuchPerGpu("memory", 2048 * GIB, 32 * GIB)


def test_gpus_remain_the_reason_where_they_are_too_few() -> None:
    done = plan(lab(running("r", {"a": 3}), waiting("x", 2, memory_mib_per_gpu=17 * GIB)))
    assert reasons_of(done) == {"x": "It needs 2 GPUs at once and only 1 is free."}


def test_jobs_are_stopped_for_memory_and_no_more_than_necessary() -> None:
    snapshot = lab(
        running("small", {"a": 1}, preemptible=True, owner="bob", submitted_at=1.0),
        running("big", {"a": 1}, memory_mib_per_gpu=40 * GIB, preemptible=True, owner="bob", submitted_at=2.0),
        waiting("x", 1, memory_mib_per_gpu=30 * GIB, owner="alice", submitted_at=3.0, tier="premium"),
    )
    done = plan(snapshot, "fifo")
    assert done.target == {"small": {"a": 1}}
    world = World.of(snapshot)
    world.carry_out(done)
    world.release()
    assert plan(world.snapshot(), "fifo").target["x"] == {"a": 1}


def test_a_growing_job_stops_where_memory_ends() -> None:
    grows = running("r", {"a": 1}, 1, 4, elastic=True, memory_mib_per_gpu=30 * GIB)
    done = plan(lab(grows), "elastic_fifo", up_to="most", grow_after_seconds=0)
    assert done.target == {"r": {"a": 2}}


def test_the_check_finds_too_much_memory() -> None:
    snapshot = lab(waiting("x", 1, memory_mib_per_gpu=40 * GIB), waiting("y", 1, memory_mib_per_gpu=30 * GIB))
    found = violations(snapshot, Plan({"x": {"a": 1}, "y": {"a": 1}}))
    assert found == [MoreThanFree("a", "memory", 64 * GIB, 70 * GIB)]


class CountsGpusOnly:
    """A lab's own policy that has never heard of memory."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        target = {job.id: dict(job.now_on) for job in snapshot.jobs if job.running}
        free = {node.id: node.free for node in snapshot.nodes}
        for job in snapshot.jobs:
            fits = [node for node, gpus in free.items() if gpus and (job.nodes is None or node in job.nodes)]
            if job.waiting and fits:
                target[job.id] = {fits[0]: 1}
                free[fits[0]] -= 1
        return Plan(target, {job.id: "It waits." for job in snapshot.jobs if job.id not in target})  # type: ignore[misc]


def test_a_policy_that_counts_gpus_only_gives_no_more_than_there_is() -> None:
    jobs = [waiting(name, 1, memory_mib_per_gpu=50 * GIB) for name in "xyz"]
    snapshot = lab(*jobs, waiting("usual", 1), nodes="ab")
    done = decide(CountsGpusOnly(), snapshot)
    assert violations(snapshot, done) == []
    assert done.target.keys() >= {"x", "y"} and "z" not in done.target
    assert reasons_of(done)["z"].startswith("It needs 1 GPU with 50 GiB of memory; node ")


@pytest.mark.parametrize("key", ["fifo", "elastic_fifo", "fair_share", "goodput", "ffdl", "pdors", "round_robin"])
def test_a_simulation_keeps_to_the_memory_and_all_jobs_end(key: str) -> None:
    node = Node("a", "a", 4, 4, 0, True, "", 0, 4000, 16 * GIB)
    jobs = [
        Submission(Job(str(n), "alice", 10.0 * n, 1, 1, memory_mib_per_gpu=40 * GIB if n < 2 else None), lasts(100, 1))
        for n in range(4)
    ]
    together = []

    def note(snapshot: Snapshot, done: Plan) -> None:
        together.append({"0", "1"} <= done.target.keys())
        assert violations(snapshot, done) == []

    result = simulate(registry.build(key, {}), [node], jobs, options=Options(release_seconds=5), on_turn=note)
    assert [row.outcome for row in result.jobs] == ["ended"] * 4 and not any(together)


def test_shares_that_are_unknown_limit_nothing() -> None:
    snapshot = lab(waiting("x", 4, memory_mib_per_gpu=900 * GIB))
    unknown = replace(snapshot, nodes=(Node("a", "a", 4, 4),), now=NOW)
    assert not resources.matter(unknown) and plan(unknown).target == {"x": {"a": 4}}
