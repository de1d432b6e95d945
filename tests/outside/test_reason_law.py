"""Untrue sentences are found: those that contradict themselves, the job, its place, limits, or what is visibly free."""

from typing import Any

import pytest

from tests.outside.planted import START, act, job, record, repeated, waiting
from tests.outside.reason_law import every_reason_is_true

BUSY = {"n1": [9, 9, 9, 9], "n2": [9, 9, 9, 9]}
HALF = {"n1": [9, 9, 9, None], "n2": [9, 9, 9, None]}


def untrue(reason: str, holders: Any = None, acts: Any = (), others: Any = (), **fields: Any) -> list[str]:
    jobs = [waiting(1, reason, **fields), job(9), *others]
    made = record(jobs, polls=repeated(holders, jobs), acts=acts)
    return [found.text.partition(" (“")[0] for found in every_reason_is_true(made)]


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("It needs 3 GPUs at once and only 2 are free.", {"min_gpus": 3, "max_gpus": 3, "launcher": "torchrun"}),
        ("It needs 4 GPUs at once; the largest group of free ones is 1, on node n1.", {"min_gpus": 4, "max_gpus": 4}),
        ("It needs 9 GPUs at once, but the nodes it can run on have only 8.", {"min_gpus": 9, "max_gpus": 9}),
        (
            "2 jobs are ahead of it and it needs 4 GPUs at once and only 2 are free.",
            {"place": 3, "min_gpus": 4, "max_gpus": 4},
        ),
        ("3 GPUs are being given back by other jobs; then it starts.", {"min_gpus": 3, "max_gpus": 3}),
        ("Jobs of the premium tier are ahead of it, and jobs start strictly in order.", {}),
    ],
)
def test_true_sentences_are_let_be(reason: str, fields: dict[str, Any]) -> None:
    assert untrue(reason, HALF, **fields) == []


@pytest.mark.parametrize(
    ("reason", "fields", "why"),
    [
        (
            "It needs 5 GPUs at once and only 7 are free.",
            {"min_gpus": 5, "max_gpus": 8},
            "enough is free: it needs 5 of 7",
        ),
        ("It needs 1 GPU at once and only 16 are free.", {}, "enough is free: it needs 1 of 16"),
        (
            "It needs 2 GPUs at once; the largest group of free ones is 3, on node n1.",
            {"min_gpus": 2, "max_gpus": 2},
            "enough is free together: it needs 2 of 3",
        ),
        (
            "It needs 4 GPUs on one node, but the largest node it can run on has only 4.",
            {"min_gpus": 4, "max_gpus": 4},
            "enough is there: it needs 4 of 4",
        ),
        (
            "It needs 3 GPUs at once and only 1 is free.",
            {"min_gpus": 2, "max_gpus": 2},
            "it does not need so many: it asked for 2 to 2",
        ),
        ("4 jobs are ahead of it and all 8 GPUs are in use.", {"place": 2}, "not as many are ahead: it names 4"),
    ],
)
def test_a_sentence_contradicts_itself_or_its_job(reason: str, fields: dict[str, Any], why: str) -> None:
    assert why in untrue(reason, BUSY, **fields)


def test_limits_that_are_named_are_those_in_force() -> None:
    reached = "The limit of 4 GPUs for alice is reached: 3 are in use and it needs 2."
    fields = {"min_gpus": 2, "max_gpus": 2}
    four = act("limit", START - 60, who="alice", value=4)
    assert untrue(reached, BUSY, [four], **fields) == []
    assert untrue(reached, BUSY, [], **fields) == ["that is not the limit of alice: it is [None]"]
    changed = [four, act("limit", START - 30, who="alice", value=8)]
    assert untrue(reached, BUSY, changed, **fields) == ["that is not the limit of alice: it is [8]"]
    within = "The limit of 4 GPUs for alice is reached: 1 is in use and it needs 2."
    assert untrue(within, BUSY, [four], **fields) == ["the limit is not reached: 1 and 2 are within 4"]
    own = "It needs 2 GPUs, but the limit for alice is 4: submit it with fewer, or ask an admin."
    assert untrue(own, BUSY, [four], **fields) == ["its own limit lets it start: 2 are within 4"]


@pytest.mark.parametrize(
    ("reason", "fields", "why"),
    [
        ("All 8 GPUs are in use.", {}, "some are not in use"),
        ("It has booked 1 GPU for now, but others have not given them back yet.", {}, "enough are free"),
        ("It needs 5 GPUs at once and only 4 are free.", {"min_gpus": 5, "max_gpus": 5}, "fewer are free"),
        (
            "It needs 4 GPUs at once; the largest group of free ones is 3, on node n1.",
            {"min_gpus": 4, "max_gpus": 4},
            "fewer are free there",
        ),
    ],
)
def test_a_sentence_contradicts_what_everybody_can_see(reason: str, fields: dict[str, Any], why: str) -> None:
    assert [text.partition(":")[0] for text in untrue(reason, HALF, **fields)] == [why]


def test_what_is_kept_for_a_higher_tier_is_as_good_as_in_use() -> None:
    lacking = "It needs 4 GPUs at once; the largest group of free ones is 1, on node n1."
    higher = waiting(2, lacking, tier="premium", min_gpus=4, max_gpus=4)
    assert untrue("All 8 GPUs are in use.", HALF, others=[higher], place=2) == []


def test_nothing_is_compared_with_what_changes_meanwhile() -> None:
    jobs = [waiting(1, "All 8 GPUs are in use."), job(9)]
    polls = [
        each for one, other in zip(repeated(BUSY, jobs), repeated(HALF, jobs), strict=True) for each in (one, other)
    ][::3]
    assert not list(every_reason_is_true(record(jobs, polls=polls)))
