"""What a plan means for each job, and how another plan differs from it."""

from dataclasses import replace
from typing import Any

import pytest

from scheduling.changes import changes, kind_of
from scheduling.messages import Text
from scheduling.policies.fifo import Fifo
from scheduling.replay import decide_again, differences
from scheduling.toolkit.reasons import NoneFree
from scheduling.types import Plan, Snapshot
from tests.scheduling.sentences import sentence_or_empty
from tests.scheduling.worlds import draw, running, waiting


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ({}, "preempted"),
        ({"a": 0}, "preempted"),
        ({"a": 2, "b": 1}, "goes on"),
        ({"a": 2}, "shrinks"),
        ({"a": 3, "b": 1}, "grows"),
        ({"a": 3}, "moves"),
        ({"b": 3}, "restarts"),
    ],
)
def test_what_happens_to_an_elastic_job_that_runs(target: dict[str, int], kind: str) -> None:
    job = running("1", {"a": 2, "b": 1}, 1, 4, base={"a": 1})
    lab = draw({"a": 4, "b": 4}, job)
    assert [change.kind for change in changes(lab, {"1": target}, {})] == [kind]


def test_a_job_that_is_not_elastic_restarts_when_its_gpus_change() -> None:
    assert kind_of(running("1", {"a": 2}, elastic=False), {"b": 2}) == "restarts"


def test_what_may_hurt_first_comes_first_and_jobs_that_stop_are_left_out() -> None:
    lab = draw(
        {"a": 4}, waiting("w"), waiting("s"), running("p", {"a": 1}), replace(running("x", {"a": 1}), stopping=True)
    )
    found = changes(lab, {"s": {"a": 1}}, {"w": Text("All are in use.")})
    assert [(change.job, change.kind, change.reason) for change in found] == [
        ("p", "preempted", None),
        ("s", "starts", None),
        ("w", "waits", Text("All are in use.")),
    ]


def test_plans_differ_in_gpus_batches_and_words() -> None:
    lab = draw({"a": 4}, waiting("1"), waiting("2"), waiting("3"))
    one = Plan({"1": {"a": 1}}, {"3": Text("Wait.")}, batches={"2": 32})
    other = Plan({"1": {"a": 0}, "2": {"a": 1}}, {"3": Text("Wait longer.")}, batches={"2": 64})
    assert {each.job: each.what for each in differences(lab, one, other)} == {
        "1": "1 on a -> no GPUs",
        "2": "no GPUs -> 1 on a; batch 32 -> 64",
        "3": "Wait. -> Wait longer.",
    }
    assert {each.job for each in differences(lab, one, other, compare_reasons=False)} == {"1", "2"}
    assert differences(lab, one, replace(one, target={"1": {"a": 1, "b": 0}})) == ()


class Broken:
    def plan(self, snapshot: Snapshot) -> Plan:
        raise ZeroDivisionError


class Greedy:
    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan({job.id: {"a": 99} for job in snapshot.jobs})


@pytest.mark.parametrize(
    ("policy", "why"), [(Broken(), "The policy failed: ZeroDivisionError"), (Greedy(), "The plan was refused: Job 1")]
)
def test_a_policy_that_fails_now_decides_nothing_again(policy: Any, why: str) -> None:
    lab = draw({"a": 4}, waiting("1"))
    found = decide_again(policy, lab, Plan({}))
    assert why in sentence_or_empty(found.wrong) and not found.same


def test_the_same_policy_decides_the_same() -> None:
    lab = draw({"a": 4}, waiting("1"), waiting("2", 4))
    assert decide_again(Fifo(), lab, Fifo().plan(lab)).same


def test_a_sentence_of_an_earlier_release_is_not_compared_with_a_reason() -> None:
    lab = draw({"a": 0}, waiting("1"))
    reason = NoneFree(0, 0, everywhere=True, kept=False)
    assert differences(lab, Plan({}, {"1": Text("All 0 GPUs are in use.")}), Plan({}, {"1": reason})) == ()
    assert differences(lab, Plan({}, {"1": reason}), Plan({}, {"1": Text("All 0 GPUs are in use.")}))
