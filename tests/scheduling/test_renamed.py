"""A policy that a lab wrote for the release before still finds names that changed, with one warning for each."""

import dataclasses
import importlib
from operator import attrgetter

import pytest

from scheduling.params import describe, param
from scheduling.toolkit.capacity import Capacity
from scheduling.types import Job
from tests.scheduling.worlds import draw, running

NAMES = {
    "scheduling.optimise.allocation_search": {
        "ask": "problem_from",
        "at_least": "keep_counts_from",
        "best": "best_counts",
        "whole": "keep_packable_counts",
        "within_limits": "solve_within_limits",
        "worth": "total_value",
        "Question": "AllocationProblem",
        "Rooms": "LimitHeadroom",
    },
    "scheduling.optimise.rearrangement": {"choose": "rearrange_if_better"},
    "scheduling.simulate": {"Known": "JobFacts", "Refused": "InvalidPlanError", "Run": "TrainingRun"},
    "scheduling.simulate.filter": {"BadRequest": "BadRequestError"},
    "scheduling.toolkit.backfill": {"Hold": "BackfillReservation", "around": "plan_with_reservation"},
    "scheduling.toolkit.capacity": {"in_turn": "in_queue_order"},
    "scheduling.toolkit.growth": {"pays": "growth_pays_off"},
    "scheduling.toolkit.performance": {"from_runs": "curve_from_runs"},
    "scheduling.toolkit.placement": {"grow": "node_to_grow_on", "shrink": "node_to_shrink_on"},
    "scheduling.toolkit.reasons": {
        "rough": "rounded_seconds",
        "gpus": "words.gpus",
        "jobs": "words.jobs_are",
        "hours": "words.duration",
        "promised": "Promised",
        "behind_saved": "BehindSaved",
    },
    "scheduling.toolkit.job_updates": {"rewritten": "updated_job"},
    "scheduling.toolkit.plan_builder": {
        "act": "apply_now",
        "line_up": "release_preemptible",
        "part": "available_part",
        "realise": "build_plan",
        "stand_in_line": "admit_in_order",
    },
    "scheduling.toolkit.projected_state": {"after": "project", "clean": "without_empty_nodes"},
    "scheduling.toolkit.sharing": {
        "fitted": "plan_until_placed",
        "most": "max_size",
        "settle": "skip_unprofitable_resizes",
    },
    "scheduling.toolkit.target_plan": {"world": "world_digest"},
}


@pytest.mark.parametrize(
    ("module", "old", "new"), [(module, old, new) for module, names in NAMES.items() for old, new in names.items()]
)
def test_an_old_name_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=f"{module}.{old} is now {module}.{new}"):
        assert getattr(found, old) is attrgetter(new)(found)


def test_a_name_that_never_was_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = importlib.import_module("scheduling.toolkit.capacity").nonsense


def test_the_old_bounds_of_a_parameter_are_accepted() -> None:
    with pytest.warns(FutureWarning, match=r"param\(least, most\) is now param\(minimum, maximum\)"):
        old = type("Old", (), {"__annotations__": {"size": int}, "size": param(1, "Size", "", least=0, most=9)})
    (known,) = describe(dataclasses.dataclass(old))
    assert (known.minimum, known.maximum) == (0, 9)


def test_the_old_sort_key_of_a_job_is_the_new_one() -> None:
    job = Job("x", "alice", 5.0, 1, 1, priority=2)
    with pytest.warns(FutureWarning, match=r"Job\.turn is now Job\.queue_key"):
        assert job.turn == job.queue_key


def test_the_old_methods_of_a_capacity_are_the_new_ones() -> None:
    job = running("x", {"a": 2}, 1, 2)
    capacity = Capacity(draw({"a": 2}, job))
    with pytest.warns(FutureWarning, match=r"Capacity\.terms is now Capacity\.fit_key"):
        assert capacity.terms(job) == capacity.fit_key(job)
    capacity.ask_back(job)
    with pytest.warns(FutureWarning, match=r"Capacity\.leave_with is now Capacity\.undo_ask_back"):
        capacity.leave_with(job, "a")
    assert capacity.held["x"] == {"a": 2}
    with pytest.warns(FutureWarning, match=r"Levels\.following is now Levels\.first_after"):
        assert capacity.free.following("", 0) == "a"
