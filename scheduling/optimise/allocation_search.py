"""Searches the best number of GPUs per job when a policy puts a value on every number: a multiple-choice knapsack.

``values[j][g]`` is the value of job ``j`` with ``g`` GPUs, minus infinity where that is not possible. All functions
return one count per job, at most ``gpus`` together, and break ties the same way every time.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scheduling.messages import Message
from scheduling.renamed import renamed
from scheduling.toolkit import estimates, placement, reasons
from scheduling.toolkit.capacity import UNLIMITED, Capacity, in_queue_order
from scheduling.toolkit.resources import gpus_when_empty
from scheduling.types import Curve, Job, JobId, Placement, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__,
        {
            "ask": "problem_from",
            "at_least": "keep_counts_from",
            "best": "best_counts",
            "whole": "keep_packable_counts",
            "within_limits": "solve_within_limits",
            "worth": "total_value",
            "Question": "AllocationProblem",
            "Rooms": "LimitHeadroom",
        },
    )

Values = NDArray[np.float64]

MAX_TABLE_CELLS = 300_000_000
"""The largest table of an exact search, in cells: about two seconds, and at most a quarter of a gigabyte.

The bound is on work and not on time, so that equal inputs give equal results on any machine.
"""
IMPOSSIBLE = -1e9
"""The value of a count that is not possible but came about because of the nodes on which GPUs are free."""
EQUAL_TOLERANCE = 1e-9
"""Gains that differ by less are equal: sums of floats are not exact."""


def best_counts(values: Sequence[Values], gpus: int, *, cells: int = MAX_TABLE_CELLS) -> list[int]:
    """Return the counts with the largest sum. It is exact, unless curves that are not concave need more than ``cells``.

    Concave curves never need a table: for them it is optimal to give the next GPU to the largest gain. The others are
    solved by ``P[j][k] = max over g of P[j-1][k-g] + value[j][g]``, and both parts are combined at the end. Beyond
    ``cells`` the others are replaced by their concave hulls, which loses at most the gain of one job by one step of its
    hull.
    """
    floors = [_min_count(value) for value in values]
    left = gpus - sum(floors)
    if left < 0:
        raise ValueError(f"the minimum of all jobs together is more than {gpus} GPUs")
    tails = [value[floor : floor + left + 1] for value, floor in zip(values, floors, strict=True)]
    rough = [number for number, tail in enumerate(tails) if not _is_concave(tail)]
    if sum(len(tails[number]) for number in rough) * (left + 1) > cells:
        more = _solve_on_hulls(tails, left)
    else:
        more = _solve_exactly(tails, rough, left)
    return [floor + extra for floor, extra in zip(floors, more, strict=True)]


def _min_count(value: Values) -> int:
    return int(np.argmax(np.isfinite(value)))


def _is_concave(tail: Values) -> bool:
    if not np.isfinite(tail).all():
        return False
    gains = np.diff(tail)
    return bool((np.diff(gains) <= EQUAL_TOLERANCE).all())


def _solve_exactly(tails: Sequence[Values], rough: Sequence[int], left: int) -> list[int]:
    smooth = sorted(set(range(len(tails))) - set(rough))
    gains = [(-gain, number) for number in smooth for gain in np.diff(tails[number]) if gain > 0]
    gains.sort()
    summed = np.concatenate(([0.0], np.cumsum([-gain for gain, _ in gains[:left]])))
    greedy = np.concatenate((summed, np.full(left + 1 - len(summed), summed[-1])))

    table = np.zeros(left + 1)
    chosen = np.zeros((len(rough), left + 1), np.uint16)
    for row, number in enumerate(rough):
        table = _add_job(table, tails[number], chosen[row])
    counts = [0] * len(tails)
    k = int(np.argmax(table + greedy[::-1]))
    for _, number in gains[: left - k]:
        counts[number] += 1
    for row in reversed(range(len(rough))):
        counts[rough[row]] = int(chosen[row, k])
        k -= counts[rough[row]]
    return counts


def _add_job(table: Values, tail: Values, chosen: NDArray[np.uint16]) -> Values:
    """Add one job: return the best of ``table[k - g] + tail[g]`` for every k, and write that g to ``chosen``."""
    maximum: Values = table + tail[0]
    for count in range(1, len(tail)):
        if tail[count] == -np.inf:
            continue
        other = table[: len(table) - count] + tail[count]
        better = other > maximum[count:] + EQUAL_TOLERANCE
        np.copyto(maximum[count:], other, where=better)
        chosen[count:][better] = count
    return maximum


def _solve_on_hulls(tails: Sequence[Values], left: int) -> list[int]:
    steps: list[tuple[float, int, int, int]] = []
    for number, tail in enumerate(tails):
        corners = _hull_corners(tail)
        for here, there in zip(corners, corners[1:], strict=False):
            slope = (tail[there] - tail[here]) / (there - here)
            if slope > 0:
                steps.append((-float(slope), number, here, there))
    steps.sort()
    counts = [0] * len(tails)
    for _, number, here, there in steps:
        if counts[number] != here or not left:
            continue
        if there - here > left:
            part = tails[number][here : here + left + 1]
            there = here + int(np.argmax(part))
        counts[number] = there
        left -= there - here
    return counts


def _hull_corners(tail: Values) -> list[int]:
    """Return the corners of the concave hull, from the minimum count on."""
    corners: list[int] = []
    heights = tail.tolist()
    for count, height in enumerate(heights):
        if height == -np.inf:
            continue
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            if (heights[last] - heights[before]) * (count - before) > (height - heights[before]) * (last - before):
                break
            corners.pop()
        corners.append(count)
    return corners


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job with its possible counts: ``min_gpus`` to ``max_gpus``, and 0 if ``may_have_none``."""

    job: Job
    min_gpus: int
    max_gpus: int
    may_have_none: bool

    @property
    def gpus(self) -> int:
        return self.job.gpus


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """The decision that a snapshot leaves to a policy that chooses counts."""

    candidates: tuple[Candidate, ...]
    """Waiting and running jobs that can get GPUs, in queue order."""
    gpus: int
    """GPUs that can be shared among them."""
    held: tuple[Job, ...]
    """Running jobs that keep what they have under any decision."""
    why: dict[JobId, Message]
    """The reasons of waiting jobs that cannot get GPUs under any decision."""
    later: Capacity

    @property
    def order(self) -> list[Job]:
        return [*self.held, *(candidate.job for candidate in self.candidates)]


