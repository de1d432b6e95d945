"""Splits each batch into parts so that all workers are ready at the same time.

A worker takes ``fixed_seconds + sample_seconds * samples`` for its part. The batch as a whole never changes, so the learning
rate and its schedule stay valid. The idea is that of LB-BSP (Chen et al. 2020); the rounding and the rules of when to change
the parts are our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

UNLIMITED = 1 << 40
"""More samples than any batch has."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The speed of one worker, and the range of samples that it can take."""

    sample_seconds: float
    fixed_seconds: float = 0.0
    """The part of an iteration's time that does not depend on its samples."""
    min_samples: int = 1
    """A GPU takes equally long for fewer samples, so smaller parts gain nothing."""
    max_samples: int = UNLIMITED
    """More samples do not fit into its memory."""
    standard_error: float = 0.0
    """The relative standard error of its seconds."""

    def __post_init__(self) -> None:
        if not (self.sample_seconds > 0 and self.fixed_seconds >= 0):
            raise ValueError(
                f"a worker takes some time for a sample, not {self.sample_seconds} s + {self.fixed_seconds} s"
            )
        if not 0 <= self.min_samples <= self.max_samples:
            raise ValueError(
                f"a worker takes {self.min_samples} to {self.max_samples} samples: the minimum is above the maximum"
            )

    def seconds(self, samples: int) -> float:
        """Return the time of an iteration with so many samples."""
        return self.fixed_seconds + self.sample_seconds * samples


def allocate(workers: Sequence[Worker], total: int) -> tuple[int, ...]:
    """Return the samples of each worker, ``total`` together, such that the last worker is ready as soon as possible.

    First with real numbers: within ``t`` seconds each worker takes ``(t - fixed) / sample`` samples, within its bounds, and
    the ``t`` at which these add up to ``total`` is found exactly. Then with whole numbers: each is rounded down, and the
    missing samples go one by one to the worker that would be ready first with one more.

    Raises ``ValueError`` when the workers' bounds leave no way to split ``total``.
    """
    fixed = np.array([worker.fixed_seconds for worker in workers])
    each = np.array([worker.sample_seconds for worker in workers])
    lower = np.array([worker.min_samples for worker in workers], float)
    upper = np.array([min(worker.max_samples, total) for worker in workers], float)
    if not lower.sum() <= total <= upper.sum():
        bounds = f"{lower.sum():.0f} to {sum(worker.max_samples for worker in workers)}"
        raise ValueError(
            f"a batch of {total} cannot be split among {len(workers)} workers, which take {bounds} together"
        )

    def samples_within(level: float) -> np.ndarray:
        samples: np.ndarray = np.clip((level - fixed) / each, lower, upper)
        return samples

    bends = np.unique(np.concatenate([fixed + each * lower, fixed + each * upper]))
    level = float(np.interp(total, [samples_within(bend).sum() for bend in bends], bends))
    counts = np.floor(samples_within(level) + 1e-9)
    for _ in range(total - int(counts.sum())):
        ready = np.where(counts < upper, fixed + each * (counts + 1), np.inf)
        counts[np.argmin(ready)] += 1
    for _ in range(int(counts.sum()) - total):  # undo what floating point may have added
        ready = np.where(counts > lower, fixed + each * counts, -np.inf)
        counts[np.argmax(ready)] -= 1
    return tuple(int(count) for count in counts)


def split_proportionally(total: int, parts: Sequence[int]) -> tuple[int, ...]:
    """Split a batch of another size, usually the last of an epoch, in the same proportions, by largest remainder.

    ``parts`` are the samples per worker of a full batch, at least one of them above zero. Some workers may get none.
    """
    whole = sum(parts)
    counts = [total * part // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda rank: (-(total * parts[rank] % whole), rank))
    for rank in remainders[: total - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def split_evenly(total: int, workers: int) -> tuple[int, ...]:
    """Split a batch as equally as whole numbers allow, with the larger parts first."""
    return split_proportionally(total, (1,) * workers)


def count_passes(counts: Sequence[int], limits: Sequence[int]) -> int:
    """Return how many passes the workers need for their parts, with at most ``limits`` samples of each in a pass."""
    return max(1, *(-(-count // limit) for count, limit in zip(counts, limits, strict=True)))


@lru_cache  # most batches are like the one before
def plan_passes(
    total: int, parts: tuple[int, ...], limits: tuple[int, ...], rank: int
) -> tuple[tuple[slice, int], ...]:
    """Return, for each pass over a batch of ``total`` samples, the rank's piece and the samples of all ranks in this pass."""
    counts = split_proportionally(total, parts)
    needed = count_passes(counts, limits)
    first, planned = sum(counts[:rank]), []
    for number in range(needed):
        now = [count // needed + (number < count % needed) for count in counts]
        planned.append((slice(first, first + now[rank]), sum(now)))
        first += now[rank]
    return tuple(planned)


def seconds(workers: Sequence[Worker], counts: Sequence[int]) -> float:
    """Return the seconds until the last worker is ready."""
    return max(worker.seconds(count) for worker, count in zip(workers, counts, strict=True))


def relative_gap(workers: Sequence[Worker], counts: Sequence[int]) -> float:
    """Return how much longer the last worker takes than the first, relative to the first; infinite if that takes no time."""
    times = [worker.seconds(count) for worker, count in zip(workers, counts, strict=True)]
    return max(times) / min(times) - 1 if min(times) else inf
