"""How fast a worker will be in its next iteration, from how fast it was in the last ones.

What is predicted is the logarithm of the seconds it computes for a sample, without waiting for others: errors are then
parts of a speed, and a worker that is now and then four times slower does not drown the rest.
"""

import math
from typing import Protocol

SMOOTHING = 0.1
"""Of exponential smoothing: what the newest value counts at least; fewer values than ten count alike."""
SPREAD = 0.1
"""What the newest deviation counts, for the standard deviation that says what is unusual."""
UNUSUAL = 3.0
"""Twice in a row further away than so many standard deviations: the load has changed, what was before is forgotten."""
LEAST_SPREAD, FIRST_SPREAD = 0.02, 0.1
"""Standard deviations: none is thought to be smaller; and what is thought before anything is known."""
ERROR = 0.05
"""What the newest error counts for the running mean by which predictors are compared."""


class Predictor(Protocol):
    def observe(self, value: float) -> None: ...

    def predict(self) -> float | None:
        """The next value; None while it cannot tell yet."""

    def shift(self, by: float) -> None:
        """What it has seen would be so much more in the terms of today."""


class LastValue:
    """The yardstick: tomorrow is as today."""

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
    """Exponential smoothing that begins anew after a step change, and that a single outlier does not move."""

    def __init__(self, newest: float = SMOOTHING) -> None:
        self.newest = newest
        self._mean: float | None = None
        self._seen = 0
        """Values since it began anew."""
        self._variance = FIRST_SPREAD**2
        self._outlier: float | None = None

    def observe(self, value: float) -> None:
        if self._mean is None:
            self._mean, self._seen = value, 1
            return
        away, bound = value - self._mean, UNUSUAL * max(LEAST_SPREAD, math.sqrt(self._variance))
        before, self._outlier = self._outlier, None
        if abs(away) <= bound:
            self._variance += SPREAD * (away * away - self._variance)
            self._seen += 1
            self._mean += max(self.newest, 1 / self._seen) * away
        elif before is not None and (before > self._mean) == (value > self._mean):
            self._mean, self._seen = (before + value) / 2, 2
        else:
            self._outlier = value
            self._variance += SPREAD * (bound * bound - self._variance)  # it may be the noise that has grown

    def predict(self) -> float | None:
        return self._mean

    def shift(self, by: float) -> None:
        if self._mean is not None:
            self._mean += by
        if self._outlier is not None:
            self._outlier += by


class Scored:
    """A predictor, and its running mean absolute error one step ahead."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.error: float | None = None
        self._meant: float | None = None

    def observe(self, value: float) -> None:
        if self._meant is not None:
            wrong = abs(value - self._meant)
            self.error = wrong if self.error is None else self.error + ERROR * (wrong - self.error)
        self.predictor.observe(value)
        self._meant = self.predictor.predict()

    def predict(self) -> float | None:
        return self._meant

    def shift(self, by: float) -> None:
        self.predictor.shift(by)
        self._meant = self.predictor.predict()


class Blend:
    """Two predictors, each counting as much as the other one errs: (a * err_b + b * err_a) / (err_a + err_b)."""

    def __init__(self, one: Predictor, other: Predictor) -> None:
        self.one, self.other = Scored(one), Scored(other)

    def observe(self, value: float) -> None:
        self.one.observe(value)
        self.other.observe(value)

    def predict(self) -> float | None:
        one, other = self.one.predict(), self.other.predict()
        if one is None or other is None or self.one.error is None or self.other.error is None:
            return one if other is None else other if one is None else one
        together = self.one.error + self.other.error
        return (one * self.other.error + other * self.one.error) / together if together else one

    def shift(self, by: float) -> None:
        self.one.shift(by)
        self.other.shift(by)


def log_seconds(seconds: float, samples: float) -> float:
    """What predictors are told of an iteration. Never below a nanosecond for a sample."""
    return math.log(max(1e-9, seconds / samples))