def problem_from(snapshot: Snapshot) -> AllocationProblem:
    """Return the decision that a snapshot leaves to a policy.

    Jobs without a choice are left out, with their GPUs: stopping ones, those of fixed size that are not preemptible, and
    those with GPUs on a closed node, which no other job could use.
    """
    later = Capacity(snapshot, coming=True)
    gpus = sum(later.free.values())
    why: dict[JobId, Message] = {}
    candidates: list[Candidate] = []
    held: list[Job] = []
    everywhere = sum(node.total for node in later.nodes.values())
    largest = max((node.total for node in later.nodes.values()), default=0)
    for job in in_queue_order(snapshot.jobs):
        if job.waiting:
            if alone := reasons.impossible(job, later):
                why[job.id] = alone
                continue
            candidates.append(Candidate(job, job.min_gpus, _max_gpus(job, later, everywhere, largest), True))
        elif job.running and not (later.nodes.keys() >= job.now_on.keys() and (job.elastic or job.preemptible)):
            held.append(job)
        elif job.running:
            gpus += job.gpus
            if not job.elastic:
                candidates.append(Candidate(job, job.gpus, job.gpus, True))
                continue
            minimum = max(min(job.min_gpus, job.gpus), sum(job.base.values()))
            grown = job.gpus if job.blocked else max(job.gpus, _max_gpus(job, later, everywhere, largest))
            candidates.append(Candidate(job, minimum, grown, job.preemptible))
    return AllocationProblem(tuple(candidates), gpus, tuple(held), why, later)


def _max_gpus(job: Job, later: Capacity, everywhere: int, largest: int) -> int:
    """Return the largest count that the nodes of a job allow; ``solve_within_limits`` keeps its limits."""
    if job.running and not job.spread:
        here = sum(gpus_when_empty(later.nodes[node], job) for node in job.now_on)
    elif job.has_demands:
        here = later.scope(job).max_gpus(job)
    elif job.nodes is not None:
        totals = [node.total for node in later.nodes_of(job)]
        here = sum(totals) if job.spread else max(totals, default=0)
    else:
        here = everywhere if job.spread else largest
    return min(job.max_gpus, here, *(limit.max_gpus for limit, _ in later.limits_of(job)))


def solve(problem: AllocationProblem, values: Sequence[Values], caps: Mapping[JobId, int]) -> dict[JobId, int]:
    """Return the best counts of all candidates, none above its cap."""
    capped = [_cap_values(value, caps.get(c.job.id)) for c, value in zip(problem.candidates, values, strict=True)]
    counts = best_counts(capped, problem.gpus)
    return {candidate.job.id: count for candidate, count in zip(problem.candidates, counts, strict=True)}


