from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings

from scheduling import registry, tiers
from scheduling.check import violations
from scheduling.decide import decide
from scheduling.policies.elastic_fifo import ElasticFifo
from scheduling.policies.fifo import Fifo
from scheduling.toolkit import reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.plan_builder import build_plan
from scheduling.toolkit.target_plan import carry_out
from scheduling.types import Job, Limit, Plan, Policy, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, quick_policy, snapshots
from tests.scheduling.worlds import draw, running, sizes, waiting

FIFO = Fifo(strict=False)
EVERY = pytest.mark.parametrize("key", registry.POLICIES)
MANY = settings(max_examples=EXAMPLES, deadline=None)


def plan(snapshot: Snapshot) -> Plan:
    return decide(FIFO, snapshot)


def test_premium_goes_before_standard_whoever_came_first() -> None:
    assert sizes(plan(draw({"a": 2}, waiting("1", 2), waiting("2", 2, tier="premium")))) == {"2": 2}


class NewestFirst:
    """Stops the running jobs that can be stopped for the waiting ones, all with as much as they ask for."""

    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        order = sorted(snapshot.jobs, key=lambda job: (job.running and job.preemptible, job.queue_key))
        new = {job.id: job.max_gpus for job in order if not (job.running and job.preemptible)}
        return self.carry_out(snapshot, order, new)

    def carry_out(self, snapshot: Snapshot, order: list[Job], new: dict[str, int]) -> Plan:
        return build_plan(snapshot, order, new)


class Towards(NewestFirst):
    """The same, as a policy does that goes to its aim over several cycles."""

    def carry_out(self, snapshot: Snapshot, order: list[Job], new: dict[str, int]) -> Plan:
        room = Capacity(replace(snapshot, nodes=tuple(replace(node, free=node.total) for node in snapshot.nodes)))
        aim = {job.id: where for job in order if job.id in new and (where := room.fit(job, new[job.id]))}
        return carry_out(snapshot, order, aim, {}, {})


@pytest.mark.parametrize("policy", [NewestFirst(), Towards()], ids=["at once", "over cycles"])
def test_what_is_free_of_gpus_meant_for_a_job_is_not_for_lower_tiers(policy: Policy) -> None:
    """A standard job is to have one GPU that is free and one that another standard job gives back first."""
    lab = draw({"a": 2}, running("old", {"a": 1}, preemptible=True), waiting("new", 2), waiting("low", 1, tier="basic"))
    done = tiers.plan(policy, lab)
    assert sizes(done) == {}
    assert violations(lab, done) == []


def test_premium_stops_the_basic_job_that_loses_least() -> None:
    lab = draw(
        {"a": 4},
        running("1", {"a": 2}, tier="basic", preemptible=True, lost_gpu_seconds_if_stopped=900.0),
        running("2", {"a": 2}, tier="basic", preemptible=True, lost_gpu_seconds_if_stopped=60.0),
        waiting("3", 2, tier="premium"),
    )
    done = plan(lab)
    assert sizes(done) == {"1": 2}
    assert reasons_of(done) == {"3": "2 GPUs are being given back by other jobs; then it starts."}


def test_elastic_jobs_below_give_before_any_is_stopped() -> None:
    lab = draw(
        {"a": 4},
        running("1", {"a": 2}, tier="basic", preemptible=True),
        running("2", {"a": 2}, 1, 4),
        waiting("3", 1, tier="premium"),
    )
    assert sizes(plan(lab)) == {"1": 2, "2": 1}


def test_no_job_is_disturbed_while_enough_is_free_or_being_released() -> None:
    basic = running("1", {"a": 2}, tier="basic", preemptible=True)
    assert sizes(plan(draw({"a": 4}, basic, waiting("2", 2, tier="premium")))) == {"1": 2, "2": 2}
    assert sizes(plan(draw({"a": 4}, basic, waiting("2", 2, tier="premium"), leaving={"a": 2}))) == {"1": 2}


def test_what_is_on_its_way_to_premium_is_not_for_standard() -> None:
    lab = draw({"a": 4}, running("1", {"a": 2}), waiting("2", 2, tier="premium"), waiting("3", 1), leaving={"a": 1})
    done = plan(lab)
    assert sizes(done) == {"1": 2}
    assert "2" in done.reasons and "3" in done.reasons


