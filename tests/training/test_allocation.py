"""Unequal parts of a batch: whole, within bounds, and as quick as any."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.training.schedulearn_train.allocation import Worker, allocate, seconds, split_evenly, split_proportionally

speeds = st.floats(1e-4, 1.0)


@st.composite
def workers(draw: st.DrawFn, most_workers: int = 8) -> list[Worker]:
    found = []
    for _ in range(draw(st.integers(1, most_workers))):
        least = draw(st.integers(0, 4))
        most = draw(st.integers(least, 40))
        found.append(Worker(draw(speeds), draw(st.floats(0, 0.5)), least, most))
    return found


@st.composite
def questions(draw: st.DrawFn, most_workers: int = 8, most_samples: int = 200) -> tuple[list[Worker], int]:
    them = draw(workers(most_workers))
    low, high = sum(worker.min_samples for worker in them), sum(worker.max_samples for worker in them)
    return them, draw(st.integers(low, max(low, min(high, most_samples))))


@given(questions())
def test_all_samples_are_given_out_within_the_bounds(question: tuple[list[Worker], int]) -> None:
    them, total = question
    counts = allocate(them, total)
    assert sum(counts) == total
    assert all(worker.min_samples <= count <= worker.max_samples for worker, count in zip(them, counts, strict=True))


@given(questions(most_workers=3, most_samples=16))
def test_no_other_split_is_ready_sooner(question: tuple[list[Worker], int]) -> None:
    them, total = question
    every = itertools.product(*(range(worker.min_samples, min(worker.max_samples, total) + 1) for worker in them))
    best = min(seconds(them, counts) for counts in every if sum(counts) == total)
    assert seconds(them, allocate(them, total)) <= best * (1 + 1e-9)


def test_a_worker_four_times_slower_gets_a_quarter() -> None:
    assert allocate([Worker(0.001)] * 3 + [Worker(0.004)], 130) == (40, 40, 40, 10)


def test_a_fixed_cost_leaves_less_time_for_samples() -> None:
    assert allocate([Worker(0.01), Worker(0.01, fixed_seconds=0.1)], 50) == (30, 20)


def test_what_does_not_fit_into_memory_goes_to_the_others() -> None:
    assert allocate([Worker(0.001, max_samples=20), Worker(0.002), Worker(0.002)], 100) == (20, 40, 40)


@pytest.mark.parametrize("total", [1, 9])
def test_a_batch_that_cannot_be_split_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {total} cannot be split among 2 workers, which take 2 to 8"):
        allocate([Worker(1.0, min_samples=1, max_samples=4)] * 2, total)


def test_a_worker_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="takes some time for a sample"):
        Worker(0.0)
    with pytest.raises(ValueError, match="the minimum is above the maximum"):
        Worker(1.0, min_samples=3, max_samples=2)


@given(st.integers(0, 1000), st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
def test_another_total_keeps_the_proportions(total: int, parts: list[int]) -> None:
    counts = split_proportionally(total, parts)
    assert sum(counts) == total
    for count, exact in zip(counts, (total * part / sum(parts) for part in parts), strict=True):
        assert abs(count - exact) < 1


def test_even_parts_differ_by_one_at_most() -> None:
    assert split_evenly(10, 4) == (3, 3, 2, 2)
