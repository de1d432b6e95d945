"""Predicting a worker's speed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from runners.training.schedulearn_train.predict import (
    Blend,
    LastValue,
    Predictor,
    ScoredPredictor,
    Smoothing,
    log_seconds,
)


def error_of(predictor: ScoredPredictor, trace: np.ndarray) -> float:
    for value in trace:
        predictor.observe(float(value))
    assert predictor.error is not None
    return predictor.error


def test_smoothing_beats_the_last_value_on_noise() -> None:
    trace = np.random.default_rng(0).normal(-6, 0.05, 400)
    assert error_of(ScoredPredictor(Smoothing()), trace) < 0.85 * error_of(ScoredPredictor(LastValue()), trace)


def test_a_single_outlier_moves_nothing() -> None:
    smoothing = Smoothing()
    for value in [1.0] * 20 + [3.0]:
        smoothing.observe(value)
    assert smoothing.predict() == 1.0


def test_two_outliers_in_a_row_are_the_new_level() -> None:
    smoothing = Smoothing()
    for value in [1.0] * 20 + [3.0, 3.2]:
        smoothing.observe(value)
    assert smoothing.predict() == pytest.approx(3.1)


def test_growing_noise_is_got_used_to() -> None:
    smoothing, chance = Smoothing(), np.random.default_rng(1)
    for value in [*[0.0] * 50, *chance.normal(0, 0.5, 400)]:
        smoothing.observe(float(value))
    assert abs(smoothing.predict() or 9) < 0.5


def test_the_better_predictor_counts_more() -> None:
    class Wrong:
        def observe(self, value: float) -> None: ...

        def predict(self) -> float:
            return 10.0

        def shift(self, by: float) -> None: ...

    blend = Blend(LastValue(), Wrong())
    for number in range(50):
        blend.observe(1.0 + 0.1 * (number % 2))
    assert 1.0 <= (blend.predict() or 0) < 1.4
    assert blend.one.error == pytest.approx(0.1)


def test_nothing_is_predicted_before_a_value_was_seen() -> None:
    assert LastValue().predict() is None
    assert Smoothing().predict() is None
    assert Blend(Smoothing(), LastValue()).predict() is None


@pytest.mark.parametrize("made", [LastValue, Smoothing, lambda: Blend(LastValue(), Smoothing())])
def test_what_was_seen_can_be_put_in_other_terms(made: Callable[[], Predictor]) -> None:
    predictor = ScoredPredictor(made())
    for value in (1.0, 1.0, 1.0):
        predictor.observe(value)
    predictor.shift(0.5)
    assert predictor.predict() == pytest.approx(1.5)
    predictor.observe(1.5)
    assert predictor.error == pytest.approx(0)


def test_what_is_predicted_is_of_one_sample() -> None:
    assert log_seconds(0.4, 40) == pytest.approx(math.log(0.01))
    assert log_seconds(0, 40) == pytest.approx(math.log(1e-9))
