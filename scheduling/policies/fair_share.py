"""Fair share: users and groups below their share go first, by decayed GPU-hours with weights."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from operator import mul
from typing import Any, ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import backfill, estimates, reasons
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.toolkit.growth import max_size, next_size
from scheduling.toolkit.plan_builder import build_plan
from scheduling.toolkit.sharing import Pool, plan_until_placed, skip_unprofitable_resizes
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

DAY_SECONDS = 86400.0
MIN_WEIGHT = 1e-6
"""The weight of an account with weight 0: it goes last, but it gets GPUs."""


@dataclass(frozen=True, slots=True)
class FairShare:
    """Water filling. The *level* of an account is (GPUs held on average recently + GPUs that it gets now) / weight.

    The recent average is its GPU-seconds, halved every ``half_life_days``, over the decayed length of all time, so that
    both terms are in GPUs: an account that always held four is at level four. GPUs of a job above the normal priority count
    more than once in both terms (``Job.share_factor``). Each GPU goes to the top-level account
    with the lowest level, within it to its member with the lowest level, and there by priority, then age. So accounts
    that used less catch up, equal ones share equally, and what one does not use goes to the others.

    The idea is that of the textbooks (Unix fair-share schedulers since Kay and Lauder, 1988), with decayed usage as in
    Slurm; the water filling and the preemption rules are our own, so a reconstruction where they resemble others. The
    first job in the order that cannot start reserves GPUs after some time (``backfill``), so that small jobs do not
    overtake it for ever.
    """

    title: ClassVar[str] = "Fair share of users and groups"
    explanation: ClassVar[str] = (
        "Groups, and within them users, that recently used less than their share of the GPUs go first; old usage counts "
        "less every day. Elastic jobs share the remaining GPUs in proportion to the weights, and GPUs are saved for a "
        "large job that small ones have overtaken for too long."
    )
    good_for: ClassVar[str] = "sharing a lab between users and groups over weeks"
    needs: ClassVar[str] = "weights of users and groups, if they are not equal"
    knows: ClassVar[Knows] = "speeds"

    half_life_days: float = param(
        7.0,
        "Half-life in days",
        "After this many days a GPU-hour counts half. Short: past usage is soon forgotten. Long: heavy usage counts for "
        "long.",
        minimum=0.05,
        maximum=365.0,
    )
    elastic: bool = param(
        True,
        "Resize elastic jobs",
        "Yes: elastic jobs grow into idle GPUs and release them when others come. "
        "No: a job keeps the size that it asked for until it ends.",
        group="Stopping and resizing",
    )
    preempt: bool = param(
        True,
        "Stop jobs of accounts above their share",
        "Yes: jobs that can restart from a checkpoint are stopped when their account is far above its share and "
        "an account below its share waits. No: running jobs continue; a new job waits until one ends.",
        group="Stopping and resizing",
    )
    tolerance: float = param(
        0.5,
        "Tolerance above the share",
        "A job is stopped for another one only if its account would still be ahead by this fraction of a fair share "
        "without it. Larger means fewer interruptions.",
        minimum=0.0,
        maximum=10.0,
        group="Stopping and resizing",
    )
    yields_after_minutes: float = param(
        30.0,
        "Minutes before a job above its share makes room",
        "A preemptible job of an account above its fair share keeps its GPUs for at least this long. "
        "Then it makes room for waiting jobs of accounts that stay within theirs. 0: it makes room only for an "
        "account that is far below its share.",
        minimum=0.0,
        maximum=10_080.0,
        group="Stopping and resizing",
    )
    pays_within_seconds: float = param(
        300.0,
        "Seconds within which growth must pay off",
        "A running job takes more GPUs only if it makes up for the interruption within this time. "
        "Larger means more frequent changes.",
        minimum=0.0,
        maximum=86_400.0,
        group="Stopping and resizing",
    )
    passed_over_hours: float = param(
        1.0,
        "Hours a large job may be overtaken",
        "When a job has waited this long and is next in line, but needs more GPUs at once than are free, GPUs are saved "
        "for it as they become free. Until it can start, they are lent only to jobs that can be stopped or that will "
        "have ended by then. Smaller: large jobs start sooner. Larger: fewer GPUs are idle. 0: nothing is saved, and "
        "a large job may be overtaken for as long as smaller ones come.",
        minimum=0.0,
        maximum=720.0,
        group="Large jobs",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        return backfill.plan_with_reservation(self._arrange, snapshot, 3600 * self.passed_over_hours, self._min_gpus)

    def _min_gpus(self, job: Job) -> int:
        """Return the number of GPUs with which a waiting job starts."""
        return job.min_gpus if self.elastic else job.asked

    def _arrange(self, snapshot: Snapshot, hold: backfill.BackfillReservation | None) -> backfill.Arrangement:
        """Decide; and again without the jobs that found no place, if any, so that others may use those GPUs."""
        return plan_until_placed(lambda excluded: self._arrange_once(snapshot, hold, excluded))

    def _arrange_once(
        self, snapshot: Snapshot, hold: backfill.BackfillReservation | None, excluded: AbstractSet[JobId]
    ) -> tuple[backfill.Arrangement, set[JobId]]:
        pool = Pool(snapshot, resize=self.elastic, preempt=self.preempt, excluded=excluded)
        line = in_queue_order(job for job in snapshot.jobs if not job.stopping)
        root, part_of = _account_tree(snapshot, line, self.half_life_days)
        order = self._count_minimums(snapshot, line, pool, root, part_of)
        if self.elastic:
            _share_rest(order, pool, root, part_of)
        wanted = skip_unprofitable_resizes(snapshot, pool.count, self.pays_within_seconds)
        batches = {job.id: estimates.batch(job, wanted.get(job.id, 0)) for job in order if job.free_speed}

        unplaced: set[JobId] = set()

        def short(job: Job, capacity: Capacity, ahead: int) -> Message:
            if wanted.get(job.id):
                unplaced.add(job.id)
            saved = sum(gpus for node, gpus in hold.here.items() if node in capacity.free_for(job)) if hold else 0
            reason = reasons.BehindSaved(saved) if saved else reasons.shortage(job, capacity, ahead)
            return reasons.BehindShare(reason, *part_of[job.id].usage())

        plan = build_plan(snapshot, order, wanted, why=pool.impossible, batches=batches, short=short)
        root.dismantle()
        waits = {job.id for job in order if job.waiting and job.id not in plan.target and job.id not in pool.impossible}
        promised = frozenset(id for id in waits if wanted.get(id) and id not in unplaced)
        return backfill.Arrangement(plan, order, frozenset(waits - promised), promised), unplaced

    def _count_minimums(
        self,
        snapshot: Snapshot,
        line: Sequence[Job],
        pool: Pool,
        root: "_AccountNode",
        part_of: "Mapping[JobId, _AccountNode]",
    ) -> list[Job]:
        """Count the minimum of each job in ``pool``, the most deserving first; return all jobs in that order.

        Where running jobs may be stopped, they queue with the waiting ones, but further ahead by the tolerance. Running
        jobs of an account come before its waiting ones, so that no job is stopped for another one of its owner.
        """
        order: list[Job] = []
        for job in line:
            if not job.now_on:
                continue
            part = part_of[job.id]
            if snapshot.explain:
                part.add_current(job.gpus)
            if count := pool.count[job.id]:
                order.append(job)
                part.give(job.share_factor * count)
            else:
                part.queue.append(job)
        for job in line:
            if not job.now_on:
                part_of[job.id].queue.append(job)
        root.set_shares(float(sum(node.total for node in snapshot.nodes if node.open)))
        if self.preempt and self.yields_after_minutes:
            order += self._count_minimums_within_shares(snapshot, pool, part_of)
        running = 0
        for part in set(part_of.values()):
            part.queue.reverse()
            running += sum([1 for job in part.queue if job.now_on])

        def key(part: _AccountNode) -> tuple[bool, float] | None:
            job = part.next_job()
            if job is None:
                return None
            level = (part.recent + part.held) / part.weight
            return (False, level) if job.now_on else (not self.preempt, level + self.tolerance * part.fair)

        for part in _neediest_leaves(root, key):
            job = part.queue.pop()
            order.append(job)
            running -= bool(job.now_on)
            if job.id in pool.impossible:
                continue
            minimum = pool.min_gpus[job.id] if job.now_on else self._min_gpus(job)
            if pool.take(job, minimum) or not pool.free:
                part.give(job.share_factor * minimum)  # also with no GPUs left, so that the accounts alternate
            if not (pool.free or running or snapshot.explain or self.passed_over_hours):
                seen = {job.id for job in order}
                order += [job for job in line if job.id not in seen]  # they get nothing, in any order
                break
        return order

    def _count_minimums_within_shares(
        self, snapshot: Snapshot, pool: Pool, part_of: "Mapping[JobId, _AccountNode]"
    ) -> list[Job]:
        """Count waiting jobs of accounts within their shares before jobs that had their time above the share.

        It removes them from the queues of their accounts. Without this, an account with one large job is never far
        enough above its share, as it would hold nothing without that job, and a cluster full of such jobs would be closed
        to all others.
        """
        held: dict[_AccountNode, int] = {}
        for job in snapshot.jobs:
            if job.running:
                held[part_of[job.id]] = held.get(part_of[job.id], 0) + job.share_factor * job.gpus
        began = snapshot.now - 60 * self.yields_after_minutes
        parts = list(dict.fromkeys(part_of.values()))
        room = pool.free
        for part in parts:
            for job in part.queue:
                above = held.get(part, 0) > part.share and job.started_at is not None and job.started_at <= began
                room -= pool.min_gpus[job.id] if job.now_on and not above else 0
        served: list[Job] = []
        for part in sorted(parts, key=lambda part: part.rank):
            has = held.get(part, 0)
            for job in [job for job in part.queue if not job.now_on and job.id not in pool.impossible]:
                minimum = self._min_gpus(job)
                counted = job.share_factor * minimum
                # It has to fit as it is: if it had to fit as it counts, jobs of a lower priority would pass it.
                if has + minimum > part.share or minimum > room or not pool.take(job, minimum):
                    continue
                has += counted
                room -= minimum
                part.give(counted)
                part.queue.remove(job)
                served.append(job)
        return served


def _share_rest(
    order: Sequence[Job], pool: Pool, root: "_AccountNode", part_of: "Mapping[JobId, _AccountNode]"
) -> None:
    """Give the remaining GPUs, step by step, to the account with the lowest level, and there to its smallest job."""
    if not pool.free:
        return
    sizes: dict[_AccountNode, list[tuple[float, tuple[int, float, JobId], int, Job]]] = {}
    """By account, a heap of the jobs that could have more GPUs, the smallest first, with the next size of each."""
    for job in order:
        count = pool.count.get(job.id, 0)
        if count and (size := next_size(job, count, max_size(job))):
            sizes.setdefault(part_of[job.id], []).append((count / job.weight, job.queue_key, size, job))
    for heap in sizes.values():
        heapq.heapify(heap)
    for part in _neediest_leaves(root, lambda part: part.level if sizes.get(part) or part.heap else None):
        heap = sizes[part]
        _, queue_key, size, job = heap[0]
        count = pool.count[job.id]
        if not pool.take(job, size - count):
            heapq.heappop(heap)
            continue
        part.give(job.share_factor * (size - count))
        if not pool.free:
            return
        if larger := next_size(job, size, max_size(job)):
            heapq.heapreplace(heap, (size / job.weight, queue_key, larger, job))
        else:
            heapq.heappop(heap)


@dataclass(slots=True, eq=False)
class _AccountNode:
    """An account in the tree of this policy; the leaves have queues of jobs."""

    name: str
    weight: float = 1.0
    recent: float = 0.0
    """GPUs that it held on average recently, each as often as the share factor of its job."""
    held: int = 0
    """GPUs that it gets, as far as decided, each as often as the share factor of its job."""
    now: int = 0
    """GPUs that it holds, for the reasons."""
    share: float = 0.0
    """GPUs that its weight entitles it to, among all accounts with jobs now."""
    fair: float = 0.0
    """The level of it and its siblings if each had its share."""
    parent: "_AccountNode | None" = None
    children: "list[_AccountNode]" = field(default_factory=list)
    heap: "list[tuple[Any, str, int, _AccountNode]]" = field(default_factory=list)
    """A heap of the accounts below that want GPUs, the lowest first."""
    queue: list[Job] = field(default_factory=list)
    """Its jobs that are not served yet, the next one last."""

    @property
    def level(self) -> float:
        return (self.recent + self.held) / self.weight

    @property
    def rank(self) -> tuple[float, str]:
        """Sorts accounts, the one with the lowest usage for its weight first."""
        return self.level, self.name

    def attach(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)

    def sum_usage(self) -> float:
        """Count the usage of the members of a group for the group, even where its own account lacks it."""
        if self.children:
            self.recent = max(self.recent, sum([part.sum_usage() for part in self.children]))
        return self.recent

    def add_current(self, gpus: int) -> None:
        part: _AccountNode | None = self
        while part is not None:
            part.now += gpus
            part = part.parent

    def give(self, gpus: int) -> None:
        part: _AccountNode | None = self
        while part is not None:
            part.held += gpus
            part = part.parent

    def next_job(self) -> Job | None:
        part = self
        while part.heap:
            part = part.heap[0][3]
        return part.queue[-1] if part.queue else None

    def set_shares(self, gpus: float) -> None:
        """Divide ``gpus`` into the shares of this account and all below."""
        self.share = gpus
        weights = sum(part.weight for part in self.children) or 1.0
        for part in self.children:
            part.fair = gpus / weights
            part.share = part.fair * part.weight
            if part.children:
                part.set_shares(part.share)

    def build_heaps(self, key: "Callable[[_AccountNode], Any]") -> None:
        """Build the heaps of the accounts below that have a ``key``."""
        self.heap = []
        for number, child in enumerate(self.children):
            if child.children:
                child.build_heaps(key)
            if (level := key(child)) is not None:
                self.heap.append((level, child.name, number, child))
        heapq.heapify(self.heap)

    def dismantle(self) -> None:
        """Remove the links of the tree, which is cheaper than to let the garbage collector find its cycles."""
        for part in self.children:
            part.dismantle()
        self.children, self.heap = [], []

    def usage(self) -> tuple[reasons.AccountHas, reasons.AccountHas | None]:
        """Return the usage of the account, and that of its group."""
        grouped = self.parent is not None and self.parent.parent is not None
        return self._usage_message(), self.parent._usage_message() if self.parent is not None and grouped else None

    def _usage_message(self) -> reasons.AccountHas:
        return reasons.AccountHas(self.name, self.now, round(self.recent, 1), round(self.share, 1))


def _neediest_leaves(root: _AccountNode, key: Callable[[_AccountNode], Any]) -> Iterator[_AccountNode]:
    """Yield the next leaf again and again: from the root always down to the account with the smallest ``key``.

    What the caller gives to a leaf or takes from it counts at once. An account whose key is None wants nothing more.
    """
    root.build_heaps(key)
    while root.heap:
        path, part = [], root
        while heads := part.heap:
            path.append(heads)
            part = heads[0][3]
        yield part
        for heads in reversed(path):
            _, name, number, part = heads[0]
            if (level := key(part)) is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (level, name, number, part))


def _account_tree(
    snapshot: Snapshot, line: Sequence[Job], half_life_days: float
) -> tuple[_AccountNode, dict[JobId, _AccountNode]]:
    """Return the root, and for each job of ``line`` its leaf; accounts without such jobs are left out.

    A job without an account belongs to one in the name of its owner, whose usage is that of its current jobs.
    """
    accounts = snapshot.accounts
    rows = tuple([(account.parent, account.name) for account in accounts])
    order, parents = _lineage(rows)
    account_of: dict[JobId, int] = {}
    for index in order:
        for id in accounts[index].jobs:
            account_of[id] = index  # a member of a group overrides the group

    root = _AccountNode("")
    parts: dict[tuple[str, str], _AccountNode] = {}

    def part(index: int | None) -> _AccountNode:
        missing = []
        while index is not None and rows[index] not in parts:
            missing.append(index)
            index = parents[index]
        leaf = root if index is None else parts[rows[index]]
        for each in reversed(missing):
            account = accounts[each]
            recent = _average_usage(account.used, half_life_days)
            leaf = _AccountNode(
                account.name, max(account.weight, MIN_WEIGHT), recent, now=account.elsewhere, parent=leaf
            )
            leaf.attach()
            parts[rows[each]] = leaf
        return leaf

    leaf_of: dict[JobId, _AccountNode] = {}
    leaves: dict[int, _AccountNode] = {}
    strangers: dict[str, _AccountNode] = {}
    for job in line:
        index = account_of.get(job.id, -1)
        if index >= 0:
            if index not in leaves:
                leaves[index] = part(index)
            leaf_of[job.id] = leaves[index]
            continue
        if job.owner not in strangers:
            strangers[job.owner] = _AccountNode(job.owner, parent=root)
            strangers[job.owner].attach()
        leaf_of[job.id] = strangers[job.owner]
        strangers[job.owner].recent += _decayed_usage(job.share_factor * job.served_gpu_seconds, 0, half_life_days)
    own: dict[_AccountNode, _AccountNode] = {}
    for name, leaf in leaf_of.items():
        if leaf.children:  # the jobs of the group itself are next to its members
            if leaf not in own:
                own[leaf] = _AccountNode(leaf.name, parent=leaf)
                own[leaf].attach()
            leaf_of[name] = own[leaf]
    root.sum_usage()
    return root, leaf_of


@lru_cache(maxsize=64)
def _lineage(rows: tuple[tuple[str, str], ...]) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Return, for accounts as (parent, name), their indices, the top level first, and the index of each parent.

    Of rows with the same name the smallest counts. Rows that form a cycle are all at the top level.
    """
    by_name: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row[1] not in by_name or row <= rows[by_name[row[1]]]:
            by_name[row[1]] = index
    above = [_ancestors(index, rows, by_name) if row[0] in by_name else [] for index, row in enumerate(rows)]
    order = sorted([(len(above[index]), row, index) for index, row in enumerate(rows)])
    return tuple([index for _, _, index in order]), tuple([each[0] if each else None for each in above])


def _ancestors(index: int, rows: Sequence[tuple[str, str]], by_name: Mapping[str, int]) -> list[int]:
    """Return the ancestors of an account, the nearest first."""
    found: list[int] = []
    parent = by_name.get(rows[index][0])
    while parent is not None and parent not in found:
        found.append(parent)
        parent = by_name.get(rows[parent][0])
    return [] if index in found else found


@lru_cache(maxsize=1024)
def _average_usage(used: tuple[float, ...], half_life_days: float) -> float:
    products: map[float] = map(mul, used, _decay_weights(len(used), half_life_days))
    return sum(products)


@lru_cache(maxsize=64)
def _decay_weights(days: int, half_life_days: float) -> tuple[float, ...]:
    return tuple(_decayed_usage(1.0, ago, half_life_days) for ago in range(days))


def _decayed_usage(gpu_seconds: float, days_ago: int, half_life_days: float) -> float:
    """Return decayed usage as GPUs held on average: an account that always held n gets n, for any half-life."""
    left: float = gpu_seconds * 0.5 ** ((days_ago + 0.5) / half_life_days)
    return left * log(2) / (half_life_days * DAY_SECONDS)
