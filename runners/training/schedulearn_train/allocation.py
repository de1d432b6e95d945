"""Which part of each batch a worker gets, so that all of them are ready at the same time.

A worker takes ``fixed_seconds + sample_seconds * samples`` for its part. The whole batch never changes, so the learning
rate and its schedule stay as they were; only its parts do. The idea is that of LB-BSP (Chen et al. 2020); the rounding
and the rules of when to change are our own.
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
    """What is known of one worker's speed, and how many samples it can take."""

    sample_seconds: float
    fixed_seconds: float = 0.0
    """Of each iteration, however many samples it has."""
    least: int = 1
    """A GPU takes as long for fewer: below its knee there is nothing to win."""
    most: int = UNLIMITED
    """More do not fit into its memory."""
    doubt: float = 0.0
    """Standard error of its seconds, as a part of them."""

    def __post_init__(self) -> None:
        if not (self.sample_seconds > 0 and self.fixed_seconds >= 0):
            raise ValueError(
                f"a worker takes some time for a sample, not {self.sample_seconds} s + {self.fixed_seconds} s"
            )
        if not 0 <= self.least <= self.most:
            raise ValueError(f"a worker takes {self.least} to {self.most} samples: the least is above the most")

    def seconds(self, samples: int) -> float:
        """What an iteration with so many samples takes it."""
        return self.fixed_seconds + self.sample_seconds * samples


def allocate(workers: Sequence[Worker], total: int) -> tuple[int, ...]:
    """Samples for each worker, ``total`` together, such that the last one is ready as soon as possible.

    First in real numbers: at a level of ``t`` seconds each worker takes the ``(t - fixed) / sample`` samples it manages
    by then, within its bounds, and the level at which that makes ``total`` is found exactly. Then whole numbers: each is
    rounded down, and what is missing goes one by one to whoever would be ready first with one more.

    Raises ``ValueError`` when the workers' bounds leave no way to split ``total``.
    """
    fixed = np.array([worker.fixed_seconds for worker in workers])
    each = np.array([worker.sample_seconds for worker in workers])
    least = np.array([worker.least for worker in workers], float)
    most = np.array([min(worker.most, total) for worker in workers], float)
    if not least.sum() <= total <= most.sum():
        bounds = f"{least.sum():.0f} to {sum(worker.most for worker in workers)}"
        raise ValueError(
            f"a batch of {total} cannot be split among {len(workers)} workers, which take {bounds} together"
        )

    def taken(level: float) -> np.ndarray:
        return np.clip((level - fixed) / each, least, most)

    bends = np.unique(np.concatenate([fixed + each * least, fixed + each * most]))
    level = float(np.interp(total, [taken(bend).sum() for bend in bends], bends))
    counts = np.floor(taken(level) + 1e-9)
    for _ in range(total - int(counts.sum())):
        ready = np.where(counts < most, fixed + each * (counts + 1), np.inf)
        counts[np.argmin(ready)] += 1
    for _ in range(int(counts.sum()) - total):  # what floating point may have added
        ready = np.where(counts > least, fixed + each * counts, -np.inf)
        counts[np.argmax(ready)] -= 1
    return tuple(int(count) for count in counts)


def shares(total: int, parts: Sequence[int]) -> tuple[int, ...]:
    """A batch of another size in the same proportions, by largest remainder: the last one of an epoch, mostly.

    Some may get nothing. ``parts`` are samples per worker of a full batch, at least one of them above zero.
    """
    whole = sum(parts)
    counts = [total * part // whole for part in parts]
    remainders = sorted(range(len(parts)), key=lambda rank: (-(total * parts[rank] % whole), rank))
    for rank in remainders[: total - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def even(total: int, workers: int) -> tuple[int, ...]:
    """As equal as whole numbers allow, the first ones larger."""
    return shares(total, (1,) * workers)


def passes(counts: Sequence[int], most: Sequence[int]) -> int:
    """In how many all workers compute their parts, of which ``most`` fit into their memories at once."""
    return max(1, *(-(-count // top) for count, top in zip(counts, most, strict=True)))


@lru_cache  # most batches are like the one before
def plan(total: int, parts: tuple[int, ...], most: tuple[int, ...], rank: int) -> tuple[tuple[slice, int], ...]:
    """For each pass over a batch of ``total`` samples: the rank's piece of it, and how many samples all ranks have then."""
    counts = shares(total, parts)
    needed = passes(counts, most)
    first, planned = sum(counts[:rank]), []
    for number in range(needed):
        now = [count // needed + (number < count % needed) for count in counts]
        planned.append((slice(first, first + now[rank]), sum(now)))
        first += now[rank]
    return tuple(planned)


def seconds(workers: Sequence[Worker], counts: Sequence[int]) -> float:
    """When the last one is ready."""
    return max(worker.seconds(count) for worker, count in zip(workers, counts, strict=True))


def gap(workers: Sequence[Worker], counts: Sequence[int]) -> float:
    """How much longer the last one takes than the first, as a part of what the first takes. Infinite if that is nothing."""
    times = [worker.seconds(count) for worker, count in zip(workers, counts, strict=True)]
    return max(times) / min(times) - 1 if min(times) else inf
