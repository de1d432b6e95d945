"""Whose gradients make an update: the rules of k-sync, k-async and asynchronous training, as pure functions.

After Dutta et al. (2018, "Slow and stale gradients can win the race") and the adaptive rules of Yu's thesis (2020), of
which only the abstract was at hand: the concrete rules are a reconstruction, as ``docs/training.md`` tells.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

FORCED_ROUNDS = 50
"""Every so many rounds all workers are waited for, so that nobody's samples are left out for ever."""
ROUNDS_TO_MEET = 20
"""Rounds in which all workers are waited for, after which they go on without a server."""
NEARLY = 0.9
"""Of the most samples in a second: so many are as good, if fewer are thrown away."""
STALENESS = 6.0
"""Adaptive k-async aims at so many updates while the slowest worker computes one gradient."""


@dataclass(frozen=True, slots=True)
class Expected:
    """When a worker will be ready, counted from the beginning of the round, and with how many samples."""

    seconds: float
    samples: int


def least_k(workers: int) -> int:
    return max(1, ceil(workers / 2))


def best_k(expected: Sequence[Expected], aggregate_seconds: float = 0.0) -> int:
    """How many workers to wait for so that the most samples are used in a second; of several nearly as good the largest k.

    The first k are ready after ``T_(k)``, with the sum of their samples; an update takes ``aggregate_seconds`` more.
    """
    order = sorted(expected, key=lambda worker: worker.seconds)
    samples = itertools.accumulate(worker.samples for worker in order)
    seconds = (max(1e-9, worker.seconds + aggregate_seconds) for worker in order)
    rates = [some / after for some, after in zip(samples, seconds, strict=True)]
    enough = NEARLY * max(rates)
    return max(k for k, rate in enumerate(rates, start=1) if rate >= enough)


def pays(expected: Sequence[Expected]) -> bool:
    """Is it worth while to leave somebody out."""
    return best_k(expected) < len(expected)


def next_k_sync(
    current: int, expected: Sequence[Expected], round_number: int, *, aggregate_seconds: float = 0.0
) -> int:
    """The k of the next round: towards the best one, by one at most, never below half; every 50th round all."""
    workers = len(expected)
    if round_number % FORCED_ROUNDS == 0:
        return workers
    wanted = max(least_k(workers), best_k(expected, aggregate_seconds))
    return min(workers, max(least_k(workers), current + max(-1, min(1, wanted - current))))


def k_async(iteration_seconds: Sequence[float], staleness: float = STALENESS) -> int:
    """How many gradients make an update, so that one of the slowest worker is ``staleness`` updates old.

    While it computes for ``T_max`` seconds the workers together send ``T_max * sum(1 / T)`` gradients.
    """
    arrivals = max(iteration_seconds) * sum(1 / seconds for seconds in iteration_seconds)
    return max(1, min(len(iteration_seconds), ceil(arrivals / staleness)))


def most_staleness(staleness: float = STALENESS) -> int:
    """A gradient that is older is dropped (bounded staleness without waiting, after SaPS)."""
    return ceil(2 * staleness)


def weight(samples: int, staleness: int, power: float = 1.0) -> float:
    """What a gradient counts among those of its update."""
    return samples / (1 + staleness) ** power


def too_far_ahead(lead: int, bound: int | None) -> bool:
    """Stale synchronous parallel: a worker waits that has made so many more gradients than the slowest one."""
    return bound is not None and lead > bound
