"""PD-ORS: a job books the cheapest GPUs of the coming hours, if its result is worth their price."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from scheduling.messages import Message
from scheduling.optimise.booking import Book, Market, ResultValue, Schedule, booked_gpus, schedule_from_json
from scheduling.params import param
from scheduling.toolkit import estimates, reasons
from scheduling.toolkit.capacity import in_queue_order
from scheduling.toolkit.growth import max_size, next_size
from scheduling.toolkit.plan_builder import build_plan
from scheduling.toolkit.sharing import Pool, skip_unprofitable_resizes
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

BIDS_PER_CYCLE = 50
CELLS_PER_CYCLE = 2_000_000
"""The bids of one cycle, as a number of jobs and of nodes times slots; further jobs bid in the next one, which keeps each
cycle short."""
PAYS_WITHIN_SECONDS = 300.0
"""A job grows into GPUs that are not booked if it makes up for the interruption within this time."""


@dataclass(frozen=True, slots=True)
class Pdors:
    """PD-ORS (Yu et al. 2021, arXiv 2108.02917): online primal-dual scheduling with locality.

    Confirmed (abstract): resources and locality are decided together, online, by a mixed packing and covering program
    with randomised rounding. Reconstruction: prices, utilities and the dynamic program (``scheduling.optimise.booking``),
    in the family of OASiS. For equal ranks the program for one slot is solved exactly by sorting nodes by price.

    Different on purpose: a job whose payoff is not positive is not rejected but bids again in each slot, or as soon as
    a job ends early; one that runs longer than it booked keeps its GPUs; and GPUs that are not booked are lent.

    ``state`` is {"slot", "book": {job: [[first, last, {node: GPUs}]]}, "declined": {job: [worth, cost]}}.
    """

    title: ClassVar[str] = "Reservations at a price (PD-ORS)"
    explanation: ClassVar[str] = (
        "GPUs have a price that rises as the coming hours fill up. Each job books the GPUs for which the value of its "
        "result exceeds the price by the most; early results and kept deadlines have a higher value. A job that is not "
        "worth the price waits until it is."
    )
    good_for: ClassVar[str] = "deadlines, and many jobs of very different length"
    needs: ClassVar[str] = "the length of jobs"
    knows: ClassVar[Knows] = "job lengths"

    slot_seconds: float = param(
        600.0,
        "Length of a slot in seconds",
        "Bookings start and end with a slot.",
        minimum=60.0,
        maximum=86_400.0,
        group="How finely it plans",
    )
    horizon: int = param(
        144,
        "Slots ahead",
        "How far ahead GPUs can be booked.",
        minimum=2,
        maximum=1008,
        group="How finely it plans",
    )
    quanta: int = param(
        8,
        "Parts of a job",
        "The work of a job is divided into at least this many parts when it is spread over slots. More is finer and slower.",
        minimum=1,
        maximum=64,
        group="How finely it plans",
    )
    solver: str = param(
        "exact",
        "Choice of nodes",
        "How the nodes of a job that spans several are chosen.",
        choices=[("exact", "the cheapest, exactly"), ("rounding", "randomised rounding with repair, as in the paper")],
        group="How finely it plans",
    )
    without_deadline: str = param(
        "sooner",
        "Jobs without a deadline",
        "The value of a later result of a job without a deadline.",
        choices=[("sooner", "less the later it comes"), ("whenever", "the same")],
    )
    trade: bool = param(
        True,
        "Trade bookings again in each slot",
        "Yes: running elastic jobs without a deadline bid again in each slot for all but their minimum, so that short "
        "jobs that came later find room. No: bookings stay, as in the paper.",
    )
    fill: bool = param(
        True,
        "Lend GPUs that are not booked",
        "Yes: GPUs that are not booked now go to jobs that booked later ones, and to running jobs. No: they stay idle.",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        pool = Pool(snapshot, preempt=True)
        slot = int(snapshot.now // self.slot_seconds)
        book = Book(snapshot.nodes, slot, self.horizon)
        running = in_queue_order(job for job in snapshot.jobs if job.running)
        waiting = [job for job in in_queue_order(snapshot.jobs) if job.waiting and job.id not in pool.impossible]
        declined, unheard = self._trade(snapshot, book, running, waiting)
        ahead = {job.id: number for number, job in enumerate(unheard)}
        order = self._count_gpus(book, pool, running, waiting)
        wanted = skip_unprofitable_resizes(snapshot, pool.count, PAYS_WITHIN_SECONDS)
        held = {job.id: job.gpus for job in running}
        why = {
            job.id: reasons.limit_reached_by(job, snapshot, wanted, held) or self._reason(job, book, declined, ahead)
            for job in waiting
            if not wanted.get(job.id)
        } | pool.impossible
        batches = {job.id: estimates.batch(job, wanted.get(job.id, 0)) for job in order if job.free_speed}
        state = {"slot": slot, "book": book.to_json(), "declined": declined}
        next_slot = snapshot.now + 1 if unheard else (slot + 1) * self.slot_seconds
        return build_plan(snapshot, order, wanted, why=why, state=state, batches=batches, again_at=next_slot)

    def _trade(
        self, snapshot: Snapshot, book: Book, running: Sequence[Job], waiting: Sequence[Job]
    ) -> tuple[dict[JobId, list[float]], list[Job]]:
        """Fill the book; return the jobs that were declined, with value and cost, and those that have not bid yet.

        Running jobs keep their bookings as long as they last and are needed, and after that the GPUs that they hold.
        Waiting jobs keep their bookings until the slot ends; then all waiting jobs bid again.
        """
        old: dict[JobId, Schedule] = {
            job: schedule_from_json(runs) for job, runs in snapshot.state.get("book", {}).items()
        }
        same = snapshot.state.get("slot") == book.first
        trading: list[Job] = []
        for job in sorted(running, key=lambda job: job.elastic or job.preemptible):
            if self.trade and not same and job.elastic and job.deadline is None:
                trading.append(job)
                self._book_held_gpus(job, book, job.min_gpus)
            elif not book.sell(job.id, self._needed_bookings(job, old.get(job.id, {}), book.first)):
                self._book_held_gpus(
                    job, book, min(job.gpus, max(job.asked, job.min_gpus)) if job.elastic else job.gpus
                )
        if same:
            for job in waiting:
                if job.id in old:
                    book.sell(job.id, old[job.id])
        here = {job.id for job in snapshot.jobs}
        heard: Mapping[JobId, list[float]] = snapshot.state.get("declined", {}) if same and old.keys() <= here else {}
        declined = {job.id: list(heard[job.id]) for job in waiting if job.id in heard and job.id not in book.schedules}
        bidders = [job for job in waiting if job.id not in book.schedules and job.id not in declined]
        bidders = sorted(trading + bidders, key=lambda job: (job.deadline is None, -self._density(job), job.queue_key))
        heard_now = max(1, min(BIDS_PER_CYCLE, CELLS_PER_CYCLE // max(1, book.sold.size)))
        if bidders:
            low, high = self._price_range([*running, *waiting], snapshot.now)
            market = Market(book, snapshot.now, self.slot_seconds, low, high, self.quanta, self.solver, seed=book.first)
            for job in bidders[:heard_now]:
                book.release(job.id)
                bid = market.bid(job, self.result_value(job), max(job.min_gpus, max_size(job)))
                if (bid.payoff > 0 or job.running) and bid.schedule and book.sell(job.id, bid.schedule):
                    continue
                if job.running:
                    self._book_held_gpus(job, book, job.min_gpus)
                else:
                    declined[job.id] = [bid.worth, bid.cost] if bid.schedule else []
        return declined, [job for job in bidders[heard_now:] if job.waiting]

    def _book_held_gpus(self, job: Job, book: Book, size: int) -> None:
        """Book ``size`` of the GPUs that a job holds until its estimated end."""
        left = estimates.remaining_seconds(job, size, free_batch=True) / self.slot_seconds
        book.book_held(job.id, _part_of_held(job, size), ceil(min(left, self.horizon)) + 1)

    def _density(self, job: Job) -> float:
        """Return the highest value of its result per GPU and slot."""
        seconds = estimates.remaining_seconds(job, job.min_gpus, free_batch=True)
        return self.result_value(job).value / (job.min_gpus * max(1.0, seconds / self.slot_seconds))

    def result_value(self, job: Job) -> ResultValue:
        value = job.weight * 2.0 ** max(-10, min(10, job.priority))
        ideal = max(self.slot_seconds, estimates.remaining_seconds(job, max(job.asked, job.min_gpus), free_batch=True))
        if job.deadline is not None:
            return ResultValue(value, 5.0 / self.slot_seconds, job.deadline - job.submitted_at)
        if job.opportunistic or self.without_deadline == "whenever":
            return ResultValue(value, 0.0, 0.0)
        return ResultValue(value, 1.0 / ideal, ideal)

    def _price_range(self, jobs: Iterable[Job], now: float) -> tuple[float, float]:
        """Return the lowest and the highest price of a GPU for a slot, from all known jobs.

        At the lowest price, each of them could pay twice for its most expensive schedule at the latest time; at the
        highest, none could pay for its cheapest schedule at the best time.
        """
        low, high = float("inf"), 0.0
        for job in jobs:
            worth = self.result_value(job)
            cells = [
                size * max(1.0, estimates.remaining_seconds(job, size, free_batch=True) / self.slot_seconds)
                for size in {job.min_gpus, max(job.min_gpus, max_size(job))}
            ]
            cells = [cell for cell in cells if 0 < cell < float("inf")] or [1.0]
            last = float(worth(now + self._latest_end(job) - job.submitted_at))
            low = min(low, last / (2 * max(cells)))
            high = max(high, worth.value / min(cells))
        return low, max(high, 2 * low)

    def _latest_end(self, job: Job) -> float:
        """Return the seconds until the latest end that the job may bid for.

        A job that takes longer than the horizon books all of it and keeps its GPUs afterwards, so it ends later.
        """
        horizon = self.horizon * self.slot_seconds
        seconds = estimates.remaining_seconds(job, job.min_gpus, free_batch=True) + job.restart_seconds
        return max(horizon, seconds + self.slot_seconds) if seconds < float("inf") else horizon

    def _needed_bookings(self, job: Job, schedule: Schedule, first: int) -> Schedule:
        """Return the bookings of a job that it still needs: its remaining work may end before they do."""
        left = estimates.work(job).value
        kept: Schedule = {}
        for slot in sorted(slot for slot in schedule if slot >= first):
            if left <= 0 and job.elastic and slot > first:
                break
            kept[slot] = schedule[slot]
            left -= estimates.speed(job, sum(schedule[slot].values()), free_batch=True) * self.slot_seconds
        return kept

    def _count_gpus(self, book: Book, pool: Pool, running: Sequence[Job], waiting: Sequence[Job]) -> list[Job]:
        """Count the GPUs of each job now: those it booked, and of the rest those it can use; return all in that order."""
        booked = {job.id: booked_gpus(book.schedules, job.id, book.first) for job in (*running, *waiting)}
        now = [job for job in (*running, *waiting) if booked[job.id]]
        for job in now:
            minimum = pool.min_gpus[job.id] if job.running else job.min_gpus
            size = max(minimum, booked[job.id] if not job.running or job.elastic else minimum)
            count = pool.count.get(job.id, 0)
            if not pool.take(job, size - count) and not count:
                pool.take(job, minimum)
        later = [job for job in running if not booked[job.id]]
        ahead = [job for job in waiting if job.id in book.schedules and not booked[job.id]]
        ahead.sort(key=lambda job: (min(book.schedules[job.id]), job.queue_key))
        others = [job for job in waiting if job.id not in book.schedules]
        if self.fill:
            for job in (*later, *ahead):
                if not pool.count.get(job.id):
                    pool.take(job, pool.min_gpus[job.id] if job.running else _start_size(job, book.schedules[job.id]))
            _lend_unbooked_gpus((*now, *later, *ahead), pool)
        return [*now, *later, *ahead, *others]

    def _reason(
        self, job: Job, book: Book, declined: Mapping[JobId, Sequence[float]], ahead: Mapping[JobId, int]
    ) -> Message:
        if job.id in book.schedules:
            first = min(book.schedules[job.id])
            wait = max(0.0, (first - book.first) * self.slot_seconds)
            count = booked_gpus(book.schedules, job.id, first)
            if first > book.first:
                return BookedLater(count, reasons.rounded_seconds(wait))
            return BookedNow(count)
        if job.id in ahead:
            return NotBidYet(ahead[job.id])
        if not declined.get(job.id):
            return NothingToBook(reasons.rounded_seconds(self.horizon * self.slot_seconds))
        worth, cost = declined[job.id]
        return NotWorthItsPrice(
            _rounded(worth), _rounded(cost), _rounded(worth - cost), reasons.rounded_seconds(self.slot_seconds)
        )


@dataclass(frozen=True)
class BookedLater(Message):
    code: ClassVar[str] = "booked_later"
    count: int
    seconds: int
    """Until its slot begins."""


@dataclass(frozen=True)
class BookedNow(Message):
    """It has booked the present slot, but its GPUs are still held."""

    code: ClassVar[str] = "booked_now"
    count: int


@dataclass(frozen=True)
class NotBidYet(Message):
    code: ClassVar[str] = "not_bid_yet"
    ahead: int


@dataclass(frozen=True)
class NothingToBook(Message):
    """All GPUs that it could use are booked for as long as the policy looks ahead."""

    code: ClassVar[str] = "nothing_to_book"
    seconds: int


@dataclass(frozen=True)
class NotWorthItsPrice(Message):
    """Its result is worth less than the cheapest schedule costs; it bids again in each slot, of ``slot`` seconds."""

    code: ClassVar[str] = "not_worth_its_price"
    worth: float
    cost: float
    payoff: float
    slot: int


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _start_size(job: Job, schedule: Schedule) -> int:
    """Return the number of GPUs with which a job starts before its first slot: one that cannot grow takes what it booked."""
    return job.min_gpus if job.elastic else max(sum(where.values()) for where in schedule.values())


def _part_of_held(job: Job, size: int) -> dict[str, int]:
    """Return ``size`` of the GPUs that a job holds, its base first."""
    left, part = size, dict.fromkeys(job.now_on, 0)
    for source in (job.base, job.now_on):
        for node, gpus in source.items():
            more = max(0, min(left, gpus - part.get(node, 0)))
            part[node] = part.get(node, 0) + more
            left -= more
    return {node: gpus for node, gpus in part.items() if gpus}


def _lend_unbooked_gpus(jobs: Iterable[Job], pool: Pool) -> None:
    """Give the GPUs that are not booked to the jobs whose remaining work they shorten by the largest fraction."""
    heap: list[tuple[float, tuple[int, float, JobId], int, Job]] = []

    def push(job: Job) -> None:
        count = pool.count.get(job.id, 0)
        if count and (size := next_size(job, count, max_size(job))):
            gain = estimates.speed(job, size, free_batch=True) - estimates.speed(job, count, free_batch=True)
            heapq.heappush(
                heap, (-gain / (size - count) / max(1.0, estimates.work(job).value), job.queue_key, size, job)
            )

    for job in jobs:
        push(job)
    while heap and pool.free:
        _, _, size, job = heapq.heappop(heap)
        if pool.take(job, size - pool.count[job.id]):
            push(job)