def test_an_opportunistic_job_fills_what_others_leave_and_goes_first() -> None:
    spare = {"opportunistic": True, "preemptible": True}
    assert sizes(plan(draw({"a": 2}, waiting("1", 1, **spare), waiting("2", 1)))) == {"1": 1, "2": 1}
    assert sizes(plan(draw({"a": 2}, running("1", {"a": 2}, **spare), waiting("2", 1)))) == {}


def test_beyond_a_soft_limit_jobs_run_on_what_is_left_and_go_first() -> None:
    soft = (Limit("alice", 2, frozenset({"1", "2"}), soft=True),)
    one, two = running("1", {"a": 2}, preemptible=True), waiting("2", 2, preemptible=True)
    assert sizes(plan(draw({"a": 4}, one, two, limits=soft))) == {"1": 2, "2": 2}
    beyond = running("2", {"a": 2}, preemptible=True)
    assert sizes(plan(draw({"a": 4}, one, beyond, waiting("3", 2, owner="bob"), limits=soft))) == {"1": 2}


def test_a_strict_policy_lets_no_lower_job_pass_that_could_not_make_room_again() -> None:
    lab = draw({"a": 4}, running("1", {"a": 2}), waiting("2", 4, tier="premium"), waiting("3", 1))
    done = decide(Fifo(strict=True), lab)
    assert sizes(done) == {"1": 2}
    assert reasons_of(done)["3"] == "Jobs of the premium tier are ahead of it, and jobs start strictly in order."


def test_a_strict_policy_lets_an_elastic_job_pass_only_if_it_can_be_stopped() -> None:
    """It never releases its minimum, and the queue waits for all of it."""
    line, below = waiting("2", 4), {"tier": "basic", "elastic": True}
    for policy in (Fifo(strict=True), ElasticFifo(strict=True)):
        lab = draw({"a": 4}, running("1", {"a": 2}), line, waiting("3", 1, 2, **below))
        assert sizes(decide(policy, lab)) == {"1": 2}
        lab = draw({"a": 4}, running("1", {"a": 2}), line, waiting("3", 1, 2, **below, preemptible=True))
        assert set(sizes(decide(policy, lab))) == {"1", "3"}


def test_with_one_layer_the_plan_is_the_policy_s_own() -> None:
    lab = draw({"a": 4}, running("1", {"a": 1}, 1, 4), waiting("2", 2))
    assert plan(lab) == FIFO.plan(lab)


@given(snapshot=snapshots())
def test_each_layer_keeps_its_own_state(snapshot: Snapshot) -> None:
    lab = replace(snapshot, state={"wish": {}, tiers.OTHER_LAYERS_KEY: {"basic": {"wish": {}}}})
    assert violations(lab, decide(ElasticFifo(), lab)) == []


@EVERY
@MANY
@given(snapshot=snapshots())
def test_laws_of_tiers_no_plan_breaks_a_rule_and_each_waiting_job_has_a_reason(key: str, snapshot: Snapshot) -> None:
    done = decide(quick_policy(key), snapshot)
    assert violations(snapshot, done) == []
    left_out = {job.id for job in snapshot.jobs if job.waiting and not done.target.get(job.id)}
    assert set(done.reasons) == left_out


@pytest.mark.parametrize("policy", [Fifo(), Fifo(backfill=True), Fifo(size="least"), ElasticFifo(strict=True)], ids=str)
@MANY
@given(snapshot=snapshots())
def test_laws_of_tiers_a_strict_line_is_passed_only_by_jobs_that_can_be_stopped(
    policy: Policy, snapshot: Snapshot
) -> None:
    done = decide(policy, snapshot)
    depth = {id: tiers.LAYERS.index(layer) for id, layer in tiers.layer_by_job(snapshot).items()}
    capacity = Capacity(snapshot)
    line = [
        depth[job.id]
        for job in snapshot.jobs
        if job.waiting
        and not done.target.get(job.id)
        and not (reasons.impossible(job, capacity) or job.id in {id for limit in snapshot.limits for id in limit.jobs})
    ]
    for job in snapshot.jobs:
        if job.waiting and done.target.get(job.id) and line and depth[job.id] > min(line):
            assert job.preemptible, f"job {job.id} passes a higher tier and never makes room again"
