"""Sharing GPUs out by the value of counts: exact against trying everything, and near it along the hulls."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.optimise import allocation_search
from scheduling.types import Limit
from tests.scheduling.worlds import draw, running, waiting

NONE = -np.inf


def brute_force(values: list[allocation_search.Values], gpus: int) -> float:
    """The best sum there is."""
    best = NONE
    for counts in itertools.product(*(range(len(value)) for value in values)):
        if sum(counts) <= gpus:
            best = max(best, sum(value[count] for value, count in zip(values, counts, strict=True)))
    return best


def tables(rng: random.Random, jobs: int, *, concave: bool = False) -> list[allocation_search.Values]:
    found = []
    for _ in range(jobs):
        gains = [rng.choice([1.0, 0.7, 0.5, 0.1, 0.0, -0.2]) for _ in range(rng.randint(1, 4))]
        if concave:
            gains.sort(reverse=True)
        value = np.concatenate(([0.0], np.cumsum(gains)))
        minimum = 0 if concave else rng.choice([0, 0, 1, 2])
        value[1:minimum] = NONE
        if rng.random() < 0.2:
            value[:minimum] = NONE
        found.append(value)
    return [value for value in found if np.isfinite(value).any()]


@given(jobs=st.integers(0, 5), gpus=st.integers(0, 9), concave=st.booleans(), seed=st.integers(0, 2**32))
def test_it_is_as_good_as_trying_everything(jobs: int, gpus: int, concave: bool, seed: int) -> None:
    values = tables(random.Random(seed), jobs, concave=concave)
    best = brute_force(values, gpus)
    if best == NONE:
        with pytest.raises(ValueError, match="minimum of all jobs"):
            allocation_search.best_counts(values, gpus)
        return
    counts = allocation_search.best_counts(values, gpus)
    assert sum(counts) <= gpus
    assert sum(value[count] for value, count in zip(values, counts, strict=True)) == pytest.approx(best)


@given(jobs=st.integers(0, 5), gpus=st.integers(10, 20), seed=st.integers(0, 2**32))
def test_along_the_hulls_it_is_short_by_at_most_what_one_job_has(jobs: int, gpus: int, seed: int) -> None:
    values = tables(random.Random(seed), jobs)
    counts = allocation_search.best_counts(values, gpus, cells=0)
    assert sum(counts) <= gpus
    reached = sum(value[count] for value, count in zip(values, counts, strict=True))
    spread = max((np.ptp(value[np.isfinite(value)]) for value in values), default=0.0)
    assert brute_force(values, gpus) - spread - 1e-9 <= reached


@given(jobs=st.integers(0, 5), gpus=st.integers(0, 9), seed=st.integers(0, 2**32))
def test_concave_curves_need_no_table(jobs: int, gpus: int, seed: int) -> None:
    values = tables(random.Random(seed), jobs, concave=True)
    reached = sum(
        value[count] for value, count in zip(values, allocation_search.best_counts(values, gpus, cells=0), strict=True)
    )
    assert reached == pytest.approx(brute_force(values, gpus))


def test_beyond_its_budget_it_goes_along_the_hulls() -> None:
    """The second GPU is worth nothing without the third: the hull sees that, one GPU at a time would not."""
    values = [np.array([0.0, 1.0, 1.0, 4.0]), np.array([0.0, 1.0, 1.5])]
    assert allocation_search.best_counts(values, 3) == allocation_search.best_counts(values, 3, cells=1) == [3, 0]
    assert allocation_search.best_counts(values, 4, cells=1) == [3, 1]


def test_it_asks_only_about_jobs_that_something_can_be_decided_about() -> None:
    lab = draw(
        {"a": 4, "b": 4, "c": 2},
        running("fixed", {"a": 2}),
        running("elastic", {"a": 1}, 1, 3),
        running("may stop", {"b": 2}, preemptible=True),
        running("drained", {"c": 1}, 1, 2, preemptible=True),
        waiting("new", 1, 20),
        waiting("huge", 20),
        closed=("c",),
    )
    problem = allocation_search.problem_from(lab)
    found = {c.job.id: (c.min_gpus, c.max_gpus, c.may_have_none) for c in problem.candidates}
    assert found == {"elastic": (1, 3, False), "may stop": (2, 2, True), "new": (1, 8, True)}
    assert [job.id for job in problem.held] == ["fixed", "drained"]
    assert problem.gpus == 6
    assert set(problem.why) == {"huge"}


def test_what_a_limit_takes_from_one_is_shared_among_the_others() -> None:
    limit = Limit("alice", 3, frozenset({"x", "y"}))
    lab = draw({"a": 8}, waiting("x", 1, 4), waiting("y", 1, 4), waiting("z", 1, 8), limits=(limit,))
    problem = allocation_search.problem_from(lab)
    values = [np.arange(5.0), np.arange(5.0), np.arange(9.0) / 2]
    counts = allocation_search.solve_within_limits(problem, lambda caps: allocation_search.solve(problem, values, caps))
    assert counts == {"x": 3, "y": 0, "z": 5}
