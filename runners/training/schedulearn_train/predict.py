"""Predicts a worker's speed in its next iteration from its speed in the last ones.

Predictions are logarithms of the seconds of computing per sample, without waiting for others. So errors are relative, and a
worker that is four times slower at times does not dominate.
"""

import math
from typing import Protocol

SMOOTHING = 0.1
"""The smallest weight of the newest value in exponential smoothing; fewer than ten values count alike."""
DEVIATION_WEIGHT = 0.1
"""The weight of the newest deviation in the standard deviation that decides what is an outlier."""
OUTLIER_DEVIATIONS = 3.0
"""After two values in a row that are more standard deviations away, the load has changed and earlier values are forgotten."""
MIN_DEVIATION, FIRST_DEVIATION = 0.02, 0.1
"""The smallest standard deviation, and the initial one."""
ERROR_WEIGHT = 0.05
"""The weight of the newest error in the running mean by which predictors are compared."""


class Predictor(Protocol):
    """Predicts the next value of a series."""

    def observe(self, value: float) -> None: ...

    def predict(self) -> float | None:
        """Return the next value; None while unknown."""

    def shift(self, by: float) -> None:
        """Add a number to all observed values, because they are measured differently from now on."""


class LastValue:
    """Predicts the last value: the baseline for other predictors."""

    def __init__(self) -> None:
        self._last: float | None = None

    def observe(self, value: float) -> None:
        self._last = value

    def predict(self) -> float | None:
        return self._last

    def shift(self, by: float) -> None:
        if self._last is not None:
            self._last += by


class Smoothing:
    """Exponential smoothing that restarts after a step change and ignores single outliers."""

    def __init__(self, newest: float = SMOOTHING) -> None:
        self.newest = newest
        self._mean: float | None = None
        self._seen = 0
        """Values since the last restart."""
        self._variance = FIRST_DEVIATION**2
        self._outlier: float | None = None

    def observe(self, value: float) -> None:
        if self._mean is None:
            self._mean, self._seen = value, 1
            return
        away, bound = value - self._mean, OUTLIER_DEVIATIONS * max(MIN_DEVIATION, math.sqrt(self._variance))
        before, self._outlier = self._outlier, None
        if abs(away) <= bound:
            self._variance += DEVIATION_WEIGHT * (away * away - self._variance)
            self._seen += 1
            self._mean += max(self.newest, 1 / self._seen) * away
        elif before is not None and (before > self._mean) == (value > self._mean):
            self._mean, self._seen = (before + value) / 2, 2
        else:
            self._outlier = value
            self._variance += DEVIATION_WEIGHT * (bound * bound - self._variance)  # perhaps the noise has grown

    def predict(self) -> float | None:
        return self._mean

    def shift(self, by: float) -> None:
        if self._mean is not None:
            self._mean += by
        if self._outlier is not None:
            self._outlier += by


class ScoredPredictor:
    """A predictor with the running mean of its absolute errors one step ahead."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.error: float | None = None
        self._predicted: float | None = None

    def observe(self, value: float) -> None:
        if self._predicted is not None:
            wrong = abs(value - self._predicted)
            self.error = wrong if self.error is None else self.error + ERROR_WEIGHT * (wrong - self.error)
        self.predictor.observe(value)
        self._predicted = self.predictor.predict()

    def predict(self) -> float | None:
        return self._predicted

    def shift(self, by: float) -> None:
        self.predictor.shift(by)
        self._predicted = self.predictor.predict()


class Blend:
    """A mean of two predictors, each weighted by the error of the other: (a * err_b + b * err_a) / (err_a + err_b)."""

    def __init__(self, one: Predictor, other: Predictor) -> None:
        self.one, self.other = ScoredPredictor(one), ScoredPredictor(other)

    def observe(self, value: float) -> None:
        self.one.observe(value)
        self.other.observe(value)

    def predict(self) -> float | None:
        one, other = self.one.predict(), self.other.predict()
        if one is None or other is None or self.one.error is None or self.other.error is None:
            return one if other is None else other if one is None else one
        errors = self.one.error + self.other.error
        return (one * self.other.error + other * self.one.error) / errors if errors else one

    def shift(self, by: float) -> None:
        self.one.shift(by)
        self.other.shift(by)


def log_seconds(seconds: float, samples: float) -> float:
    """Return the value of an iteration for predictors, with at least a nanosecond per sample."""
    return math.log(max(1e-9, seconds / samples))
