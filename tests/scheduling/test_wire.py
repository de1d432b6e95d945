import json
from dataclasses import replace

import numpy as np
from hypothesis import given

from scheduling.messages import Text
from scheduling.toolkit.reasons import NoneFree
from scheduling.types import Account, Curve, Estimate, Plan, Reservation, Snapshot
from scheduling.wire import plan_from_json, plan_to_json, snapshot_from_json, snapshot_to_text
from tests.scheduling.strategies import snapshots
from tests.scheduling.worlds import NOW, draw, waiting


@given(snapshots())
def test_a_snapshot_comes_back_as_it_went(snapshot: Snapshot) -> None:
    assert snapshot_from_json(json.loads(snapshot_to_text(snapshot))) == snapshot


def test_what_is_known_of_jobs_and_people_comes_back_too() -> None:
    job = waiting(
        "1", speed=Curve((1.0, 1.8), (32, 64), {"H200": 3.0}), work=Estimate(60.0, "history", 0.4), deadline=NOW + 5
    )
    snapshot = draw({"a": 2}, job)
    snapshot = Snapshot(
        NOW,
        snapshot.nodes,
        snapshot.jobs,
        accounts=(Account("alice", 2.0, frozenset({"1"}), (5.0, 3.0), "vision"),),
        reservations=(Reservation("course", "a", 1, NOW, NOW + 60, frozenset({"bob"})),),
    )
    assert snapshot_from_json(json.loads(snapshot_to_text(snapshot))) == snapshot


def test_nodes_are_listed_once_for_all_jobs_that_can_run_on_them() -> None:
    both, one = frozenset({"a", "b"}), frozenset({"a"})
    jobs = (waiting("1", nodes=both), waiting("2", nodes=one), waiting("3", nodes=both), waiting("4", nodes=None))
    content = json.loads(snapshot_to_text(draw({"a": 2, "b": 2}, *jobs)))
    assert content["places"] == [["a"], ["a", "b"]]
    assert [job["nodes"] for job in content["jobs"]] == [1, 0, 1, None]


def test_a_snapshot_that_lists_the_nodes_of_each_job_is_still_read() -> None:
    snapshot = draw({"a": 2, "b": 2}, waiting("1", nodes=frozenset({"b"})), waiting("2", nodes=None))
    content = json.loads(snapshot_to_text(snapshot))
    del content["places"]
    content["jobs"][0]["nodes"] = ["b"]
    assert snapshot_from_json(content) == snapshot


def test_a_plan_comes_back_as_it_went() -> None:
    plan = Plan({"1": {"a": 2}}, {"2": NoneFree(0, 2, everywhere=True, kept=False)}, {"queue": [1]}, {"1": 64})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_reasons_of_an_earlier_release_are_texts() -> None:
    content = json.loads(snapshot_to_text(draw({"a": 2}, waiting("1"), waiting("2", blocked=Text("It is too late.")))))
    content["jobs"][0]["blocked"], content["jobs"][1]["blocked"] = "", "It is too late."
    assert [job.blocked for job in snapshot_from_json(content).jobs] == [None, Text("It is too late.")]
    assert plan_from_json({"target": {}, "reasons": {"2": "It waits."}}).reasons == {"2": Text("It waits.")}


def test_a_reason_of_a_later_release_is_kept() -> None:
    later = {"code": "phase_of_the_moon", "degrees": 12}
    plan = plan_from_json({"target": {}, "reasons": {"2": later}})
    assert plan_to_json(plan)["reasons"] == {"2": later}


def test_numbers_of_numpy_are_numbers() -> None:
    snapshot = replace(draw({"a": 2}), state={"limit": np.float64(1.5), "turn": np.int64(3)})
    assert json.loads(snapshot_to_text(snapshot))["state"] == {"limit": 1.5, "turn": 3}
