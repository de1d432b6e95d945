"""Keeping unequal workers equally busy: each tells how fast it is, all decide alike."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, pi, sqrt
from statistics import fmean, variance
from typing import Literal, NamedTuple

from .allocation import UNLIMITED, Worker, allocate, gap, seconds
from .predict import FIRST_SPREAD, Blend, Predictor, Scored, Smoothing, log_seconds
from .report import RankReport

Kind = Literal["smoothing", "gru", "blend"]
LEAST_GAIN = 0.05
"""A new split must make the iteration so much shorter,"""
LEAST_GAP = 0.05
"""or bring the workers so much closer together: one that has too little to do shortens no iteration, and idles."""
LASTING = 1.5
"""What slows one iteration down often does so with the next: a mean is so many times more in doubt than of independent ones.

Chosen among 1 to 3 on speeds measured by the bench: with less, chance moves splits more often; with more, slow workers wait
longer for theirs."""

REMEMBERED = 10
"""Iterations, as many as count alike in a prediction."""


def predictor(kind: Kind, seed: int = 0) -> Predictor:
    if kind == "smoothing":
        return Smoothing()
    from .gru import Gru  # torch

    return Gru(seed) if kind == "gru" else Blend(Smoothing(), Gru(seed))


def is_whole(samples: int, part: int) -> bool:
    """Does an iteration with so many samples say how long one with ``part`` takes. The rest of an epoch does not."""
    return 2 * samples >= part


class Speed:
    """One worker's speed, learnt from its iterations, or from the means of several under one split.

    An iteration takes ``sample_seconds * (samples + fixed.samples)``; what is predicted is the first of these.
    """

    def __init__(self, kind: Kind = "smoothing", seed: int = 0) -> None:
        self._predictor = Scored(predictor(kind, seed))
        self._fixed = Fixed()
        self._sizes: deque[float] = deque(maxlen=REMEMBERED)
        """What the predictor has seen was of iterations with so many samples."""

    def observe(self, samples: float, computed: float) -> None:
        """None without samples says anything."""
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
        """Expected in the next iteration; 0 while nothing is known."""
        meant = self._predictor.predict()
        return 0.0 if meant is None else exp(meant)

    def fixed_seconds(self) -> float:
        """What an iteration takes besides."""
        return self._fixed.samples * self.sample_seconds()

    def error(self) -> float:
        """Of its predictions one iteration ahead, as a part of the speed."""
        return self._predictor.error or 0.0

    def doubt(self) -> float:
        """Standard error of what is expected, as a part of it: that of a mean of values that are off by so much.

        How far the first one is off is not known: it counts as usual ones do.
        """
        values = max(1, len(self._sizes))
        deviation = sqrt(pi / 2) * self.error()  # as of normal ones
        return LASTING * (FIRST_SPREAD + (values - 1) * deviation) / values**1.5


class Fixed:
    """What an iteration takes however few samples it has, in samples: who is slowed down is slower in both alike.

    Learnt from neighbours of different sizes, between which hardly anything else has changed. No probing is needed to
    see them: the first change of a split, made as if there were no fixed part, brings the first two.
    """

    UNEQUAL = 0.1
    """Of sizes, as a logarithm: more alike they say nothing."""
    NOISE = 0.25
    """Of the ratio of two iterations; what is off by more than twice of it was a change of the load."""
    LIKELY = 0.7
    """Before anything was seen, of the logarithm of 1 + its part of the sizes."""
    PARTS = (0.0, *(0.05 * 1.3**step for step in range(12)))
    """Of the mean size: what is tried."""

    def __init__(self) -> None:
        self.samples = 0.0
        self._last: tuple[float, float] | None = None
        self._pairs: deque[tuple[float, float, float]] = deque(maxlen=16)
        """Two sizes, and the logarithm of how much longer the second one took."""

    def observe(self, samples: float, seconds: float) -> None:
        last, self._last = self._last, (samples, max(seconds, 1e-9))
        if last is None or abs(log(samples / last[0])) < self.UNEQUAL:
            return
        self._pairs.append((last[0], samples, log(self._last[1] / last[1])))
        mean = fmean((one + other) / 2 for one, other, _ in self._pairs)
        self.samples = mean * min(self.PARTS, key=lambda part: self._unlikely(part, mean))

    def _unlikely(self, part: float, mean: float) -> float:
        """A sum of squares."""
        fixed = part * mean
        misfits = (log((other + fixed) / (one + fixed)) - longer for one, other, longer in self._pairs)
        return (log(1 + part) / self.LIKELY) ** 2 + sum(min(4.0, (each / self.NOISE) ** 2) for each in misfits)


class Told(NamedTuple):
    """What a rank tells the others at each look, all of it as numbers."""

    sample_seconds: float
    """Expected; 0 while it cannot tell."""
    fixed_seconds: float
    error: float
    """Of such expectations of single iterations, as a part of them;"""
    doubt: float
    """and the standard error of this one."""
    samples: float
    """Of its last steps the means: samples, and seconds of computing and of waiting."""
    computing: float
    waiting: float

    def report(self, part: int) -> RankReport:
        expected = self.fixed_seconds + self.sample_seconds * part if self.sample_seconds else 0.0
        return RankReport(self.samples, self.computing, self.waiting, expected, self.error)


FACTS = len(Told._fields)


def rebalanced(told: Sequence[Told], counts: Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    """The split to go on with: another one only if that makes iterations noticeably shorter.

    Batches with fewer samples than there are ranks, and ranks of which nothing is known yet, stay as they are.
    """
    if sum(counts) < len(told) or not all(each.sample_seconds for each in told):
        return tuple(counts)
    them = zip(told, most, strict=True)
    workers = [Worker(each.sample_seconds, each.fixed_seconds, 1, top, each.doubt) for each, top in them]
    return better(workers, counts)


def better(workers: Sequence[Worker], counts: Sequence[int]) -> tuple[int, ...]:
    """A split of as many samples in which they are ready noticeably sooner, or noticeably closer together; else ``counts``.

    What fits into their memories at once counts where all of it does: else they need several passes anyhow.
    """
    workers = likely(workers)
    if sum(worker.most for worker in workers) < sum(counts):
        workers = [replace(worker, most=UNLIMITED) for worker in workers]
    split = allocate(workers, sum(counts))
    sooner = seconds(workers, split) < (1 - LEAST_GAIN) * seconds(workers, counts)
    closer = gap(workers, split) < gap(workers, counts) - LEAST_GAP
    fits = all(count <= worker.most for worker, count in zip(workers, counts, strict=True))
    return split if sooner or closer or not fits else tuple(counts)


def likely(workers: Sequence[Worker]) -> list[Worker]:
    """How fast they are likely to be, given that they differ from each other partly by chance: else equal workers get
    unequal parts, one after another.

    Each logarithm moves towards the mean of all, the farther the larger its doubt is beside how much workers really
    differ, which is the variance of all without what the doubts explain of it. That is empirical Bayes (Morris 1983).
    """
    logs = [log(worker.sample_seconds) for worker in workers]
    if len(logs) < 2:
        return list(workers)
    mean = fmean(logs)
    real = max(0.0, variance(logs, mean) - fmean(worker.doubt**2 for worker in workers))
    moved = []
    for worker, each in zip(workers, logs, strict=True):
        doubt = worker.doubt**2
        slower = exp((mean - each) * doubt / (doubt + real)) if doubt else 1.0
        sample, fixed = worker.sample_seconds * slower, worker.fixed_seconds * slower
        moved.append(replace(worker, sample_seconds=sample, fixed_seconds=fixed))
    return moved