def keep_packable_counts(problem: AllocationProblem, values: Sequence[Values]) -> list[Values]:
    """Return the values of counts that always fit together: powers of two within a node, and whole nodes (Sia, confirmed).

    Other counts, such as three and five, end up on more nodes than necessary, where the curves are not valid. The count
    that a job holds, its minimum, and its maximum if one node has that many stay possible; on a single node all do.
    """
    if len(problem.later.nodes) < 2:
        return list(values)
    size = max(1, *(node.total for node in problem.later.nodes.values()))
    usual = np.zeros(max(map(len, values), default=0), bool)
    usual[[1 << bit for bit in range(size.bit_length()) if 1 << bit < min(size, len(usual))]] = True
    usual[::size] = True
    found = []
    for candidate, value in zip(problem.candidates, values, strict=True):
        possible = usual[: len(value)].copy()
        maximum = len(value) - 1
        for count in (candidate.min_gpus, candidate.gpus, maximum if maximum <= size else 0):
            possible[min(count, maximum)] = True
        found.append(np.where(possible, value, -np.inf))
    return found


def keep_counts_from(problem: AllocationProblem, values: Sequence[Values], counts: Mapping[JobId, int]) -> list[Values]:
    """Return the values without counts below those in ``counts``; a job that has none there may still get some."""
    found = []
    for candidate, value in zip(problem.candidates, values, strict=True):
        floor = counts[candidate.job.id]
        found.append(np.where(np.arange(len(value)) >= floor, value, -np.inf))
    return found


def _cap_values(value: Values, cap: int | None) -> Values:
    if cap is None or cap + 1 >= len(value):
        return value
    cut = value[: cap + 1]
    return cut if np.isfinite(cut).any() else np.array([0.0])


def total_value(problem: AllocationProblem, values: Sequence[Values], target: Mapping[JobId, Placement]) -> float:
    """Return the value of a target, summed over all candidates."""
    total = 0.0
    for candidate, value in zip(problem.candidates, values, strict=True):
        count = placement.total(target.get(candidate.job.id, {}))
        total += max(float(value[min(count, len(value) - 1)]), IMPOSSIBLE)
    return total


def solve_within_limits(
    problem: AllocationProblem, answer: Callable[[Mapping[JobId, int]], Mapping[JobId, int]]
) -> dict[JobId, int]:
    """Return the counts of ``answer``, reduced to the limits; ``answer`` gets caps for candidates at a limit.

    A limit is first come, first served: later jobs get what is left of it. The GPUs that this frees are shared once
    more; after that, counts are only reduced.
    """
    caps: dict[JobId, int] = {}
    counts = dict(answer(caps))
    if problem.later.limits:
        caps = _reduce_to_limits(problem, counts)
        if caps:
            counts = dict(answer(caps))
            counts.update(_reduce_to_limits(problem, counts))
    return counts


def _reduce_to_limits(problem: AllocationProblem, counts: Mapping[JobId, int]) -> dict[JobId, int]:
    """Return reduced counts for the candidates that exceed a limit."""
    headroom = LimitHeadroom(problem)
    cut: dict[JobId, int] = {}
    for candidate in sorted(problem.candidates, key=lambda candidate: candidate.may_have_none):
        id, count = candidate.job.id, counts.get(candidate.job.id, 0)
        allowed = headroom.left(id)
        if count > allowed:
            fits = candidate.min_gpus <= allowed
            count = allowed if fits else 0 if candidate.may_have_none else candidate.min_gpus
            cut[id] = count
        headroom.use(id, count)
    return cut


class LimitHeadroom:
    """The GPUs that limits leave for the candidates."""

    def __init__(self, problem: AllocationProblem) -> None:
        later, known = problem.later, {candidate.job.id for candidate in problem.candidates}
        self._limits_of: dict[JobId, list[int]] = {}
        self._headroom: list[int] = []
        for index, limit in enumerate(later.limits):
            others = sum(placement.total(later.held.get(id, {})) for id in limit.jobs - known)
            self._headroom.append(limit.max_gpus - limit.elsewhere - others)
            for id in limit.jobs:
                self._limits_of.setdefault(id, []).append(index)

    def copy(self) -> "LimitHeadroom":
        other = copy(self)
        other._headroom = list(self._headroom)
        return other

    def left(self, job: JobId) -> int:
        return min((self._headroom[index] for index in self._limits_of.get(job, ())), default=UNLIMITED)

    def use(self, job: JobId, gpus: int) -> None:
        for index in self._limits_of.get(job, ()):
            self._headroom[index] -= gpus


def speeds(job: Job, maximum: int, *, free_batch: bool) -> Values:
    """Return ``estimates.speed`` with 0, 1, ... ``maximum`` GPUs."""
    known: Curve | None = estimates.curve(job, free_batch=free_batch)
    if known is None or not known.speeds:
        return np.arange(maximum + 1, dtype=float) ** estimates.DEFAULT_EXPONENT
    listed = known.speeds[:maximum]
    return np.array((0.0, *listed, *(known.speeds[-1],) * (maximum - len(listed))))
