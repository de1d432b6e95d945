"""ONES, experimental: an evolutionary search for the number of GPUs of each job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scheduling.optimise import allocation_search
from scheduling.optimise.allocation_search import AllocationProblem, Candidate
from scheduling.optimise.rearrangement import rearrange_if_better
from scheduling.params import param
from scheduling.toolkit import estimates, placement
from scheduling.toolkit.target_plan import carry_out, recall, remember, world_digest
from scheduling.types import JobId, Knows, Placement, Plan, Snapshot

POPULATION = 16
FIRST_PARENT_PROBABILITY = 0.5
"""The probability that a job has the count of the first parent and not of the second."""
DROP_PROBABILITY = 0.3
"""The probability that a mutation takes all GPUs from a job."""
EPOCH_SECONDS = 60
"""The length of an epoch of a job that does not report its progress."""
COLD_EPOCHS = 10
"""The progress of a job without any report is epochs / (epochs + 10)."""
MAX_TIMES_ASKED = 4
NO_PROGRESS_COST = 1e12
"""The cost of a count with which a job would make no progress."""
MAX_DECISION_WORK = 100_000
"""The work of one decision, in schedules times jobs: fewer generations for more jobs."""


@dataclass(frozen=True, slots=True)
class Ones:
    """ONES (SC'21): online evolutionary search over schedules, with batch limits that double.

    Confirmed (the authors' code): 16 schedules, crossover, mutation that drops jobs (0.3), padding with new jobs first
    and then by least remaining GPU time, the score is the sum of remaining GPU times; limits start at the minimum and
    double for a job that trained at its limit for some time, up to four times the size asked for; a job that holds half
    of the GPUs for longer than the median is scaled down; no job is disturbed before it has trained for some time.

    Reconstruction: progress is drawn from a beta distribution around what the job reports, or else around
    epochs / (epochs + 10), and no network predicts it (theirs was trained on the logarithm of the epoch's size and
    queried with the size itself). Crossover is on counts instead of strings of GPUs, since placement comes later and is
    the same for all policies. A change must gain the GPU time that it costs.

    ``state`` has the limits and the population.
    """

    title: ClassVar[str] = "Evolution (ONES)"
    explanation: ClassVar[str] = (
        "Schedules evolve continuously, and the one with the least remaining GPU time is carried out: new jobs start "
        "small at once, and may double their GPUs when they have trained for some time. "
        "Experimental: it is a random search."
    )
    good_for: ClassVar[str] = "trying out; many short elastic jobs"
    needs: ClassVar[str] = "the progress of jobs"
    knows: ClassVar[Knows] = "speeds"
    experimental: ClassVar[bool] = True

    settle_seconds: int = param(
        120,
        "Seconds before a job is disturbed",
        "A job is changed only when it has trained for this long since its last change, and only then may it double.",
        minimum=10,
        maximum=86_400,
    )
    generations: int = param(
        10, "Generations", "How many generations of schedules each decision goes through.", minimum=1, maximum=200
    )
    period_seconds: int = param(
        60,
        "Seconds between decisions",
        "When no job comes or ends, the search continues only after this long.",
        minimum=0,
        maximum=86_400,
    )
    seed: int = param(0, "Seed", "Another number gives other random choices.", minimum=0, maximum=1_000_000)

    def plan(self, snapshot: Snapshot) -> Plan:
        problem = allocation_search.problem_from(snapshot)
        order, old = problem.order, snapshot.state
        if aim := recall(snapshot, self.period_seconds):
            again_at = old["at"] + self.period_seconds
            return carry_out(snapshot, order, aim[0], problem.why, old, aim[1], again_at)
        breeder = Breeder(self, snapshot, problem)
        wanted = {job.id: job.gpus for job in problem.held} | breeder.evolve()
        target = rearrange_if_better(snapshot, order, wanted, breeder.value_of)
        batches = {
            job.id: size for job in order if (size := estimates.batch(job, placement.total(target.get(job.id, {}))))
        }
        state = {**remember(snapshot, target, batches), **breeder.state}
        again_at = snapshot.now + self.period_seconds if self.period_seconds and problem.candidates else None
        return carry_out(snapshot, order, target, problem.why, state, batches, again_at)


Schedule = list[int]


class Breeder:
    """The population and the operators of the search. A schedule has a count for each candidate."""

    population: list[Schedule]

    def __init__(self, policy: Ones, snapshot: Snapshot, problem: AllocationProblem) -> None:
        self.policy, self.snapshot, self.problem = policy, snapshot, problem
        self.candidates: Sequence[Candidate] = problem.candidates
        self.cycle = int(snapshot.state.get("turn", 0)) + 1
        seed = [policy.seed, self.cycle, int(world_digest(snapshot, demands=False), 16)]
        self.rng = np.random.default_rng(seed)
        self.speeds = [allocation_search.speeds(c.job, c.max_gpus, free_batch=True) for c in self.candidates]
        self.floors = [0 if c.may_have_none else c.min_gpus for c in self.candidates]
        self.expected = np.array([self._remaining_work(c) for c in self.candidates])
        self.left = self.expected.copy()
        self.limits = self._limits()
        self.caps = [self._cap(number) for number in range(len(self.candidates))]
        self.fixed = [self._is_settling(c) for c in self.candidates]
        self.at_least = [
            c.job.gpus if fixed else floor for c, fixed, floor in self._zip_candidates(self.fixed, self.floors)
        ]
        self.rooms = allocation_search.LimitHeadroom(problem)
        for candidate, count in zip(self.candidates, self.at_least, strict=True):
            self.rooms.use(candidate.job.id, count)
        self.per_work, self.price = self._cost_tables()
        fresh = [c.job.waiting and not c.job.run_seconds for c in self.candidates]
        self.new = [(number, c.min_gpus) for number, c in enumerate(self.candidates) if fresh[number]]

    def _zip_candidates(self, *columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        return zip(self.candidates, *columns, strict=True)

    def _cost_tables(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, by candidate and count, the GPU time of a second of work, and the cost of a change to this count."""
        width = max((max(len(speeds), c.job.gpus + 1) for c, speeds in self._zip_candidates(self.speeds)), default=1)
        per_work, price = np.zeros((2, len(self.candidates), width))
        for number, (candidate, speeds) in enumerate(self._zip_candidates(self.speeds)):
            job = candidate.job
            fast = np.concatenate((speeds, np.full(width - len(speeds), speeds[-1])))
            counts = np.arange(width)
            np.divide(counts, fast, out=per_work[number], where=(counts > 0) & (fast > 0))
            price[number, 1:] = np.where(fast[1:] > 0, 0.0, NO_PROGRESS_COST)
            if job.running:
                cost = np.where((counts > 0) & job.elastic, job.resize_seconds, job.restart_seconds)
                price[number] += np.where(counts != job.gpus, np.maximum(counts, job.gpus) * cost, 0.0)
        return per_work, price

    @property
    def state(self) -> dict[str, Any]:
        ids = [candidate.job.id for candidate in self.candidates]
        kept = [{id: count for id, count in zip(ids, one, strict=True) if count} for one in self.population]
        return {"turn": self.cycle, "limits": dict(zip(ids, self.limits, strict=True)), "population": kept}

    def _remaining_work(self, candidate: Candidate) -> float:
        """Return the expected remaining work: the estimate, or else from the service so far and the progress."""
        job = candidate.job
        if job.work is not None:
            return job.work.value
        done = max(job.served_gpu_seconds, 1.0)
        part = job.progress if job.progress else self._epochs(candidate) / (self._epochs(candidate) + COLD_EPOCHS)
        return done * (1 / min(max(part, 1e-3), 1.0) - 1)

    def _epochs(self, candidate: Candidate) -> float:
        return max(0.5, candidate.job.run_seconds / EPOCH_SECONDS)

    def _draw_remaining_work(self, number: int) -> float:
        """Draw the remaining work at random, with less variance the longer the job has trained."""
        candidate = self.candidates[number]
        job = candidate.job
        if job.work is not None:
            return float(job.work.value * np.exp(job.work.error * self.rng.standard_normal()))
        a = self._epochs(candidate)
        part = job.progress or a / (a + COLD_EPOCHS)
        progress = self.rng.beta(a, max(a * (1 / min(max(part, 1e-3), 0.999) - 1), 1e-3))
        return float(max(job.served_gpu_seconds, 1.0) * (1 / max(progress, 1e-3) - 1))

    def _limits(self) -> list[int]:
        """Return how many GPUs each candidate may have now."""
        before: Mapping[JobId, int] = self.snapshot.state.get("limits", {})
        runs = [job.run_seconds for job in self.snapshot.jobs if job.running]
        median = float(np.median(runs)) if runs else 0.0
        found = []
        for candidate in self.candidates:
            job = candidate.job
            limit = max(before.get(job.id, 0), candidate.min_gpus, job.gpus)
            if job.running and job.gpus >= limit and not self._is_settling(candidate):
                limit *= 2
            limit = min(limit, MAX_TIMES_ASKED * job.asked, candidate.max_gpus)
            if job.gpus * 2 >= self.problem.gpus and job.run_seconds > median > 0:
                limit = min(limit, 2 * int(job.gpus / (job.run_seconds / median + 1)))
            found.append(max(limit, candidate.min_gpus))
        return found

    def _cap(self, number: int) -> int:
        """Return the fastest count that a candidate may have."""
        minimum, speeds = self.candidates[number].min_gpus, self.speeds[number]
        return minimum + int(np.argmax(speeds[minimum : self.limits[number] + 1]))

    def _is_settling(self, candidate: Candidate) -> bool:
        job = candidate.job
        return job.running and self.snapshot.now - (job.since or job.started_at or 0.0) < self.policy.settle_seconds

    def evolve(self) -> dict[JobId, int]:
        """Run the generations, and return the counts of the fittest schedule."""
        jobs = len(self.candidates)
        self.population = [self._pad(one) for one in self._ancestors()]
        generations = min(self.policy.generations, max(1, MAX_DECISION_WORK // (2 * POPULATION * max(jobs, 1))))
        for _ in range(generations if jobs else 0):
            self.left = np.array([self._draw_remaining_work(number) for number in range(jobs)])
            children = [self._crossover() for _ in range(POPULATION)] + [self._mutate(one) for one in self.population]
            combined = self.population + [self._pad(child) for child in children]
            self.population = sorted(combined, key=self._score)[:POPULATION]
        self.left = self.expected
        best = min(self.population, key=self._score)
        return {candidate.job.id: count for candidate, count in zip(self.candidates, best, strict=True)}

    def value_of(self, target: Mapping[JobId, Placement]) -> float:
        """Return the value of a target: fewer idle GPUs first, then less remaining GPU time."""
        counts = [placement.total(target.get(candidate.job.id, {})) for candidate in self.candidates]
        idle, score = self._score(counts)
        return -idle - score / (1 + score)

    def _score(self, counts: Sequence[int]) -> tuple[int, float]:
        rows, columns = np.arange(len(counts)), np.minimum(np.array(counts, np.intp), self.price.shape[1] - 1)
        score = self.per_work[rows, columns] @ self.left + self.price[rows, columns].sum()
        return self.problem.gpus - sum(counts), float(score)

    def _ancestors(self) -> list[Schedule]:
        """Return the population of the last decision, filled up with the current counts."""
        now = [candidate.job.gpus for candidate in self.candidates]
        ids = [candidate.job.id for candidate in self.candidates]
        before: Sequence[Mapping[JobId, int]] = self.snapshot.state.get("population", ())
        kept = [[one.get(id, 0) for id in ids] for one in before][: POPULATION - 1]
        return [list(now) for _ in range(POPULATION - len(kept))] + kept

    def _crossover(self) -> Schedule:
        mother, father = (self.population[int(number)] for number in self.rng.integers(0, POPULATION, 2))
        heads = self.rng.random(len(mother)) < FIRST_PARENT_PROBABILITY
        return [one if head else other for one, other, head in zip(mother, father, heads, strict=True)]

    def _mutate(self, one: Schedule) -> Schedule:
        leaves = self.rng.random(len(one)) < DROP_PROBABILITY
        return [0 if leave else count for count, leave in zip(one, leaves, strict=True)]

    def _pad(self, one: Schedule) -> Schedule:
        """Fit a schedule into GPUs and limits; the rest goes to new jobs, then to those with the least remaining work."""
        rooms = self.rooms.copy()
        counts = list(self.at_least)
        free = self.problem.gpus - sum(counts)

        def give(number: int, want: int) -> None:
            nonlocal free
            candidate, have = self.candidates[number], counts[number]
            if want > have and not self.fixed[number]:
                want = min(want, have + free, have + rooms.left(candidate.job.id))
                if want > have and want >= candidate.min_gpus:
                    counts[number] = want
                    free -= want - have
                    rooms.use(candidate.job.id, want - have)

        for number in self.rng.permutation(len(one)).tolist():
            give(number, min(one[number], self.caps[number]))
        later = [(number, self.caps[number]) for number in np.argsort(self.left, kind="stable").tolist()]
        for number, cap in self.new + later:
            if not free:
                break
            give(number, cap)
        return counts
