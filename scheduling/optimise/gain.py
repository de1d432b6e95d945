"""What each job would have from so many GPUs of a kind, and what it costs to change: the values that are weighed.

After Sia (SOSP'23): configurations are powers of two within a node, or whole nodes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduling.optimise import allocation_search
from scheduling.optimise.allocation_search import Candidate, Question
from scheduling.toolkit import estimates, placement
from scheduling.types import Job, Placement, Snapshot

UNCHANGED = 1e-6
"""Between plans of equal value the one that changes less."""
MARGIN, HORIZON_SECONDS = 1.5, 600
"""A change must win this many times what it costs within ten minutes, however old the job is."""


@dataclass(frozen=True, slots=True)
class Option:
    """So many GPUs of one kind for one job. ``kind`` is None where a running job keeps what it holds."""

    gpus: int
    kind: str | None
    use: Mapping[str, int]
    value: float


class Preferences(Protocol):
    """What a policy thinks of jobs and speeds."""

    @property
    def preset(self) -> str: ...

    @property
    def free_batch(self) -> bool: ...

    def claim(self, job: Job, now: float) -> float:
        """How much its progress counts."""

    def utility(self, speed: float) -> float:
        """Of a relative speed, which is 1 for the smallest useful configuration; 0 is waiting."""


class JobGain:
    """What one job has from GPUs, by count and kind."""

    def __init__(self, policy: Preferences, candidate: Candidate, now: float, fleet: "Fleet") -> None:
        self.policy, self.candidate, self.job, self.fleet = policy, candidate, candidate.job, fleet
        job = self.job
        known = estimates.curve(job, free_batch=policy.free_batch)
        self.speeds = allocation_search.speeds(job, candidate.max_gpus, free_batch=policy.free_batch)
        self.reach = (
            candidate.max_gpus if known else max(candidate.min_gpus, job.asked if job.waiting else 2 * job.gpus)
        )
        """Nobody knows how such a job scales: it is tried with at most twice as many GPUs at a time."""
        self.factor = {kind: known.kinds.get(kind, 1.0) if known else 1.0 for kind in fleet.sizes}
        self.apart = known.apart if known else 1.0
        self.claim = policy.claim(job, now)
        self.kept = self._kept(now)
        minimum = estimates.speed(job, job.min_gpus, free_batch=policy.free_batch)
        self.slowest = min((minimum * factor for factor in self.factor.values() if minimum * factor > 0), default=1.0)

    def _kept(self, now: float) -> float:
        """The part of its progress that a change leaves of it.

        A change is good for ten minutes at most, and not beyond the end of the job, where that is known: then nothing
        else counts, since what earlier changes cost is spent. Where nobody knows, the past tells (Pollux and Sia).
        """
        job = self.job
        if not job.running:
            return 1.0
        cost = job.resize_seconds if job.elastic else job.restart_seconds
        if job.work is not None:
            left = estimates.remaining_seconds(job, job.gpus, free_batch=self.policy.free_batch)
            return max(0.0, 1 - MARGIN * cost / max(min(left, HORIZON_SECONDS), 1.0))
        priced = max(0.0, 1 - MARGIN * cost / HORIZON_SECONDS)
        age = now - job.submitted_at
        past = max(age - job.restarts * cost, 0.0) / (age + cost) if age > cost else 1.0
        return min(priced, max(past, 0.1))

    def _of(self, speed: float) -> float:
        return self.claim * self.policy.utility(speed / self.slowest)

    def options(self) -> list[Option]:
        """By number of GPUs: the first is no GPUs, or its least if it cannot be stopped."""
        job, found = self.job, []
        if self.candidate.may_have_none:
            found.append(Option(0, None, {}, self.value({})))
        if job.running:
            found.append(Option(job.gpus, None, self.fleet.use(job.now_on), self.value(job.now_on)))
            if not job.elastic:
                return found
        at = self.fleet.kind_of(job)
        for kind in self.fleet.kinds_for(job):
            moves = job.running and kind != at
            if moves and not job.preemptible:
                continue
            cap = min(self.reach, self.candidate.max_gpus, self.fleet.room(job, kind))
            best = -1.0
            for count in self._counts(kind, cap):
                speed = float(self.speeds[count]) * self.factor[kind]
                if job.running and not moves and count == job.gpus:
                    continue
                if speed <= best and self.candidate.may_have_none:
                    continue
                best = max(best, speed)
                found.append(Option(count, kind, {kind: count}, self._of(speed * self.kept)))
        return sorted(found, key=lambda option: option.gpus)

    def _counts(self, kind: str, cap: int) -> Sequence[int]:
        if self.policy.preset == "optimus":
            return range(self.candidate.min_gpus, cap + 1)
        return self.fleet.counts(kind, self.candidate.min_gpus, cap)

    def value(self, where: Placement) -> float:
        """Of the GPUs it really is to have."""
        job, count = self.job, placement.total(where)
        if not count:
            return self._of(0.0) - (self._lost() if job.running else 0.0)
        speed = float(self.speeds[min(count, len(self.speeds) - 1)]) * self.fleet.slowest(self.factor, where)
        if self.apart != 1.0 and not self.fleet.together(where):
            speed *= self.apart
        if job.running:
            speed *= 1 + UNCHANGED if where == job.now_on else self.kept
        return self._of(speed)

    def _lost(self) -> float:
        """A job that is stopped has to start again one day."""
        return abs(self._of(float(self.speeds[min(self.job.gpus, len(self.speeds) - 1)])) - self._of(0.0)) * (
            MARGIN * self.job.restart_seconds / HORIZON_SECONDS
        )


class Fleet:
    """The nodes by kind: what there is to be shared out of each."""

    def __init__(self, snapshot: Snapshot, question: Question) -> None:
        nodes = question.later.nodes
        self.kind = {node.id: node.kind for node in snapshot.nodes}
        self.total: dict[str, int] = defaultdict(int)
        self.sizes: dict[str, int] = defaultdict(int)
        self.gpus: dict[str, int] = defaultdict(int)
        for view in nodes.values():
            self.total[view.kind] += view.total
            self.sizes[view.kind] = max(self.sizes[view.kind], view.total)
            self.gpus[view.kind] += question.later.free[view.id]
        for candidate in question.candidates:
            for node, gpus in candidate.job.now_on.items():
                self.gpus[self.kind[node]] += gpus
        self.nodes = nodes
        self.kinds = sorted(kind for kind, size in self.sizes.items() if size)
        self._counts: dict[str, list[int]] = {}

    def use(self, where: Placement) -> dict[str, int]:
        used: dict[str, int] = defaultdict(int)
        for node, gpus in where.items():
            used[self.kind[node]] += gpus
        return used

    def kind_of(self, job: Job) -> str | None:
        kinds = {self.kind[node] for node in job.now_on}
        return kinds.pop() if len(kinds) == 1 else None

    def kinds_for(self, job: Job) -> Sequence[str]:
        if job.nodes is None:
            return self.kinds
        usable = {self.kind[node] for node in job.nodes if node in self.nodes} | {
            self.kind[node] for node in job.now_on
        }
        return [kind for kind in self.kinds if kind in usable]

    def room(self, job: Job, kind: str) -> int:
        if job.nodes is not None:
            totals = [self.nodes[node].total for node in job.nodes if node in self.nodes and self.kind[node] == kind]
            return sum(totals) if job.spread else max(totals, default=0)
        return self.total[kind] if job.spread else self.sizes[kind]

    def counts(self, kind: str, minimum: int, maximum: int) -> list[int]:
        """Powers of two within a node and whole nodes: they always fit together. And the least, whatever it is."""
        if kind not in self._counts:
            size = self.sizes[kind]
            within = [1 << bit for bit in range(size.bit_length()) if 1 << bit <= size]
            self._counts[kind] = sorted({*within, *range(size, self.total[kind] + 1, size)})
        found = [count for count in self._counts[kind] if minimum < count <= maximum]
        return [minimum, *found] if minimum <= maximum else found

    def slowest(self, factor: Mapping[str, float], where: Placement) -> float:
        """A step is as slow as its slowest part."""
        return min((factor.get(self.kind[node], 1.0) for node in where), default=1.0)

    def together(self, where: Placement) -> bool:
        size = max(self.sizes[self.kind[node]] for node in where) or 1
        return len(where) <= -(-placement.total(where) // size)
