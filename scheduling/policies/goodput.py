"""Useful progress for all jobs: the objective of Pollux, with the integer program of Sia."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from scheduling.optimise import allocation_search
from scheduling.optimise.integer_program import Program
from scheduling.optimise.rearrangement import rearrange_if_better
from scheduling.params import param
from scheduling.toolkit import estimates, placement
from scheduling.toolkit.target_plan import carry_out, recall, remember
from scheduling.types import Job, Knows, Plan, Snapshot

WAITING_SPEED = 0.25
"""Waiting counts like this fraction of the slowest useful speed, so that with p = -0.5 a job without GPUs costs 2 where
one with the minimum costs 1 (Sia: 1.1; Pollux: 1000, which dominates everything else)."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Pollux (OSDI'21) and Sia (SOSP'23).

    Confirmed (the authors' code): goodput is throughput times statistical efficiency; the value of a job is the power p
    of its goodput relative to its smallest; changes are multiplied by ``max(age - restarts * cost, 0) / (age + cost)``;
    the program of Sia picks one configuration per job, powers of two within a node or whole nodes, with p = -0.5, and
    growth at most doubles. Reconstruction: a change is also priced over ten minutes, and where the remaining time of the
    job is known over that alone; waiting counts like a quarter of the slowest speed where p is not positive; claims are
    weighted by remaining work (``favour_short``) and by waiting time; p = 0.5, since those claims, which Pollux and Sia
    do not have, already ensure that small jobs are not left behind (measured in docs/policies/measurements.md).

    Optimus (EuroSys'18), as a preset: the next GPU goes to the job whose remaining time it reduces the most; the batch
    size stays.
    """

    title: ClassVar[str] = "Most useful progress (Pollux, Sia)"
    explanation: ClassVar[str] = (
        "All jobs share the GPUs so that each makes good progress for its size: a job grows while that helps it more "
        "than it costs the others, with the batch size that suits its GPUs, on the kind of GPU where it gains the most. "
        "Changes that would not pay off are not made."
    )
    good_for: ClassVar[str] = "short turnaround when jobs are elastic, and several kinds of GPUs"
    needs: ClassVar[str] = "the speed of jobs with more GPUs; their length helps"
    knows: ClassVar[Knows] = "speeds"

    preset: str = param(
        "goodput",
        "Objective",
        "Good progress for all, or Optimus: the next GPU goes where it saves the most remaining time, and batch sizes "
        "stay (then the settings for fairness, short jobs and batch size below do not count).",
        choices=[("goodput", "good progress for all"), ("optimus", "saving remaining time (Optimus)")],
    )
    solver: str = param(
        "ilp",
        "How to search",
        "The integer program is best up to about a thousand jobs; with more, the search is always greedy.",
        choices=[("ilp", "integer program"), ("greedy", "greedily"), ("genetic", "genetic search, as in Pollux")],
        group="How it searches",
    )
    p: float = param(
        0.5,
        "Fairness exponent",
        "1: the sum of all progress counts. Smaller: the slowest jobs count more.",
        minimum=-10,
        maximum=1,
        group="What counts",
    )
    favour_short: float = param(
        0.5,
        "Favour short jobs",
        "The claim of a job is its remaining work to the power of minus this; work that was not declared is estimated "
        "from the GPU time that the job has had. 0: length does not count, as in Pollux and Sia.",
        minimum=0,
        maximum=1,
        group="What counts",
    )
    waiting_bonus: float = param(
        1.0,
        "Bonus per hour of waiting",
        "The claim of a job grows by this fraction for each hour that it has waited, so that no job waits for ever.",
        minimum=0,
        maximum=100,
    )
    batch: str = param(
        "chosen",
        "Batch size",
        "Whether the batch size of jobs that allow it is chosen together with their GPUs.",
        choices=[("chosen", "chosen with the GPUs"), ("asked", "as its owner asked")],
    )
    period_seconds: int = param(
        60,
        "Seconds between decisions",
        "When no job comes or ends, GPUs are shared again only after this long.",
        minimum=0,
        maximum=86_400,
        group="How it searches",
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        problem = allocation_search.problem_from(snapshot)
        order = problem.order
        if aim := recall(snapshot, self.period_seconds):
            again_at = snapshot.state["at"] + self.period_seconds
            return carry_out(snapshot, order, aim[0], problem.why, snapshot.state, aim[1], again_at)
        program = Program(self, snapshot, problem)
        chosen = program.solve(self.solver)
        wanted = {job.id: job.gpus for job in problem.held}
        wanted.update({gain.job.id: option.gpus for gain, option in zip(program.gains, chosen, strict=True)})
        kinds = {
            gain.job.id: option.kind
            for gain, option in zip(program.gains, chosen, strict=True)
            if option.kind is not None
        }
        target = rearrange_if_better(snapshot, order, wanted, program.total_value, kinds)
        batches = {
            job.id: size
            for job in order
            if self.free_batch and (size := estimates.batch(job, placement.total(target.get(job.id, {}))))
        }
        again_at = snapshot.now + self.period_seconds if self.period_seconds and problem.candidates else None
        return carry_out(snapshot, order, target, problem.why, remember(snapshot, target, batches), batches, again_at)

    @property
    def free_batch(self) -> bool:
        return self.batch == "chosen" and self.preset != "optimus"

    def progress_weight(self, job: Job, now: float) -> float:
        """Return the weight of the progress of a job. Its past waiting counts while it runs, or it would stop again."""
        weight = job.weight * 2.0 ** max(-10, min(10, job.priority))
        left = max(1.0, estimates.work(job).value)
        if self.preset == "optimus":
            return float(weight * left)
        waited = max(0.0, now - job.submitted_at - job.run_seconds)
        return float(weight * left**-self.favour_short * (1 + self.waiting_bonus * waited / 3600))

    def utility(self, speed: float) -> float:
        """Return the utility of a relative speed, which is 1 for the smallest useful configuration and 0 for waiting."""
        if self.preset == "optimus":
            return -1 / max(speed, 1e-3)
        if self.p > 0:
            return float(speed**self.p)
        speed = max(speed, WAITING_SPEED)
        return float(np.log(speed) if self.p == 0 else -(speed**self.p))
