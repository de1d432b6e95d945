"""FfDL: the most useful work per second, by dynamic programming over jobs and GPUs."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from scheduling.optimise import allocation_search
from scheduling.optimise.rearrangement import rearrange_if_better
from scheduling.params import param
from scheduling.toolkit import estimates
from scheduling.toolkit.target_plan import carry_out, recall, remember
from scheduling.types import Job, JobId, Knows, Plan, Snapshot

COST_MARGIN = 1.5
"""A change must gain this many times its cost, because the cost is not known exactly."""
NO_CHANGE_BONUS = 1e-6
"""The bonus for no change: between plans of equal value, the one with fewer changes wins."""
MIN_SECONDS = 1.0
"""The shortest remaining time of a job."""


@dataclass(frozen=True, slots=True)
class Ffdl:
    """The optimiser of FfDL (Saxena et al. 2020, arXiv 2006.13878).

    Confirmed (abstract): batch size and GPUs are chosen together from a job's scaling efficiency, by a dynamic program
    fast enough to run all the time; the baseline scales GPUs and keeps the batch. Confirmed through Voda's port: the
    program maximises the sum of scaling factors ``T_j(g) = X(best batch, g) / X(best batch, 1)``. Reconstruction: jobs
    that may get nothing (Voda keeps the first K jobs and gives each at least one), weights, the bonus for waiting, the
    price of a change, sizes of whole nodes first, and claims that fall with the work that is left: the plain sum gives
    a job that lasts for days as much as one that is done in minutes.
    """

    title: ClassVar[str] = "Most work per second (FfDL)"
    explanation: ClassVar[str] = (
        "GPUs go where they speed up training the most, and jobs that allow it get the batch size that suits their GPUs. "
        "A job that gains little from more GPUs stays small; the claim of a waiting job grows every hour."
    )

    good_for: ClassVar[str] = "getting the most training out of the GPUs"
    needs: ClassVar[str] = "the speed of jobs with more GPUs"
    knows: ClassVar[Knows] = "speeds"

    batch: str = param(
        "chosen",
        "Batch size",
        "Whether the batch size of jobs that allow it is chosen together with their GPUs.",
        choices=[("chosen", "chosen with the GPUs"), ("asked", "as its owner asked")],
    )
    admission: str = param(
        "optional",
        "Which jobs get GPUs",
        "By value: jobs that gain little may wait, or be stopped if they are preemptible, for those that gain more. "
        "In order: no running job is stopped, and new jobs get their minimum as long as there are enough GPUs.",
        choices=[("optional", "by value"), ("in_order", "in the order of submission")],
    )
    waiting_bonus: float = param(
        1.0,
        "Bonus per hour of waiting",
        "The claim of a waiting job grows by this fraction for each full hour since it was submitted or last stopped, "
        "until it starts. 0: waiting does not count, and a job that scales badly may wait for ever.",
        minimum=0,
        maximum=100,
        group="Patience and pace",
    )
    favour_short: float = param(
        0.25,
        "Favour short jobs",
        "The claim of a job is its remaining work to the power of minus this; work that was not declared is estimated "
        "from the GPU time that the job has had. 0: length does not count, as in FfDL.",
        minimum=0,
        maximum=1,
        group="Patience and pace",
    )
    horizon_seconds: int = param(
        1800,
        "Seconds within which a change must pay off",
        "A change must regain its cost within this time, and before the job ends. Larger: jobs are resized for smaller "
        "gains.",
        minimum=60,
        maximum=86_400,
        group="Patience and pace",
    )
    period_seconds: int = param(
        60,
        "Seconds between decisions",
        "When no job comes or ends, GPUs are shared again only after this long.",
        minimum=0,
        maximum=86_400,
        group="Patience and pace",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        problem = allocation_search.problem_from(snapshot)
        held, order = problem.held, problem.order
        if aim := recall(snapshot, self.period_seconds):
            again_at = snapshot.state["at"] + self.period_seconds
            return carry_out(snapshot, order, aim[0], problem.why, snapshot.state, aim[1], again_at)
        values = self._value_table(snapshot, problem)
        wanted = self._counts(problem, values)
        wanted.update({job.id: job.gpus for job in held})
        target = rearrange_if_better(
            snapshot, order, wanted, lambda target: allocation_search.total_value(problem, values, target)
        )
        batches = {
            job.id: size
            for job in order
            if self._chooses_batch and (size := estimates.batch(job, sum(target.get(job.id, {}).values())))
        }
        state = remember(snapshot, target, batches)
        again_at = snapshot.now + self.period_seconds if self.period_seconds and problem.candidates else None
        return carry_out(snapshot, order, target, problem.why, state, batches, again_at)

    @property
    def _chooses_batch(self) -> bool:
        return self.batch == "chosen"

    def _counts(
        self, problem: allocation_search.AllocationProblem, values: list[allocation_search.Values]
    ) -> dict[JobId, int]:
        """Return the best whole counts, plus the GPUs that they leave, one at a time."""
        whole = allocation_search.keep_packable_counts(problem, values)
        first = allocation_search.solve_within_limits(
            problem, lambda caps: allocation_search.solve(problem, whole, caps)
        )
        if sum(first.values()) == problem.gpus:
            return first
        more = allocation_search.keep_counts_from(problem, values, first)
        return allocation_search.solve_within_limits(problem, lambda caps: allocation_search.solve(problem, more, caps))

    def _value_table(
        self, snapshot: Snapshot, problem: allocation_search.AllocationProblem
    ) -> list[allocation_search.Values]:
        others = self._seconds_used_by_others(problem)
        values = [self._values(snapshot.now, candidate, problem.gpus, others) for candidate in problem.candidates]
        if self.admission == "in_order":
            self._admit(problem, values)
        return values

    def _admit(self, problem: allocation_search.AllocationProblem, values: list[allocation_search.Values]) -> None:
        """Guarantee running jobs their minimum, then those in the queue as long as possible; the others get none."""
        left, rooms = problem.gpus, allocation_search.LimitHeadroom(problem)
        order = sorted(range(len(values)), key=lambda number: problem.candidates[number].job.waiting)
        for number in order:
            candidate = problem.candidates[number]
            if candidate.job.running or candidate.min_gpus <= min(left, rooms.left(candidate.job.id)):
                left -= candidate.min_gpus
                rooms.use(candidate.job.id, candidate.min_gpus)
                values[number][0] = -np.inf
            else:
                values[number][1:] = -np.inf

    def _seconds_used_by_others(self, problem: allocation_search.AllocationProblem) -> float:
        """Return for how many seconds waiting jobs would use the GPUs of a stopped one: the median of their durations."""
        waiting = [candidate for candidate in problem.candidates if candidate.job.waiting]
        if not waiting:
            return float(self.horizon_seconds)
        return statistics.median(self._payback_seconds(candidate.job, candidate.min_gpus) for candidate in waiting)

    def _payback_seconds(self, job: Job, gpus: int) -> float:
        """Return for how many seconds a change pays: at most until the end of the job."""
        left = estimates.remaining_seconds(job, max(1, gpus), free_batch=self._chooses_batch)
        return max(MIN_SECONDS, min(self.horizon_seconds, left))

    def _values(
        self, now: float, candidate: allocation_search.Candidate, gpus: int, others: float
    ) -> allocation_search.Values:
        """Return the value of a job with 0, 1, ... GPUs. ``others``: seconds for which waiting jobs would use its GPUs."""
        job = candidate.job
        maximum = min(candidate.max_gpus, gpus)
        speeds = allocation_search.speeds(job, maximum, free_batch=self._chooses_batch)
        alone = estimates.speed(job, 1, free_batch=self._chooses_batch)
        value = self._progress_weight(job, now) * (speeds / alone if alone > 0 else speeds)
        if job.running:
            cost = COST_MARGIN * (job.resize_seconds if job.elastic else job.restart_seconds)
            stays = value[job.gpus] if job.gpus <= maximum else 0.0
            value *= max(0.0, 1 - cost / self._payback_seconds(job, job.gpus))
            value[0] = -COST_MARGIN * job.restart_seconds / others * stays
            if job.gpus <= maximum:
                value[job.gpus] = stays * (1 + NO_CHANGE_BONUS)
        value[1 : candidate.min_gpus] = -np.inf
        if not candidate.may_have_none:
            value[0] = -np.inf
        return value

    def _progress_weight(self, job: Job, now: float) -> float:
        """Return its weight, doubled by each step of priority, times factors for its remaining work and its waiting time.

        The bonus for waiting ends when the job starts: otherwise a running job would keep its GPUs against all later
        jobs. It grows by whole hours only: otherwise a job that was just stopped would soon outrank the one that took its
        place, and the two would alternate every few minutes.
        """
        waited = max(0.0, now - max(job.submitted_at, job.since or job.submitted_at)) if job.waiting else 0.0
        weight = job.weight * 2.0 ** max(-10, min(10, job.priority))
        left = max(1.0, estimates.work(job).value) / estimates.DEFAULT_WORK_SECONDS
        return float(weight * left**-self.favour_short * (1 + self.waiting_bonus * (waited // 3600)))
