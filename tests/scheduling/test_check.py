"""The last look at a plan: each thing that must not be, drawn once."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from scheduling.check import violations
from scheduling.failures import GpusOfUnknownNodes, GpusOutOfRange, MoreGpusThanFree, PlanRefused, ReasonMissing
from scheduling.messages import Text, message_from
from scheduling.types import Limit, Placement, Plan, Snapshot
from tests.scheduling.sentences import sentence_or_empty
from tests.scheduling.worlds import draw, running, waiting

ELASTIC = running("x", {"a": 2}, 1, 4)
FIXED = running("x", {"a": 2})


@pytest.mark.parametrize(
    ("snapshot", "target", "sentence"),
    [
        (draw({"a": 4}, waiting("x", 2)), {"x": {"a": 1}}, "Job x is given 1 GPUs, but runs on 2 to 2."),
        (draw({"a": 4}, waiting("x", 1, 2)), {"x": {"a": 3}}, "Job x is given 3 GPUs, but runs on 1 to 2."),
        (draw({"a": 4}, waiting("x")), {"x": {"a": -1}}, "Job x is given a fraction of a GPU, or a negative number."),
        (draw({"a": 4}, waiting("x")), {"y": {"a": 1}}, "Job y is not in the snapshot."),
        (draw({"a": 4}, waiting("x")), {"x": {"z": 1}}, "Job x is given GPUs of unknown nodes: z."),
        (draw({"a": 1}, waiting("x"), waiting("y")), {"x": {"a": 1}, "y": {"a": 1}}, "Node a has 1 free GPUs, but 2"),
        (draw({"a": 2}, waiting("x"), leaving={"a": 2}), {"x": {"a": 1}}, "Node a has 0 free GPUs, but 1 are given."),
        (draw({"a": 1}, waiting("x"), closed=("a",)), {"x": {"a": 1}}, "Node a is not open for new work, but 1"),
        (draw({"a": 1}, waiting("x", nodes=frozenset())), {"x": {"a": 1}}, "Job x cannot run on node a"),
        (draw({"a": 1, "b": 1}, waiting("x", nodes=frozenset({"b"}))), {"x": {"a": 1}}, "Job x cannot run on node a"),
        (
            draw({"a": 1}, waiting("x", blocked=Text("No."))),
            {"x": {"a": 1}},
            "Job x cannot start now, but is given GPUs.",
        ),
        (draw({"a": 1}, waiting("x", stopping=True)), {"x": {"a": 1}}, "Job x is being stopped, but is given GPUs."),
        (draw({"a": 4}, FIXED), {"x": {"a": 2, "b": 0}}, "unknown nodes: b"),
        (draw({"a": 4}, running("x", {"a": 2}, 1, 4, elastic=False)), {"x": {"a": 3}}, "is not elastic"),
        (draw({"a": 4}, FIXED), {}, "Job x runs and cannot be stopped, but is given nothing."),
        (draw({"a": 4, "b": 4}, ELASTIC), {"x": {"b": 2}}, "Job x runs, but loses its base."),
        (draw({"a": 2, "b": 2}, waiting("x", 2, spread=False)), {"x": {"a": 1, "b": 1}}, "must be on one machine"),
        (
            draw({"a": 4}, waiting("x", 2), limits=(Limit("alice", 1, frozenset({"x"})),)),
            {"x": {"a": 2}},
            "The limit of 1 GPUs for alice is exceeded: 0 are held and 2 more given.",
        ),
        (
            draw({"a": 4}, running("x", {"a": 1}), waiting("y"), limits=(Limit("alice", 1, frozenset({"x", "y"})),)),
            {"x": {"a": 1}, "y": {"a": 1}},
            "The limit of 1 GPUs for alice is exceeded: 1 are held and 1 more given.",
        ),
        (
            draw({"a": 4}, waiting("x"), limits=(Limit("alice", 1, frozenset({"x"}), leaving=1),)),
            {"x": {"a": 1}},
            "The limit of 1 GPUs for alice is exceeded: 1 are held and 1 more given.",
        ),
    ],
)
def test_what_must_not_be_is_named(snapshot: Snapshot, target: Mapping[str, Placement], sentence: str) -> None:
    assert sentence in " ".join(map(sentence_or_empty, violations(snapshot, Plan(target))))


def test_a_job_may_not_keep_gpus_of_a_node_that_has_left() -> None:
    snapshot = draw({"a": 4}, running("x", {"b": 2}))
    assert violations(snapshot, Plan({"x": snapshot.jobs[0].now_on})) == [GpusOfUnknownNodes("x", ["b"])]


@pytest.mark.parametrize(
    ("snapshot", "target"),
    [
        (draw({"a": 4}, ELASTIC), {"x": {"a": 1}}),
        (draw({"a": 4}, ELASTIC), {"x": {"a": 4}}),
        (draw({"a": 4}, FIXED, closed=("a",)), {"x": {"a": 2}}),
        (draw({"a": 4}, running("x", {"a": 2}, preemptible=True)), {}),
        (draw({"a": 4}, FIXED, limits=(Limit("alice", 1, frozenset({"x"})),)), {"x": {"a": 2}}),
        (draw({"a": 4}, waiting("x", 2), limits=(Limit("alice", 1, frozenset({"x"}), soft=True),)), {"x": {"a": 2}}),
        (draw({"a": 4}, waiting("x", stopping=True), leaving={"a": 4}), {}),
    ],
)
def test_what_may_be_is_left_alone(snapshot: Snapshot, target: Mapping[str, Placement]) -> None:
    assert violations(snapshot, Plan(target)) == []


@pytest.mark.parametrize("reason", [None, "", Text(" "), 3])
def test_an_empty_reason_is_a_violation(reason: Any) -> None:
    plan = Plan({}, {"x": reason})
    assert violations(draw({"a": 0}, waiting("x")), plan) == [ReasonMissing("x")]


def test_numbers_that_json_does_not_know_are_reported() -> None:
    plan = Plan({"x": {"a": np.int64(3)}, "y": {"a": 0.5}})  # type: ignore[dict-item]  # what a faulty policy returns
    found = violations(draw({"a": 1}, waiting("x", 1, 2), waiting("y")), plan)
    assert GpusOutOfRange("x", 3, 1, 2) in found and MoreGpusThanFree("a", 1, 3.5) in found
    message = PlanRefused.from_violations(found)
    assert message_from(json.loads(json.dumps(message.data()))) == message
    assert "Job x is given 3 GPUs, but runs on 1 to 2." in sentence_or_empty(message)
    assert "Node a has 1 free GPUs, but 3.5 are given." in sentence_or_empty(message)
