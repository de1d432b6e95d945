"""Keeping unequal workers equally busy: each tells how fast it is, all decide alike."""

from collections import deque
from collections.abc import Sequence
from math import exp
from statistics import linear_regression
from typing import Literal

from .allocation import Worker, allocate, seconds
from .gru import Gru
from .predict import Blend, Predictor, Scored, Smoothing, log_seconds

Kind = Literal["smoothing", "gru", "blend"]
LEAST_GAIN = 0.05
"""A new split must make the iteration so much shorter."""
REMEMBERED = 64
"""Iterations from which the fixed part is fitted."""
UNEQUAL = 1.1
"""Sizes that differ by less say nothing of the fixed part."""


def predictor(kind: Kind, seed: int = 0) -> Predictor:
    if kind == "gru":
        return Gru(seed)
    return Blend(Smoothing(), Gru(seed)) if kind == "blend" else Smoothing()


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


def rebalanced(workers: Sequence[Worker], counts: Sequence[int]) -> tuple[int, ...]:
    """The split to go on with: another one only if that makes iterations noticeably shorter."""
    better = allocate(workers, sum(counts))
    if seconds(workers, better) < (1 - LEAST_GAIN) * seconds(workers, counts):
        return better
    return tuple(counts)
