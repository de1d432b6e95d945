"""The rules of k-sync, k-async and asynchronous training, as pure functions: whose gradients make an update.

They follow Dutta et al. (2018, "Slow and stale gradients can win the race") and the adaptive rules of Yu's thesis (2020),
of which only the abstract was available: the concrete rules are a reconstruction (``docs/training/unequal-workers.md``).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

FORCED_ROUNDS = 50
"""Every so many rounds the server waits for all workers, so that no worker is left out forever."""
ROUNDS_UNTIL_LOCKSTEP = 20
"""After so many rounds in a row that wait for all workers, they continue without a server."""
NEAR_BEST_SHARE = 0.9
"""Of several k that use at least this share of the most samples per second, the largest wins: it wastes the fewest."""
STALENESS = 6.0
"""Adaptive k-async aims at so many updates while the slowest worker computes one gradient."""


@dataclass(frozen=True, slots=True)
class Expected:
    """When a worker will be ready, in seconds from the beginning of the round, and with how many samples."""

    seconds: float
    samples: int


def min_k(workers: int) -> int:
    return max(1, ceil(workers / 2))


def best_k(expected: Sequence[Expected], aggregate_seconds: float = 0.0) -> int:
    """Return how many workers to wait for to use the most samples per second; of several nearly as good k, the largest.

    The first k are ready after ``T_(k)``, with the sum of their samples; an update takes ``aggregate_seconds`` more.
    """
    order = sorted(expected, key=lambda worker: worker.seconds)
    samples = itertools.accumulate(worker.samples for worker in order)
    seconds = (max(1e-9, worker.seconds + aggregate_seconds) for worker in order)
    rates = [some / after for some, after in zip(samples, seconds, strict=True)]
    enough = NEAR_BEST_SHARE * max(rates)
    return max(k for k, rate in enumerate(rates, start=1) if rate >= enough)


def should_leave_out_worker(expected: Sequence[Expected]) -> bool:
    """Return whether leaving out a worker pays."""
    return best_k(expected) < len(expected)


def next_k_sync(
    current: int, expected: Sequence[Expected], round_number: int, *, aggregate_seconds: float = 0.0
) -> int:
    """Return the k of the next round: towards the best one, by one at most, never below half; all in every 50th round."""
    workers = len(expected)
    if round_number % FORCED_ROUNDS == 0:
        return workers
    wanted = max(min_k(workers), best_k(expected, aggregate_seconds))
    return min(workers, max(min_k(workers), current + max(-1, min(1, wanted - current))))


def k_async(iteration_seconds: Sequence[float], staleness: float = STALENESS) -> int:
    """Return how many gradients make an update, so that those of the slowest worker are ``staleness`` updates old.

    While it computes for ``T_max`` seconds, all workers together send ``T_max * sum(1 / T)`` gradients.
    """
    arrivals = max(iteration_seconds) * sum(1 / seconds for seconds in iteration_seconds)
    return max(1, min(len(iteration_seconds), ceil(arrivals / staleness)))


def max_staleness(staleness: float = STALENESS) -> int:
    """Return the staleness beyond which a gradient is dropped (bounded staleness without waiting, after SaPS)."""
    return ceil(2 * staleness)


def weight(samples: int, staleness: int, power: float = 1.0) -> float:
    """Return the weight of a gradient among those of its update."""
    found: float = samples / (1 + staleness) ** power
    return found


def too_far_ahead(lead: int, bound: int | None) -> bool:
    """Return whether a worker must wait because its ``lead`` over the slowest, in gradients, exceeds the ``bound``.

    This is the rule of stale synchronous parallel.
    """
    return bound is not None and lead > bound
