"""From what each rank measures to parts of a batch."""

import pytest

from runners.training.schedulearn_train.balance import Speed, Told, fixed_part, rebalanced


def told(sample_seconds: float, fixed_seconds: float = 0.0, most: float = 1e9) -> Told:
    return Told(sample_seconds, fixed_seconds, most, error=0.0, samples=0.0, computing=0.0, waiting=0.0)


def test_a_rank_learns_how_long_a_sample_takes_it() -> None:
    speed = Speed()
    assert speed.sample_seconds() == 0
    for _ in range(5):
        speed.observe(20, 0.1)
    assert speed.sample_seconds() == pytest.approx(0.005)
    assert speed.error() == pytest.approx(0)


def test_two_sizes_tell_the_fixed_part_from_the_samples() -> None:
    speed = Speed()
    for samples in (20, 20, 40, 40, 10, 10, 30):
        speed.observe(samples, 0.05 + 0.002 * samples)
    assert speed.fixed_seconds == pytest.approx(0.05)
    assert fixed_part([(20, 0.1), (21, 0.2)]) == 0  # about equal sizes say nothing
    assert fixed_part([]) == 0


def test_an_iteration_without_samples_says_nothing() -> None:
    speed = Speed()
    speed.observe(0, 0.1)
    assert speed.sample_seconds() == 0


def test_faster_ranks_get_larger_parts_once_all_are_known() -> None:
    assert rebalanced([told(0.001), told(0.004)], (50, 50)) == (80, 20)
    assert rebalanced([told(0.001), told(0)], (50, 50)) == (50, 50)


def test_a_gain_of_less_than_a_twentieth_changes_nothing() -> None:
    assert rebalanced([told(0.00100), told(0.00104)], (50, 50)) == (50, 50)


def test_a_batch_smaller_than_the_ranks_stays_as_it_is() -> None:
    assert rebalanced([told(0.001), told(0.004), told(0.001)], (1, 1, 0)) == (1, 1, 0)


def test_what_fits_into_a_rank_bounds_its_part() -> None:
    assert rebalanced([told(0.001, most=60), told(0.004)], (50, 50)) == (60, 40)


def test_what_is_reported_of_a_rank_says_what_was_expected_of_it() -> None:
    report = Told(0.002, 0.01, 1e9, error=0.04, samples=30.0, computing=0.08, waiting=0.02).report(40)
    assert (report.samples, report.computing, report.waiting, report.error) == (30.0, 0.08, 0.02, 0.04)
    assert report.expected == pytest.approx(0.09)
    assert told(0).report(40).expected == 0
