"""Keeping unequal workers equally busy: each tells how fast it is, all decide alike."""

from collections import deque
from collections.abc import Sequence
from math import exp
from statistics import linear_regression
from typing import Literal, NamedTuple

from .allocation import Worker, allocate, seconds
from .predict import Blend, Predictor, Scored, Smoothing, log_seconds
from .report import RankReport

Kind = Literal["smoothing", "gru", "blend"]
LEAST_GAIN = 0.05
"""A new split must make the iteration so much shorter."""
REMEMBERED = 64
"""Iterations from which the fixed part is fitted."""
UNEQUAL = 1.1
"""Sizes that differ by less say nothing of the fixed part."""


def predictor(kind: Kind, seed: int = 0) -> Predictor:
    if kind == "smoothing":
        return Smoothing()
    from .gru import Gru  # torch

    return Gru(seed) if kind == "gru" else Blend(Smoothing(), Gru(seed))


class Speed:
    """One worker's own view of its speed."""

    def __init__(self, kind: Kind = "smoothing", seed: int = 0) -> None:
        self._predictor = Scored(predictor(kind, seed))
        self._past: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self.fixed_seconds = 0.0

    def observe(self, samples: int, computed: float) -> None:
        """An iteration of its own. One without samples says nothing."""
        if not samples:
            return
        self._past.append((samples, computed))
        self.fixed_seconds = fixed_part(list(self._past))
        self._predictor.observe(log_seconds(computed, samples, self.fixed_seconds))

    def sample_seconds(self) -> float:
        """Expected in the next iteration; 0 while nothing is known."""
        meant = self._predictor.predict()
        return 0.0 if meant is None else exp(meant)

    def error(self) -> float:
        """Of its predictions one iteration ahead, as a part of the speed."""
        return self._predictor.error or 0.0


def fixed_part(past: Sequence[tuple[int, float]]) -> float:
    """The intercept of seconds over samples; 0 while all iterations were about equally large.

    No probing is needed to see two sizes: the first change of the split, made as if there were no fixed part, brings the
    second one.
    """
    sizes = [samples for samples, _ in past]
    if not sizes or max(sizes) < UNEQUAL * min(sizes):
        return 0.0
    fitted = linear_regression(sizes, [computed for _, computed in past])
    return min(max(0.0, fitted.intercept), 0.9 * min(computed for _, computed in past))


class Told(NamedTuple):
    """What a rank tells the others at each look, all of it as numbers."""

    sample_seconds: float
    """Expected; 0 while it cannot tell."""
    fixed_seconds: float
    most_samples: float
    error: float
    samples: float
    """Of its last steps the means: samples, and seconds of computing and of waiting."""
    computing: float
    waiting: float

    def report(self, part: int) -> RankReport:
        expected = self.fixed_seconds + self.sample_seconds * part if self.sample_seconds else 0.0
        return RankReport(self.samples, self.computing, self.waiting, expected, self.error)


FACTS = len(Told._fields)


def rebalanced(told: Sequence[Told], counts: Sequence[int]) -> tuple[int, ...]:
    """The split to go on with: another one only if that makes iterations noticeably shorter.

    Batches with fewer samples than there are ranks, and ranks of which nothing is known yet, stay as they are.
    """
    if sum(counts) < len(told) or not all(each.sample_seconds for each in told):
        return tuple(counts)
    workers = [Worker(each.sample_seconds, each.fixed_seconds, 1, int(each.most_samples)) for each in told]
    better = allocate(workers, sum(counts))
    if seconds(workers, better) < (1 - LEAST_GAIN) * seconds(workers, counts):
        return better
    return tuple(counts)
