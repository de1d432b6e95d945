"""The fairness ledger: how much each was entitled to, used, lent and borrowed. Pure functions.

**The rule.** At each moment the lab's GPUs are divided among those who have jobs running or waiting then: by weight
among groups (a person without a group counts as a group), and within a group by weight among its people. No one is
entitled to more than their jobs ask for; the rest goes to the others, by weight again. So a share counts only while its
owner asks for it, and

* *used* is what their jobs held;
* *borrowed* is what they used beyond their entitlement;
* *lent* is the part of their entitlement that others used while their own jobs waited or ran with less than requested;
* *spare* is the part of their entitlement that no one used, because no waiting job could be placed on it;
* *unclaimed* is what no job asked for.

**The law**, exact because amounts are whole GPU-microseconds and each moment is divided without remainder::

    used of all + idle      = capacity       idle = unclaimed + spare of all
    entitled of all + unclaimed = capacity
    lent of all             = borrowed of all
    used                    = entitled + borrowed - lent - spare      for everyone

The capacity is that of the GPUs on offer (``CapacitySpell``) and of those held though not on offer, each once. An elastic
job asks for its maximum; any other running job for what it holds; a waiting job for its maximum; one on hold for nothing.
This is weighted max-min fairness ("water filling", Bertsekas and Gallager 1987, 6.5.2), applied to every moment.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TypeVar

Account = tuple[int | None, int]
"""(Group or None, user)."""
Key = tuple[Account, int]
"""(Account, project)."""
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class LedgerLine:
    """What happened to one account's share."""

    entitled: int = 0
    used: int = 0
    lent: int = 0
    borrowed: int = 0
    spare: int = 0

    @property
    def balance(self) -> int:
        """What others owe the account."""
        return self.lent - self.borrowed

    def add(self, other: "LedgerLine") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Spent:
    """What held GPUs were used for, and how long jobs waited.

    *starting* is time before the program ran. *failed* is the time of attempts that failed, reached their time limit or
    broke by our fault. *interrupted* is the time of attempts that were stopped by the scheduler, put on hold or lost with
    their node, and whose job cannot restart from a checkpoint. The rest counts as useful, including the work of a job that
    restarts from a checkpoint, and of one that a user cancelled.
    """

    allocated: int = 0
    starting: int = 0
    failed: int = 0
    interrupted: int = 0
    submitted: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def wasted(self) -> int:
        return self.starting + self.failed + self.interrupted

    @property
    def useful(self) -> int:
        return self.allocated - self.wasted

    def add(self, other: "Spent") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Day:
    """The sums of one day, or of a part of it."""

    capacity: int = 0
    unclaimed: int = 0
    lines: dict[Account, LedgerLine] = field(default_factory=dict)
    spent: dict[Key, Spent] = field(default_factory=dict)

    @property
    def idle(self) -> int:
        return self.unclaimed + sum(line.spare for line in self.lines.values())


# --- the facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSpan:
    """The time during which a job asked for GPUs, apart from the times when it was on hold (``paused``)."""

    id: int
    account: Account
    project: int
    max_gpus: int
    elastic: bool
    since: int
    until: int
    paused: tuple[tuple[int, int], ...] = ()
    started: int | None = None
    """When it first ran."""


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """The time during which a job held a GPU."""

    gpu: int
    job: int
    since: int
    until: int
    ran: int | None
    """When its container began to run."""
    lost: str = ""
    """``failed`` or ``interrupted`` when its work was wasted; empty when it was useful or this is not known yet."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened. Times may reach beyond the requested days."""

    offers: Sequence[tuple[int, int, int]]
    """(GPU, from, to)."""
    jobs: Sequence[JobSpan]
    held: Sequence[HeldSpan]
    weights: Sequence[tuple[int, Account | int, float]] = ()
    """(Since when, whose, weight), ascending; an account stands for a person, a number for a group."""


