"""Keeps unequal workers equally busy: each reports how fast it is, and all make the same decision."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, pi, sqrt
from statistics import fmean, variance
from typing import Literal, NamedTuple

from .allocation import UNLIMITED, Worker, allocate, relative_gap, seconds
from .predict import FIRST_DEVIATION, Blend, Predictor, ScoredPredictor, Smoothing, log_seconds
from .report import RankReport

PredictorKind = Literal["smoothing", "gru", "blend"]
MIN_GAIN = 0.05
"""A new split must make the iteration shorter by this share,"""
MIN_GAP_REDUCTION = 0.05
"""or reduce the gap between the workers by as much: a worker with too little to do shortens no iteration, and idles."""
AUTOCORRELATION = 1.5
"""What slows one iteration down often slows the next, so the standard error of a mean is so many times larger.

Chosen among 1 to 3 on speeds measured by the bench: with less, chance moves splits more often; with more, slow workers wait
longer for a smaller part."""

WINDOW = 10
"""Iterations that count alike in a prediction."""


def predictor(kind: PredictorKind, seed: int = 0) -> Predictor:
    if kind == "smoothing":
        return Smoothing()
    from .gru import Gru  # torch

    return Gru(seed) if kind == "gru" else Blend(Smoothing(), Gru(seed))


def is_representative(samples: int, part: int) -> bool:
    """Return whether an iteration with so many samples shows how long one with ``part`` takes: the rest of an epoch does not."""
    return 2 * samples >= part


class Speed:
    """One worker's speed, learnt from its iterations, or from the means of several under one split.

    An iteration takes ``sample_seconds * (samples + fixed.samples)``; ``sample_seconds`` is predicted.
    """

    def __init__(self, kind: PredictorKind = "smoothing", seed: int = 0) -> None:
        self._predictor = ScoredPredictor(predictor(kind, seed))
        self._fixed = FixedCost()
        self._sizes: deque[float] = deque(maxlen=WINDOW)
        """The samples of the iterations that the predictor has observed."""

    def observe(self, samples: float, computed: float) -> None:
        """Learn from an iteration. One without samples shows nothing."""
        if not samples:
            return
        before = self._fixed.samples
        self._fixed.observe(samples, computed)
        now = self._fixed.samples
        if now != before:
            self._predictor.shift(fmean(log((size + before) / (size + now)) for size in self._sizes))
        self._sizes.append(samples)
        self._predictor.observe(log_seconds(computed, samples + now))

    def sample_seconds(self) -> float:
        """Predict the seconds per sample of the next iteration; 0 while unknown."""
        predicted = self._predictor.predict()
        return 0.0 if predicted is None else exp(predicted)

    def fixed_seconds(self) -> float:
        """Predict the seconds of the next iteration that do not depend on its samples."""
        return self._fixed.samples * self.sample_seconds()

    def error(self) -> float:
        """Return the mean relative error of predictions one iteration ahead."""
        return self._predictor.error or 0.0

    def standard_error(self) -> float:
        """Return the relative standard error of the prediction, as that of a mean of values with the observed error.

        The error of the first value is not known and is assumed to be an ordinary one.
        """
        values = max(1, len(self._sizes))
        deviation = sqrt(pi / 2) * self.error()  # assumes a normal distribution
        shrinking: float = values**1.5
        return AUTOCORRELATION * (FIRST_DEVIATION + (values - 1) * deviation) / shrinking


class FixedCost:
    """The fixed part of an iteration's time, in samples: a worker that is slowed down is slower in both parts alike.

    It is learnt from consecutive iterations of different sizes, between which hardly anything else has changed. No probing
    is needed: the first change of a split, made as if there were no fixed part, provides the first two.
    """

    MIN_LOG_RATIO = 0.1
    """Sizes whose logarithms differ by less show nothing."""
    NOISE = 0.25
    """Standard deviation of the ratio of two iterations; a deviation of more than twice that was a change of the load."""
    PRIOR_DEVIATION = 0.7
    """Prior standard deviation of the logarithm of 1 + the fixed part, relative to the sizes."""
    CANDIDATES = (0.0, *(0.05 * 1.3**step for step in range(12)))
    """The fixed parts that are tried, relative to the mean size."""

    def __init__(self) -> None:
        self.samples = 0.0
        self._last: tuple[float, float] | None = None
        self._pairs: deque[tuple[float, float, float]] = deque(maxlen=16)
        """Two sizes, and the logarithm of the ratio of their times."""

    def observe(self, samples: float, seconds: float) -> None:
        last, self._last = self._last, (samples, max(seconds, 1e-9))
        if last is None or abs(log(samples / last[0])) < self.MIN_LOG_RATIO:
            return
        self._pairs.append((last[0], samples, log(self._last[1] / last[1])))
        mean = fmean((one + other) / 2 for one, other, _ in self._pairs)
        self.samples = mean * min(self.CANDIDATES, key=lambda part: self._misfit(part, mean))

    def _misfit(self, part: float, mean: float) -> float:
        """Return how unlikely a fixed part is, as a sum of squares."""
        fixed = part * mean
        misfits = (log((other + fixed) / (one + fixed)) - longer for one, other, longer in self._pairs)
        return (log(1 + part) / self.PRIOR_DEVIATION) ** 2 + sum(min(4.0, (each / self.NOISE) ** 2) for each in misfits)


class SpeedReport(NamedTuple):
    """The speed of one rank, which the ranks exchange as numbers at each sync point."""

    sample_seconds: float
    """Predicted; 0 while unknown."""
    fixed_seconds: float
    """Predicted."""
    error: float
    """The mean relative error of such predictions of single iterations."""
    standard_error: float
    """The relative standard error of this prediction."""
    samples: float
    """Means over its last steps: samples, seconds of computing and of waiting."""
    computing: float
    waiting: float

    def report(self, part: int) -> RankReport:
        expected = self.fixed_seconds + self.sample_seconds * part if self.sample_seconds else 0.0
        return RankReport(self.samples, self.computing, self.waiting, expected, self.error)


SPEED_FIELDS = len(SpeedReport._fields)


def rebalance(reports: Sequence[SpeedReport], counts: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    """Return the split to continue with: another one only if that makes iterations noticeably shorter.

    ``limits`` are the samples that each rank can compute at once. The split stays as it is where a batch has fewer samples
    than there are ranks, and while the speed of a rank is unknown.
    """
    if sum(counts) < len(reports) or not all(each.sample_seconds for each in reports):
        return tuple(counts)
    ranks = zip(reports, limits, strict=True)
    workers = [Worker(each.sample_seconds, each.fixed_seconds, 1, limit, each.standard_error) for each, limit in ranks]
    return improve_split(workers, counts)


def improve_split(workers: Sequence[Worker], counts: Sequence[int]) -> tuple[int, ...]:
    """Return a split of as many samples with which workers are noticeably sooner or closer together, or else ``counts``.

    The limits of the workers' memories apply where the whole batch fits into them; else it takes several passes anyway.
    """
    workers = shrink_speeds(workers)
    if sum(worker.max_samples for worker in workers) < sum(counts):
        workers = [replace(worker, max_samples=UNLIMITED) for worker in workers]
    split = allocate(workers, sum(counts))
    sooner = seconds(workers, split) < (1 - MIN_GAIN) * seconds(workers, counts)
    closer = relative_gap(workers, split) < relative_gap(workers, counts) - MIN_GAP_REDUCTION
    fits = all(count <= worker.max_samples for worker, count in zip(workers, counts, strict=True))
    return split if sooner or closer or not fits else tuple(counts)


def shrink_speeds(workers: Sequence[Worker]) -> list[Worker]:
    """Estimate the workers' speeds, given that they differ partly by chance. Without this, equal workers get unequal parts.

    Each logarithm moves towards the mean of all: the larger its standard error is beside the real variance of the workers,
    the further. The real variance is the variance of all less the part that the standard errors explain. This is empirical
    Bayes (Morris 1983).
    """
    logs = [log(worker.sample_seconds) for worker in workers]
    if len(logs) < 2:
        return list(workers)
    mean = fmean(logs)
    real = max(0.0, variance(logs, mean) - fmean(worker.standard_error**2 for worker in workers))
    moved = []
    for worker, each in zip(workers, logs, strict=True):
        own = worker.standard_error**2
        slower = exp((mean - each) * own / (own + real)) if own else 1.0
        sample, fixed = worker.sample_seconds * slower, worker.fixed_seconds * slower
        moved.append(replace(worker, sample_seconds=sample, fixed_seconds=fixed))
    return moved
