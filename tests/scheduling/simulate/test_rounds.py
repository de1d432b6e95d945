"""Rounds: what is decided at multiples of a minute only, as in published simulators."""

from dataclasses import replace
from typing import Any, ClassVar

from scheduling import registry
from scheduling.simulate import Options, Plain, Result, Submission, lasts, linear, settle, simulate
from scheduling.simulate.rounds import place_emptiest_first
from scheduling.types import Job, Node, Plan, Snapshot
from tests.scheduling.worlds import draw, running, sizes, waiting


def nodes(**gpus: int) -> list[Node]:
    return [Node(name, name, count, count) for name, count in gpus.items()]


def rigid(id: str, at: float, gpus: int, seconds: float, **facts: Any) -> Submission:
    return Submission(Job(id, "alice", at, gpus, gpus, **facts), lasts(seconds, gpus))


def run(key: str, cluster: list[Node], *submissions: Submission, **params: Any) -> Result:
    return simulate(registry.build(key, params), cluster, submissions, options=Options(round_seconds=60))


def test_jobs_start_at_rounds_and_end_in_between() -> None:
    result = run("fifo", nodes(a=1), rigid("x", 10, 1, 100), rigid("y", 60, 1, 5))
    assert [(row.first_started_at, row.ended_at) for row in result.jobs] == [(60, 160), (180, 185)]


def test_a_stopped_job_makes_room_within_the_round_and_pays_when_it_comes_back() -> None:
    old = Submission(Job("old", "alice", 0, 1, 1, preemptible=True, restart_seconds=30), lasts(300, 1))
    result = run("tiresias", nodes(a=1), old, rigid("new", 100, 1, 50), threshold=60.0, knob=0.0)
    by_id = {row.id: row for row in result.jobs}
    assert (by_id["new"].first_started_at, by_id["new"].ended_at) == (120, 170)
    assert by_id["old"].ended_at == 180 + 30 + 180
    assert (by_id["old"].preemptions, by_id["old"].restarts, by_id["old"].lost_gpu_seconds) == (1, 1, 30)


class Swaps:
    """Stops all jobs in one cycle and starts them again in the next."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        if not snapshot.state.get("stopped"):
            return Plan({}, {}, {"stopped": True})
        return Plan({job.id: {"a": 1} for job in snapshot.jobs}, {}, snapshot.state)


def test_who_is_back_where_it_was_when_the_policy_rests_pays_nothing() -> None:
    lab = draw({"a": 1}, running("x", {"a": 1}, preemptible=True))
    plan, after = settle(Swaps(), lab)
    assert after.jobs == lab.jobs
    assert sizes(plan) == {"x": 1}


def test_an_elastic_job_may_change_all_its_gpus_at_the_price_of_a_resize() -> None:
    wide = Submission(Job("x", "alice", 0, 1, 2, elastic=True, resize_seconds=20), Plain(300, linear(2)))
    result = run("elastic_fifo", nodes(a=2), wide, rigid("y", 60, 1, 30), grow_after_seconds=0)
    by_id = {row.id: row for row in result.jobs}
    assert by_id["y"].ended_at == 90
    # 120 s of work by 60; on one GPU from 80 to 120; on two again from 140.
    assert by_id["x"].ended_at == 140 + (300 - 120 - 40) / 2
    assert by_id["x"].resizes == 2


def test_newcomers_go_to_the_emptiest_node_the_larger_first_and_who_keeps_his_count_stays() -> None:
    lab = draw({"a": 4, "b": 4, "c": 4}, running("x", {"b": 1}), waiting("small", 2), waiting("large", 6))
    plan = Plan({"x": {"c": 1}, "small": {"a": 2}, "large": {"b": 4, "a": 2}})
    jobs = [replace(job, asked_gpus=job.min_gpus) for job in lab.jobs]
    placed = place_emptiest_first(lab.nodes, jobs, plan.target, plan, True)
    assert placed == {"x": {"b": 1}, "large": {"a": 4, "c": 2}, "small": {"b": 2}}
    in_order = place_emptiest_first(lab.nodes, jobs, plan.target, plan, False)
    assert in_order == {"x": {"b": 1}, "small": {"a": 2}, "large": {"c": 4, "b": 2}}