# --- the sums ------------------------------------------------------------------------------------------------------


def share_out(total: int, claims: Iterable[tuple[K, int, int]]) -> dict[K, int]:
    """Divide ``total`` by weight among claims ``(key, weight, maximum)``, none beyond its maximum, without remainder.

    The result sums to ``total``, or to all claims if these are less.
    """
    order = sorted(claims, key=lambda claim: claim[2] / claim[1])
    weights = sum(weight for _, weight, _ in order)
    given: dict[K, int] = {}
    for key, weight, maximum in order:
        given[key] = min(maximum, total * weight // weights)
        total -= given[key]
        weights -= weight
    for key, _, maximum in reversed(order):
        if not total:
            break
        more = min(total, maximum - given[key])
        given[key] += more
        total -= more
    return given


def sums_by_span(facts: Facts, bounds: Sequence[int]) -> list[Day]:
    """Return the sums for each span between two of ``bounds``."""
    days = [Day() for _ in bounds[1:]]
    _Sweep(facts, bounds).run(days)
    by_id = {job.id: job for job in facts.jobs}
    for held in facts.held:
        job = by_id[held.job]
        for day, since, until in _split_by_day(held.since, held.until, bounds):
            spent = days[day].spent.setdefault((job.account, job.project), Spent())
            ran = max(0, until - max(since, held.ran)) if held.ran is not None else 0
            spent.allocated += until - since
            spent.starting += until - since - ran
            if held.lost:
                setattr(spent, held.lost, getattr(spent, held.lost) + ran)
    for job in facts.jobs:
        for day, _, _ in _split_by_day(job.since, job.since + 1, bounds):
            days[day].spent.setdefault((job.account, job.project), Spent()).submitted += 1
        if job.started is not None:
            for day, _, _ in _split_by_day(job.started, job.started + 1, bounds):
                paused = sum(min(until, job.started) - since for since, until in job.paused if since < job.started)
                waited = round(max(0, job.started - job.since - paused) / 1e6, 1)
                days[day].spent.setdefault((job.account, job.project), Spent()).waits.append(waited)
    return days


def _split_by_day(since: int, until: int, bounds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (number of the day, from, to) for each day that a time overlaps; ``bounds`` are the days' limits."""
    day = max(0, bisect_right(bounds, since) - 1)
    while day < len(bounds) - 1 and bounds[day] < until:
        if bounds[day + 1] > since:
            yield day, max(since, bounds[day]), min(until, bounds[day + 1])
        day += 1


class _Sweep:
    """Walks from event to event; between two of them nothing changes."""

    def __init__(self, facts: Facts, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.jobs = {job.id: job for job in facts.jobs}
        self.users: dict[int, int] = {}
        """By GPU, how many times it is on offer or held; GPUs with any count as capacity."""
        self.holding: dict[int, int] = {}
        """By job, the GPUs that it holds."""
        self.used: dict[Account, int] = {}
        # In one order, so that remainders go to the same people whenever a day is summed up.
        accounts = sorted({job.account for job in facts.jobs}, key=lambda account: (account[0] or 0, account[1]))
        self.wants: dict[Account, int] = dict.fromkeys(accounts, 0)
        self.asking: dict[int, int] = {}
        """By job, how many GPUs it asks for now."""
        self.active: set[int] = set()
        self.weights: dict[Account | int, int] = {}
        self.capacity = 0
        self._events = sorted(self._changes(facts), key=lambda event: event[0])

    def _changes(self, facts: Facts) -> Iterator[tuple[int, str, object, int]]:
        first, last = self.bounds[0], self.bounds[-1]

        def span(since: int, until: int, what: str, about: object) -> Iterator[tuple[int, str, object, int]]:
            if since < last and until > first and until > since:
                yield max(since, first), what, about, 1
                if until < last:
                    yield until, what, about, -1

        for bound in self.bounds:
            yield bound, "bound", None, 0
        for gpu, since, until in facts.offers:
            yield from span(since, until, "gpu", gpu)
        for held in facts.held:
            yield from span(held.since, held.until, "gpu", held.gpu)
            yield from span(held.since, held.until, "held", held.job)
        for job in facts.jobs:
            since = job.since
            for pause, resume in job.paused:
                yield from span(since, pause, "asks", job.id)
                since = resume
            yield from span(since, job.until, "asks", job.id)
        for since, whose, weight in facts.weights:
            if since < last:
                yield max(since, first), "weight", whose, max(1, round(weight * 1000))

    def run(self, days: list[Day]) -> None:
        before, day = self.bounds[0], -1
        for moment, events in groupby(self._events, key=lambda event: event[0]):
            if moment > before:
                self._add_interval(days[day], moment - before)
            before = moment
            for _, what, about, change in events:
                if what == "bound":
                    day += 1
                elif what == "weight":
                    self.weights[about] = change  # type: ignore[index]
                else:
                    getattr(self, f"_on_{what}")(about, change)

    def _on_gpu(self, gpu: int, change: int) -> None:
        before = self.users.get(gpu, 0)
        self.users[gpu] = before + change
        self.capacity += (before + change > 0) - (before > 0)

    def _on_held(self, job: int, change: int) -> None:
        self.holding[job] = self.holding.get(job, 0) + change
        account = self.jobs[job].account
        self.used[account] = self.used.get(account, 0) + change
        self._update_claim(job)

    def _on_asks(self, job: int, change: int) -> None:
        (self.active.add if change > 0 else self.active.discard)(job)
        self._update_claim(job)

    def _update_claim(self, job: int) -> None:
        """Update what a job asks for, and the sum of its account."""
        about, holds = self.jobs[job], self.holding.get(job, 0)
        asks = holds
        if job in self.active and (about.elastic or not holds):
            asks = max(about.max_gpus, holds)
        self.wants[about.account] += asks - self.asking.get(job, 0)
        self.asking[job] = asks

    def _add_interval(self, day: Day, length: int) -> None:
        day.capacity += self.capacity * length
        entitled = self._entitlements(self.capacity * length, length)
        day.unclaimed += self.capacity * length - sum(entitled.values())
        unused: list[tuple[Account, int, int]] = []
        borrowed = 0
        for account, right in entitled.items():
            line = day.lines.setdefault(account, LedgerLine())
            used = self.used.get(account, 0) * length
            line.entitled += right
            line.used += used
            if used > right:
                line.borrowed += used - right
                borrowed += used - right
            elif right > used:
                unused.append((account, right - used, right - used))
        lent = share_out(borrowed, unused)
        for account, free, _ in unused:
            line = day.lines[account]
            line.lent += lent[account]
            line.spare += free - lent[account]

    def _entitlements(self, total: int, length: int) -> dict[Account, int]:
        everything = {account: wants * length for account, wants in self.wants.items() if wants}
        if sum(everything.values()) <= total:
            return everything
        top: dict[Account | int, list[tuple[Account, int, int]]] = {}
        for account, maximum in everything.items():
            group, user = account
            claim = (account, self.weights.get((None, user), 1000), maximum)
            top.setdefault(account if group is None else group, []).append(claim)
        claims = [
            (
                key,
                self.weights.get(key, 1000) if isinstance(key, int) else people[0][1],
                sum(maximum for *_, maximum in people),
            )
            for key, people in top.items()
        ]
        entitled: dict[Account, int] = {}
        for key, right in share_out(total, claims).items():
            entitled.update(share_out(right, top[key]))
        return entitled


def decayed_balance(lines: Mapping[int, int], half_life_days: float) -> float:
    """Sum balances by age in days; each is worth half after ``half_life_days``."""
    worth: Iterator[float] = (balance * 0.5 ** (age / half_life_days) for age, balance in lines.items())
    return sum(worth)
