"""From what each rank measures to parts of a batch."""

import random
from collections.abc import Iterator, Sequence
from math import exp, log, sqrt
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.training.schedulearn_train.allocation import UNLIMITED, Worker, allocate, seconds
from runners.training.schedulearn_train.balance import (
    AUTOCORRELATION,
    WINDOW,
    Speed,
    SpeedReport,
    is_representative,
    rebalance,
    shrink_speeds,
)
from runners.training.schedulearn_train.predict import FIRST_DEVIATION


def report(sample_seconds: float, fixed_seconds: float = 0.0, standard_error: float = 0.0) -> SpeedReport:
    return SpeedReport(
        sample_seconds, fixed_seconds, error=0.0, standard_error=standard_error, samples=0.0, computing=0.0, waiting=0.0
    )


def report_of(speed: Speed) -> SpeedReport:
    return report(speed.sample_seconds(), speed.fixed_seconds(), speed.standard_error())


def splits(true: Sequence[Worker], noise: float, looks: int, seed: int) -> Iterator[tuple[int, ...]]:
    """After each look that of a batch of 100 samples for each rank, whose iterations are so noisy (as a logarithm)."""
    chance, speeds = random.Random(seed), [Speed() for _ in true]
    counts: tuple[int, ...] = (100,) * len(true)
    for _ in range(looks):
        for speed, worker, count in zip(speeds, true, counts, strict=True):
            speed.observe(count, worker.seconds(count) * exp(chance.gauss(0, noise)))
        counts = split([report_of(each) for each in speeds], counts)
        yield counts


def split(ranks: Sequence[SpeedReport], counts: tuple[int, ...], limit: int = UNLIMITED) -> tuple[int, ...]:
    return rebalance(ranks, counts, [limit] * len(counts))


def test_a_rank_learns_how_long_a_sample_takes_it() -> None:
    speed = Speed()
    assert speed.sample_seconds() == 0
    for _ in range(5):
        speed.observe(20, 0.1)
    assert speed.sample_seconds() == pytest.approx(0.005)
    assert speed.error() == pytest.approx(0)


def test_two_sizes_separate_the_fixed_part_from_the_samples() -> None:
    speed = Speed()
    for samples in (20, 20, 40, 40, 10, 10, 30) * 4:
        speed.observe(samples, 0.05 + 0.002 * samples)
    assert speed.fixed_seconds() == pytest.approx(0.05, rel=0.2)
    assert speed.fixed_seconds() + 30 * speed.sample_seconds() == pytest.approx(0.11, rel=0.05)


def test_a_second_size_explains_the_first_one_too() -> None:
    """A slow worker's two first splits, as they were measured."""
    speed = Speed()
    speed.observe(256, 0.171)
    speed.observe(65, 0.066)
    for samples, computed in ((256, 0.171), (65, 0.066)):
        assert speed.fixed_seconds() + samples * speed.sample_seconds() == pytest.approx(computed, rel=0.03)


def test_similar_sizes_show_nothing_of_the_fixed_part() -> None:
    speed = Speed()
    for samples, computed in ((20, 0.1), (21, 0.2), (20, 0.05)):
        speed.observe(samples, computed)
    assert speed.fixed_seconds() == 0


def test_a_worker_that_is_slowed_down_is_not_assumed_to_have_a_larger_fixed_part() -> None:
    """It becomes four times slower, gets fewer samples for that, and is faster again later."""
    speed = Speed()
    for samples, slower in [(100, 1)] * 10 + [(100, 4)] * 5 + [(30, 4)] * 10 + [(30, 1)] * 5 + [(100, 1)] * 5:
        speed.observe(samples, slower * 0.001 * (samples + 20))
    assert speed.fixed_seconds() / speed.sample_seconds() == pytest.approx(20, abs=8)
    assert speed.error() < 0.3


@pytest.mark.parametrize("slow", [1.0, 4.0])
@pytest.mark.parametrize("fixed", [0.0, 0.3])
def test_splits_come_close_to_the_best_one_and_do_not_follow_noise(slow: float, fixed: float) -> None:
    """Four ranks, the last of them slower, whose iterations are up to a third longer or shorter than the next."""
    true = [Worker(each, each * fixed * 100) for each in (0.001, 0.001, 0.001, 0.001 * slow)]
    settled = [counts for seed in range(5) for counts in list(splits(true, 0.15, 60, seed))[20:]]
    took, least = sum(seconds(true, counts) for counts in settled), len(settled) * seconds(true, allocate(true, 400))
    assert took < 1.08 * least


def test_an_iteration_without_samples_shows_nothing() -> None:
    speed = Speed()
    speed.observe(0, 0.1)
    assert speed.sample_seconds() == 0


def test_the_rest_of_an_epoch_is_no_whole_iteration() -> None:
    assert is_representative(100, 100) and is_representative(50, 100) and is_representative(3, 0)
    assert not is_representative(49, 100)


def test_faster_ranks_get_larger_parts_once_all_are_known() -> None:
    assert split([report(0.001), report(0.004)], (50, 50)) == (80, 20)
    assert split([report(0.001), report(0)], (50, 50)) == (50, 50)


