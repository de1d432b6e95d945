"""GPUs booked ahead by time slot, and their prices: the order book and the bids of PD-ORS.

The price of a GPU rises from ``low``, on an empty node, to ``high`` as the slot sells out: ``low * (high / low) **
(sold / total)``. A job buys the schedule whose value exceeds its price by the largest amount. All of this is a
reconstruction of Yu et al. (arXiv 2108.02917) in the family of OASiS; its abstract confirms pricing, locality and
admission.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.optimise import packing
from scheduling.toolkit import estimates
from scheduling.types import Job, JobId, Node, NodeId, Placement

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Schedule = dict[int, dict[NodeId, int]]
"""GPUs by slot and node. Slots are numbered since the epoch; those without GPUs are left out."""

MAX_QUANTA = 288
"""The largest number of parts of the work of a job: half a slot each, over two days."""
LATE_VALUE_FRACTION = 0.1
"""The fraction of its value that a result keeps after its due time."""
MIN_DELAY_SECONDS = 600.0
"""Delays shorter than this count the same."""
EQUAL_TOLERANCE = 1e-9
"""Payoffs that differ by less are equal, and the earlier end wins: sums of floats are not exact."""
MAX_SIZES = 8
"""The largest number of sizes that a job may choose from in each slot; of more, some in between are left out."""


class Book:
    """The GPUs sold of each node in each slot from ``first`` on."""

    def __init__(self, nodes: Sequence[Node], first: int, slots: int) -> None:
        self.nodes = [node for node in sorted(nodes, key=lambda node: node.id) if node.open and node.total]
        self.index = {node.id: number for number, node in enumerate(self.nodes)}
        self.first, self.slots = first, slots
        self.total = np.array([node.total for node in self.nodes], dtype=np.int64)
        self.sold = np.zeros((len(self.nodes), slots), dtype=np.int64)
        self.schedules: dict[JobId, Schedule] = {}

    @property
    def free(self) -> Counts:
        return self.total[:, None] - self.sold

    def prices(self, low: float, high: float) -> Floats:
        share = self.sold / np.maximum(self.total[:, None], 1)
        return np.asarray(low * (high / low) ** share, dtype=np.float64)

    def sell(self, job: JobId, schedule: Schedule) -> bool:
        """Book the whole schedule from ``first`` on, or nothing; return whether it was booked."""
        rest = {slot: where for slot, where in schedule.items() if slot >= self.first}
        if not rest or any(node not in self.index for where in rest.values() for node in where):
            return False
        cells = [
            (self.index[node], slot - self.first, gpus)
            for slot, where in rest.items()
            if slot < self.first + self.slots
            for node, gpus in where.items()
        ]
        if any(self.sold[node, slot] + gpus > self.total[node] for node, slot, gpus in cells):
            return False
        for node, slot, gpus in cells:
            self.sold[node, slot] += gpus
        self.schedules[job] = rest
        return True

    def release(self, job: JobId) -> None:
        for slot, where in self.schedules.pop(job, {}).items():
            if slot < self.first + self.slots:
                for node, gpus in where.items():
                    self.sold[self.index[node], slot - self.first] -= gpus

    def book_held(self, job: JobId, now_on: Placement, slots: int) -> None:
        """Book what a running job holds, as far as it is not sold: the job is there, whatever was planned."""
        schedule: Schedule = {}
        for slot in range(min(slots, self.slots)):
            here = {
                node: min(gpus, int(self.total[self.index[node]] - self.sold[self.index[node], slot]))
                for node, gpus in now_on.items()
                if node in self.index
            }
            if any(here.values()):
                schedule[self.first + slot] = {node: gpus for node, gpus in here.items() if gpus}
        if schedule:
            self.sell(job, schedule)

    def to_json(self) -> dict[str, list[Any]]:
        """Return, by job, runs of equal slots: [first, last, {node: GPUs}]."""
        content: dict[str, list[Any]] = {}
        for job, schedule in self.schedules.items():
            runs: list[Any] = []
            for slot in sorted(schedule):
                if runs and runs[-1][1] == slot - 1 and runs[-1][2] == schedule[slot]:
                    runs[-1][1] = slot
                else:
                    runs.append([slot, slot, schedule[slot]])
            content[job] = runs
        return content


def schedule_from_json(runs: Sequence[Any]) -> Schedule:
    return {slot: dict(where) for first, last, where in runs for slot in range(int(first), int(last) + 1)}


@dataclass(frozen=True, slots=True)
class ResultValue:
    """The value of a result by its delay since the submission: ``value / (1 + exp(steep * (delay - due)))``.

    ``steep`` is per second; with 0 the delay does not matter. Long after its due time a result still has some value: a
    tenth, halved each time the delay doubles.
    """

    value: float
    steep: float
    due: float

    def __call__(self, delay: Any) -> Any:
        delay = np.asarray(delay, dtype=np.float64)
        curve = 1.0 / (1.0 + np.exp(np.clip(self.steep * (delay - self.due), -50.0, 50.0)))
        soon = max(self.due, MIN_DELAY_SECONDS)
        return self.value * np.maximum(curve, LATE_VALUE_FRACTION * soon / np.maximum(delay, soon))


@dataclass(frozen=True, slots=True)
class Bid:
    """The best schedule that a job can buy. ``payoff`` is ``worth - cost``; minus infinity where there is none."""

    payoff: float
    worth: float = 0.0
    cost: float = 0.0
    schedule: Schedule | None = None


@dataclass(frozen=True, slots=True)
class Market:
    """Prices and free GPUs at the time of a decision. ``solver`` chooses nodes: ``exact`` or ``rounding``."""

    book: Book
    now: float
    slot_seconds: float
    low: float
    high: float
    quanta: int
    solver: str = "exact"
    seed: int = 0

    def bid(self, job: Job, worth: ResultValue, maximum: int) -> Bid:
        rows = [number for number, node in enumerate(self.book.nodes) if job.nodes is None or node.id in job.nodes]
        if not rows:
            return Bid(-np.inf)
        sizes = _candidate_sizes(job, maximum)
        lengths: Floats = np.full(self.book.slots, self.slot_seconds, dtype=np.float64)
        lengths[0] = (self.book.first + 1) * self.slot_seconds - self.now
        ends: Floats = self.slot_seconds * np.arange(
            self.book.first + 1, self.book.first + self.book.slots + 1, dtype=np.float64
        )
        best = Bid(-np.inf)
        for kind in sorted({self.book.nodes[row].kind for row in rows}):
            some = np.array([row for row in rows if self.book.nodes[row].kind == kind])
            search = _ScheduleSearch(self, job, worth, some, sizes, kind, lengths, ends - job.submitted_at)
            found = search.search_elastic() if job.elastic else search.search_fixed_size(maximum)
            if found.payoff > best.payoff:
                best = found
        return best


def _candidate_sizes(job: Job, maximum: int) -> list[int]:
    sizes = [job.min_gpus] + [
        size for size, _ in estimates.steps(job, job.min_gpus, job.min_gpus, maximum, free_batch=True)
    ]
    if len(sizes) <= MAX_SIZES:
        return sizes
    return [sizes[round(number * (len(sizes) - 1) / (MAX_SIZES - 1))] for number in range(MAX_SIZES)]


class _ScheduleSearch:
    """The search of one job for a schedule on nodes of one kind."""

    def __init__(
        self,
        market: Market,
        job: Job,
        worth: ResultValue,
        rows: Counts,
        sizes: list[int],
        kind: str,
        lengths: Floats,
        delays: Floats,
    ) -> None:
        self.market, self.job, self.worth, self.rows, self.sizes = market, job, worth, rows, sizes
        self.lengths, self.delays = lengths, delays
        book = market.book
        self.parts = lengths / market.slot_seconds
        self.prices = book.prices(market.low, market.high)[rows] * self.parts
        self.free = book.free[rows]
        self.largest, self.total = int(book.total[rows].max(initial=0)), int(book.total[rows].sum())
        known = estimates.curve(job, free_batch=True)
        self.factor = known.kinds.get(kind, 1.0) if known else 1.0
        self.apart = known.apart if known else 1.0
        self.left = estimates.work(job).value + (job.restart_seconds if job.served_gpu_seconds else 0.0)

    def speed(self, size: int, nodes: str) -> float:
        fast = estimates.speed(self.job, size, free_batch=True) * self.factor
        return fast * self.apart if nodes == "many" and size <= self.largest else fast

    def options(self, sizes: Sequence[int]) -> list[tuple[int, str]]:
        """Return the sizes that fit on empty nodes: on one of them, and on several for a job that may spread."""
        one = [(size, "one") for size in sizes if size <= self.largest]
        return one + ([(size, "many") for size in sizes if 1 < size <= self.total] if self.job.spread else [])

    def search_elastic(self) -> Bid:
        """Choose a size for each slot, or a pause if it can be stopped, by a dynamic program over (slot, work done)."""
        options = self.options(self.sizes)
        if not options:
            return Bid(-np.inf)
        slots = len(self.lengths)
        speeds = np.array([self.speed(*option) for option in options])
        maximum = float(speeds.max() * self.lengths.sum())
        work = max(min(self.left, 0.9 * maximum), 1.0)
        late = (self.left - work) / max(float(speeds.max()), 1e-9)
        slowest = float(speeds.min()) * self.market.slot_seconds
        quanta = int(np.clip(np.ceil(2 * work / max(slowest, 1e-9)), self.market.quanta, MAX_QUANTA))
        costs = _lowest_costs(self.prices, self.free, options)
        done = np.floor(speeds[:, None] * self.lengths[None, :] / (work / quanta) + 1e-9).astype(np.int64)
        costs = np.where(done > 0, costs, np.inf)
        # A job that could not end within the horizon even on empty nodes books all of it, and keeps its GPUs afterwards.
        goal = min(quanta, int(done.max(axis=0).sum()))
        index = np.arange(quanta + 1)
        table = np.full((slots + 1, quanta + 1), np.inf)
        table[:, 0] = 0.0
        choice = np.full((slots, quanta + 1), -1, dtype=np.int64)
        for slot in range(slots):
            before = np.maximum(index[None, :] - done[:, slot, None], 0)
            tried = table[slot][before] + costs[:, slot, None]
            pick = tried.argmin(axis=0)
            value = tried[pick, index]
            if self.job.preemptible:
                wait = table[slot] <= value
                value, pick = np.where(wait, table[slot], value), np.where(wait, -1, pick)
            table[slot + 1, 1:], choice[slot, 1:] = value[1:], pick[1:]
        end, bid = self._best_end(table[1:, goal], self.delays + late)
        if bid is None or not goal:
            return Bid(-np.inf)
        schedule: Schedule = {}
        at = goal
        for slot in range(end, -1, -1):
            if not at:
                break
            if choice[slot, at] < 0:
                continue
            size, nodes = options[choice[slot, at]]
            schedule[self.market.book.first + slot] = self._choose_nodes(
                self.prices[:, slot], self.free[:, slot], size, nodes
            )
            at = max(0, at - int(done[choice[slot, at], slot]))
        return Bid(bid[0], bid[1], bid[2], dict(sorted(schedule.items())))

    def search_fixed_size(self, maximum: int) -> Bid:
        """Choose one size on the same nodes from start to end."""
        best = Bid(-np.inf)
        slots = len(self.lengths)
        for size, nodes in self.options(sorted({self.job.min_gpus, maximum})):
            speed = self.speed(size, nodes)
            need = (
                int(np.ceil((self.left / speed - self.lengths[0]) / self.market.slot_seconds)) + 1
                if speed > 0
                else slots
            )
            width = int(np.clip(need, 1, slots))
            late = (need - width) * self.market.slot_seconds
            sums = np.cumsum(np.pad(self.prices, ((0, 0), (1, 0))), axis=1)
            prices = sums[:, width:] - sums[:, :-width]
            free = np.lib.stride_tricks.sliding_window_view(self.free, width, axis=1).min(axis=2)
            start, bid = self._best_end(
                _lowest_costs(prices, free, [(size, nodes)])[0], self.delays[width - 1 :] + late
            )
            if bid is not None and bid[0] > best.payoff:
                where = self._choose_nodes(prices[:, start], free[:, start], size, nodes)
                first = self.market.book.first + start
                best = Bid(bid[0], bid[1], bid[2], {first + slot: dict(where) for slot in range(width)})
        return best

    def _best_end(self, costs: Floats, delays: Floats) -> tuple[int, tuple[float, float, float] | None]:
        worth = np.asarray(self.worth(delays))
        payoff = np.where(np.isfinite(costs), worth - np.where(np.isfinite(costs), costs, 0.0), -np.inf)
        at = (
            int((payoff >= payoff.max() - EQUAL_TOLERANCE * abs(payoff.max())).argmax())
            if np.isfinite(payoff.max())
            else 0
        )
        if not np.isfinite(payoff[at]):
            return at, None
        return at, (float(payoff[at]), float(worth[at]), float(costs[at]))

    def _choose_nodes(self, prices: Floats, free: Counts, size: int, nodes: str) -> dict[NodeId, int]:
        names = [self.market.book.nodes[row].id for row in self.rows]
        if nodes == "one":
            fits = np.where(free >= size, prices, np.inf)
            return {names[int(fits.argmin())]: size}
        if self.market.solver == "rounding":
            program = prices[:, None], free[:, None].astype(float), np.ones((1, 1)), np.array([size])
            tasks = packing.solve_by_rounding(*program, seed=self.market.seed)
            filled = None if tasks is None else tasks[:, 0]
        else:
            filled = packing.fill_cheapest(prices, free, size)
        if filled is None:
            raise ValueError(f"{size} GPUs do not fit")
        return {name: int(gpus) for name, gpus in zip(names, filled, strict=True) if gpus}


def _lowest_costs(prices: Floats, free: Counts, options: Sequence[tuple[int, str]]) -> Floats:
    """Return the lowest cost of each option in each column; infinite where it does not fit."""
    order = np.argsort(prices, axis=0, kind="stable")
    sorted_prices, room = np.take_along_axis(prices, order, axis=0), np.take_along_axis(free, order, axis=0)
    before = np.cumsum(room, axis=0) - room
    spent = np.cumsum(room * sorted_prices, axis=0) - room * sorted_prices
    found = np.full((len(options), prices.shape[1]), np.inf)
    columns = np.arange(prices.shape[1])
    for number, (size, nodes) in enumerate(options):
        if nodes == "one":
            found[number] = size * np.where(free >= size, prices, np.inf).min(axis=0, initial=np.inf)
        else:
            last = np.maximum((before < size).sum(axis=0) - 1, 0)
            cost = spent[last, columns] + (size - before[last, columns]) * sorted_prices[last, columns]
            found[number] = np.where(before[-1] + room[-1] >= size, cost, np.inf)
    return found


def booked_gpus(schedules: Mapping[JobId, Schedule], job: JobId, slot: int) -> int:
    """Return the number of GPUs booked for a job in a slot."""
    return sum(schedules.get(job, {}).get(slot, {}).values())
