"""The gain of each job by the number and kind of its GPUs, and the cost of a change: the values of the solvers.

After Sia (SOSP'23): configurations are powers of two within a node, or whole nodes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduling.optimise import allocation_search
from scheduling.optimise.allocation_search import AllocationProblem, Candidate
from scheduling.toolkit import estimates, placement
from scheduling.toolkit.resources import gpus_when_empty
from scheduling.types import Job, Placement, Snapshot

NO_CHANGE_BONUS = 1e-6
"""The bonus for no change: between plans of equal value, the one with fewer changes wins."""
COST_MARGIN, HORIZON_SECONDS = 1.5, 600
"""A change must gain this many times its cost within ten minutes, at any age of the job."""


@dataclass(frozen=True, slots=True)
class Option:
    """A number of GPUs of one kind for one job. ``kind`` is None where a running job keeps what it holds."""

    gpus: int
    kind: str | None
    use: Mapping[str, int]
    value: float


class Preferences(Protocol):
    """How a policy values jobs and speeds."""

    @property
    def preset(self) -> str: ...

    @property
    def free_batch(self) -> bool: ...

    def progress_weight(self, job: Job, now: float) -> float:
        """Return the weight of the progress of a job."""

    def utility(self, speed: float) -> float:
        """Return the utility of a relative speed, which is 1 for the smallest useful configuration and 0 for waiting."""


class JobGain:
    """The gain of one job by the number and kind of its GPUs."""

    def __init__(self, policy: Preferences, candidate: Candidate, now: float, fleet: "Fleet") -> None:
        self.policy, self.candidate, self.job, self.fleet = policy, candidate, candidate.job, fleet
        job = self.job
        known = estimates.curve(job, free_batch=policy.free_batch)
        self.speeds = allocation_search.speeds(job, candidate.max_gpus, free_batch=policy.free_batch)
        self.max_tried = (
            candidate.max_gpus if known else max(candidate.min_gpus, job.asked if job.waiting else 2 * job.gpus)
        )
        """The largest count to try: at most twice as many GPUs at a time for a job whose scaling is unknown."""
        self.factor = {kind: known.kinds.get(kind, 1.0) if known else 1.0 for kind in fleet.sizes}
        self.apart = known.apart if known else 1.0
        self.progress_weight = policy.progress_weight(job, now)
        self.kept = self._kept_fraction(now)
        minimum = estimates.speed(job, job.min_gpus, free_batch=policy.free_batch)
        self.slowest = min((minimum * factor for factor in self.factor.values() if minimum * factor > 0), default=1.0)

    def _kept_fraction(self, now: float) -> float:
        """Return the fraction of its progress that remains after the cost of a change.

        A change pays for ten minutes at most, and not beyond the end of the job where that is known; then the cost of
        earlier changes, which is spent, does not count. Where it is unknown, the past is the estimate (Pollux and Sia).
        """
        job = self.job
        if not job.running:
            return 1.0
        cost = job.resize_seconds if job.elastic else job.restart_seconds
        if job.work is not None:
            left = estimates.remaining_seconds(job, job.gpus, free_batch=self.policy.free_batch)
            return max(0.0, 1 - COST_MARGIN * cost / max(min(left, HORIZON_SECONDS), 1.0))
        priced = max(0.0, 1 - COST_MARGIN * cost / HORIZON_SECONDS)
        age = now - job.submitted_at
        past = max(age - job.restarts * cost, 0.0) / (age + cost) if age > cost else 1.0
        return min(priced, max(past, 0.1))

    def _gain_at_speed(self, speed: float) -> float:
        return self.progress_weight * self.policy.utility(speed / self.slowest)

    def options(self) -> list[Option]:
        """Return the options by number of GPUs: the first is none, or the minimum if the job cannot be stopped."""
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
            cap = min(self.max_tried, self.candidate.max_gpus, self.fleet.room(job, kind))
            best = -1.0
            for count in self._counts(kind, cap):
                speed = float(self.speeds[count]) * self.factor[kind]
                if job.running and not moves and count == job.gpus:
                    continue
                if speed <= best and self.candidate.may_have_none:
                    continue
                best = max(best, speed)
                found.append(Option(count, kind, {kind: count}, self._gain_at_speed(speed * self.kept)))
        return sorted(found, key=lambda option: option.gpus)

    def _counts(self, kind: str, cap: int) -> Sequence[int]:
        if self.policy.preset == "optimus":
            return range(self.candidate.min_gpus, cap + 1)
        return self.fleet.counts(kind, self.candidate.min_gpus, cap)

    def value(self, where: Placement) -> float:
        """Return the value of a placement."""
        job, count = self.job, placement.total(where)
        if not count:
            return self._gain_at_speed(0.0) - (self._cost_of_stop() if job.running else 0.0)
        speed = float(self.speeds[min(count, len(self.speeds) - 1)]) * self.fleet.slowest(self.factor, where)
        if self.apart != 1.0 and not self.fleet.is_compact(where):
            speed *= self.apart
        if job.running:
            speed *= 1 + NO_CHANGE_BONUS if where == job.now_on else self.kept
        return self._gain_at_speed(speed)

    def _cost_of_stop(self) -> float:
        """Return the cost of a stop: the job has to restart later."""
        return abs(
            self._gain_at_speed(float(self.speeds[min(self.job.gpus, len(self.speeds) - 1)])) - self._gain_at_speed(0.0)
        ) * (COST_MARGIN * self.job.restart_seconds / HORIZON_SECONDS)


class Fleet:
    """The nodes by kind, and the GPUs of each kind that can be shared."""

    def __init__(self, snapshot: Snapshot, problem: AllocationProblem) -> None:
        nodes = problem.later.nodes
        self.kind = {node.id: node.kind for node in snapshot.nodes}
        self.total: dict[str, int] = defaultdict(int)
        self.sizes: dict[str, int] = defaultdict(int)
        self.gpus: dict[str, int] = defaultdict(int)
        for view in nodes.values():
            self.total[view.kind] += view.total
            self.sizes[view.kind] = max(self.sizes[view.kind], view.total)
            self.gpus[view.kind] += problem.later.free[view.id]
        for candidate in problem.candidates:
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
        if job.nodes is not None or job.has_demands:
            usable = self.nodes.keys() if job.nodes is None else job.nodes & self.nodes.keys()
            totals = [gpus_when_empty(self.nodes[node], job) for node in usable if self.kind[node] == kind]
            return sum(totals) if job.spread else max(totals, default=0)
        return self.total[kind] if job.spread else self.sizes[kind]

    def counts(self, kind: str, minimum: int, maximum: int) -> list[int]:
        """Return powers of two within a node and whole nodes, which always fit together, and the minimum."""
        if kind not in self._counts:
            size = self.sizes[kind]
            within = [1 << bit for bit in range(size.bit_length()) if 1 << bit <= size]
            self._counts[kind] = sorted({*within, *range(size, self.total[kind] + 1, size)})
        found = [count for count in self._counts[kind] if minimum < count <= maximum]
        return [minimum, *found] if minimum <= maximum else found

    def slowest(self, factor: Mapping[str, float], where: Placement) -> float:
        """Return the speed factor of the slowest node: a step is as slow as its slowest rank."""
        return min((factor.get(self.kind[node], 1.0) for node in where), default=1.0)

    def is_compact(self, where: Placement) -> bool:
        size = max(self.sizes[self.kind[node]] for node in where) or 1
        return len(where) <= -(-placement.total(where) // size)