def test_a_gain_of_less_than_a_twentieth_changes_nothing() -> None:
    assert split([report(0.00100), report(0.00104)], (50, 50)) == (50, 50)


def test_a_difference_that_may_be_chance_changes_nothing() -> None:
    assert split([report(0.0010, standard_error=0.07), report(0.0011, standard_error=0.07)], (50, 50)) == (50, 50)
    assert split([report(0.0010, standard_error=0.01), report(0.0011, standard_error=0.01)], (50, 50)) == (52, 48)
    assert split([report(0.001, standard_error=0.1), report(0.004, standard_error=0.1)], (50, 50)) == (80, 20)


def test_parts_that_chance_made_unequal_become_equal_again() -> None:
    alike = [report(each, standard_error=0.05) for each in (0.00102, 0.00098, 0.00101, 0.00099)]
    assert split(alike, (94, 106, 103, 97)) == (100, 100, 100, 100)


def test_a_part_that_does_not_fit_is_made_smaller_whatever_the_doubt() -> None:
    assert rebalance([report(0.001, standard_error=1.0)] * 2, (50, 50), [1000, 49]) == (51, 49)


def test_the_more_a_worker_has_shown_the_smaller_its_standard_error() -> None:
    doubts: list[list[float]] = []
    for seed in range(20):
        chance, speed = random.Random(seed), Speed()
        doubts.append([speed.standard_error()])
        for _ in range(40):
            speed.observe(100, 0.1 * exp(chance.gauss(0, 0.1)))
            doubts[-1].append(speed.standard_error())
    mean = [fmean(each) for each in zip(*doubts, strict=True)]
    assert mean[0] == mean[1] == pytest.approx(AUTOCORRELATION * FIRST_DEVIATION)
    assert mean[1] > mean[4] > mean[40] == pytest.approx(AUTOCORRELATION * 0.1 / sqrt(WINDOW), rel=0.2)


@pytest.mark.parametrize("noise", [0.03, 0.06, 0.1])
def test_equal_workers_hardly_ever_get_unequal_parts_by_chance(noise: float) -> None:
    found = [counts for seed in range(20) for counts in splits([Worker(0.001)] * 4, noise, 60, seed)]
    assert sum(counts != (100,) * 4 for counts in found) < 0.1 * len(found)


def test_a_worker_a_sixth_slower_gets_less_in_spite_of_noise() -> None:
    true = [Worker(0.001)] * 3 + [Worker(0.001 * 7 / 6)]
    had = [list(splits(true, 0.05, 30, seed))[-1][3] for seed in range(20)]
    assert fmean(had) == pytest.approx(allocate(true, 400)[3], abs=3)


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(0, 1)), min_size=1, max_size=8))
def test_likely_speeds_lie_between_what_was_seen_and_the_mean(seen: list[tuple[float, float]]) -> None:
    workers = [Worker(sample, 2 * sample, standard_error=standard_error) for sample, standard_error in seen]
    mean = exp(fmean(log(worker.sample_seconds) for worker in workers))
    for before, after in zip(workers, shrink_speeds(workers), strict=True):
        low, high = sorted((before.sample_seconds, mean))
        assert low * (1 - 1e-9) <= after.sample_seconds <= high * (1 + 1e-9)
        assert after.fixed_seconds == pytest.approx(2 * after.sample_seconds)
        assert before.standard_error or after == before


def test_a_worker_with_noticeably_less_to_do_gets_more_even_if_no_iteration_becomes_shorter() -> None:
    assert split([report(0.001)] * 4, (90, 104, 103, 103)) == (100, 100, 100, 100)
    assert split([report(0.001)] * 4, (98, 101, 101, 100)) == (98, 101, 101, 100)


def test_a_worker_without_samples_gets_a_part_again() -> None:
    """A smaller batch in the same proportions may leave a slow rank none."""
    assert split([report(0.001), report(0.001)], (16, 0)) == (8, 8)


def test_a_batch_smaller_than_the_ranks_stays_as_it_is() -> None:
    assert split([report(0.001), report(0.004), report(0.001)], (1, 1, 0)) == (1, 1, 0)


def test_what_fits_into_a_rank_bounds_its_part() -> None:
    assert split([report(0.001), report(0.004)], (50, 50), limit=60) == (60, 40)
    assert split([report(0.001), report(0.001), report(0.002)], (30, 30, 30), limit=32) == (32, 32, 26)


def test_a_part_that_does_not_fit_is_made_smaller_even_if_that_takes_no_less_time() -> None:
    equal = [report(0.001)] * 2
    assert rebalance(equal, (50, 50), [1000, 49]) == (51, 49)


def test_what_fits_into_the_ranks_bounds_nothing_where_the_batch_needs_several_passes() -> None:
    assert split([report(0.001), report(0.004)], (50, 50), limit=30) == (80, 20)


def test_the_report_of_a_rank_has_the_predicted_seconds() -> None:
    reported = SpeedReport(
        0.002, 0.01, error=0.04, standard_error=0.02, samples=30.0, computing=0.08, waiting=0.02
    ).report(40)
    assert (reported.samples, reported.computing, reported.waiting, reported.error) == (30.0, 0.08, 0.02, 0.04)
    assert reported.expected == pytest.approx(0.09)
    assert report(0).report(40).expected == 0
