"""A policy as a filter: what outside simulators ask, and what is answered."""

from typing import Any, ClassVar

import pytest

from scheduling import registry
from scheduling.simulate.filter import BadRequestError, Filter
from scheduling.types import Job, Plan, Snapshot


class Watch:
    """Gives nothing and remembers what it saw."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        self.seen.append(snapshot)
        return Plan({job.id: job.now_on for job in snapshot.jobs if job.now_on}, {}, {"turn": len(self.seen)})

    def job(self, id: str) -> Job:
        return next(job for job in self.seen[-1].jobs if job.id == id)


def job(id: str, minimum: int = 1, maximum: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "id": id, "submitted": 0, "asked_gpus": minimum, "min_gpus": minimum, "max_gpus": maximum, "batch": 128, "model": "bert",
        "served_gpu_s": 0, "restarts": 0, "remaining_fraction": None, "speedup": None, "now_on": {}, **more,
    }  # fmt: skip


def ask(now: float, *jobs: dict[str, Any], **gpus: int) -> dict[str, Any]:
    nodes = [{"id": id, "gpus": count} for id, count in (gpus or {"a": 4}).items()]
    return {"v": 1, "now": now, "nodes": nodes, "jobs": list(jobs)}


def policy(key: str, **params: Any) -> Filter:
    return Filter(registry.build(key, params))


def test_it_answers_with_gpus_per_node_and_leaves_out_who_waits() -> None:
    answer = policy("fifo").answer(ask(0, job("x", 3, 3), job("y", 2, 2)))
    assert answer == {"alloc": {"x": {"a": 3}}}


def test_what_it_takes_from_one_it_gives_to_another_in_the_same_answer() -> None:
    elastic = policy("elastic_fifo", grow_after_seconds=0)
    assert elastic.answer(ask(0, job("x", asked_gpus=4))) == {"alloc": {"x": {"a": 4}}}
    answer = elastic.answer(
        ask(60, job("x", asked_gpus=4, now_on={"a": 4}, served_gpu_s=240), job("y", 2, 2, submitted=50))
    )
    assert answer == {"alloc": {"x": {"a": 2}, "y": {"a": 2}}}


def test_a_rigid_job_may_be_stopped_for_another_one() -> None:
    tiresias = policy("tiresias", threshold=100.0, knob=0.0)
    tiresias.answer(ask(0, job("x", 4, 4)))
    answer = tiresias.answer(ask(60, job("x", 4, 4, now_on={"a": 4}, served_gpu_s=240), job("y", 4, 4, submitted=50)))
    assert answer == {"alloc": {"y": {"a": 4}}}


@pytest.mark.parametrize("key", registry.POLICIES)
def test_no_policy_exceeds_what_there_is_while_jobs_come_and_go(key: str) -> None:
    asked = policy(key)
    held: dict[str, dict[str, int]] = {}
    served: dict[str, float] = {}
    for turn in range(8):
        there = [n for n in range(turn + 3) if n >= turn - 2]
        jobs = []
        for n in there:
            here = held.get(str(n), {})
            served[str(n)] = served.get(str(n), 0.0) + 60 * sum(here.values())
            jobs.append(
                job(str(n), 1 + n % 2, 1 + n % 4 + n % 2, submitted=10.0 * n, served_gpu_s=served[str(n)], now_on=here,
                    remaining_fraction=None if n % 3 else 0.5, speedup=[1, 1.8, 2.4] if n % 2 else None)
            )  # fmt: skip
        held = asked.answer(ask(60.0 * turn, *jobs, a=4, b=2))["alloc"]
        used = {node: sum(where.get(node, 0) for where in held.values()) for node in ("a", "b")}
        assert used["a"] <= 4
        assert used["b"] <= 2
        for row in jobs:
            count = sum(held.get(row["id"], {}).values())
            assert count == 0 or row["min_gpus"] <= count <= row["max_gpus"]


def test_work_left_follows_from_what_was_done_for_the_part_that_is_gone() -> None:
    watch = Watch()
    asked = Filter(watch)
    asked.answer(ask(0, job("x", remaining_fraction=1.0, speedup=[1, 1.5])))
    assert watch.job("x").work is None
    asked.answer(ask(60, job("x", remaining_fraction=0.75, speedup=[1, 1.5], served_gpu_s=120, now_on={"a": 2})))
    seen = watch.job("x")
    # A minute on two GPUs is 90 s of work for a quarter of it.
    assert seen.work is not None
    assert (seen.work.value, seen.work.source) == (pytest.approx(270), "measured")
    assert (seen.run_seconds, seen.progress, seen.preemptible, dict(seen.base)) == (60, 0.25, True, {})


def test_lengths_are_learnt_from_jobs_of_the_model_that_ended() -> None:
    watch = Watch()
    asked = Filter(watch)
    asked.answer(ask(0, job("x", remaining_fraction=1.0)))
    asked.answer(ask(60, job("x", remaining_fraction=0.4, served_gpu_s=60, now_on={"a": 1})))
    asked.answer(ask(120, job("y"), job("z", model="other")))  # at that pace x was about to end
    known = watch.job("y").work
    assert known is not None
    assert (known.value, known.source) == (pytest.approx(100), "history")
    assert watch.job("z").work is None


def test_a_job_that_was_taken_away_teaches_nothing() -> None:
    watch = Watch()
    asked = Filter(watch)
    asked.answer(ask(0, job("x", remaining_fraction=1.0)))
    asked.answer(ask(60, job("x", remaining_fraction=0.9, served_gpu_s=60, now_on={"a": 1})))
    asked.answer(ask(120, job("y")))
    assert watch.job("y").work is None


def test_state_goes_from_line_to_line() -> None:
    watch = Watch()
    asked = Filter(watch)
    asked.answer(ask(0))
    asked.answer(ask(1))
    assert [snapshot.state for snapshot in watch.seen] == [{}, {"turn": 1}]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ([], "must be an object"),
        ({"v": 2, "now": 0, "nodes": [], "jobs": []}, "version 1"),
        ({"now": "soon", "nodes": [], "jobs": []}, "now must be a number"),
        ({"now": 0, "nodes": {}, "jobs": []}, "nodes must be a list"),
        ({"now": 0, "nodes": [{"gpus": 1}], "jobs": []}, "no id"),
        ({"now": 0, "nodes": [{"id": "a", "gpus": -1}], "jobs": []}, "whole number"),
        (ask(0, job("x"), job("x")), "twice"),
        (ask(0, job("x", 3, 2)), "min_gpus above max_gpus"),
        (ask(0, job("x", speedup=[])), "speedup"),
        (ask(0, job("x", speedup=[float("nan")])), "speedup"),
        (ask(0, job("x", now_on={"b": 1})), "which is not there"),
        (ask(0, job("x", now_on={"a": 5})), "has 4 GPUs"),
        (ask(-10), "must not go back"),
    ],
)
def test_an_invalid_request_is_refused_and_leaves_no_trace(request_: Any, message: str) -> None:
    watch = Watch()
    asked = Filter(watch)
    asked.answer(ask(0, job("x", now_on={"a": 1})))
    with pytest.raises(BadRequestError, match=message):
        asked.answer(request_)
    assert len(watch.seen) == 1
    assert asked.jobs.keys() == {"x"}
    assert asked.answer(ask(1, job("x", now_on={"a": 1}))) == {"alloc": {"x": {"a": 1}}}
