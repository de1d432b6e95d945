"""Finish-time fairness: how much later a job ends than if it had a share of the cluster for itself.

``rho = T_shared / T_ideal`` (Themis, NSDI'20): 1 means that sharing cost its owner nothing, 2 that the result comes
after twice the time. The metric is confirmed from secondary sources; how its parts are estimated is our own.
"""

from scheduling.toolkit import estimates
from scheduling.types import Estimate, Job, Snapshot


class Shares:
    """What a fair share is in one snapshot: all GPUs of open nodes, divided by the jobs that run or wait."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now
        self.gpus = sum(node.total for node in snapshot.nodes if node.open)
        self.jobs = max(1, sum(job.running or (job.waiting and not job.blocked) for job in snapshot.jobs))
        self.each = self.gpus / self.jobs

    def speed(self, job: Job) -> float:
        """With its share for itself: a part of a GPU is a part of the time, and more than it can use is of no use."""
        share = min(self.each, job.max_gpus)
        if share < job.min_gpus:
            return estimates.speed(job, job.min_gpus, free_batch=True) * share / job.min_gpus
        whole = int(share)
        here = estimates.speed(job, whole, free_batch=True)
        more = estimates.speed(job, min(whole + 1, job.max_gpus), free_batch=True)
        return here + (more - here) * (share - whole)

    def rho(self, job: Job, gpus: int | None = None) -> float:
        """If it goes on with ``gpus``; without, if it has its fair share from now on. Infinite where nothing is to be had."""
        alone = self.speed(job)
        left = estimates.work(job).value
        fast = alone if gpus is None else estimates.speed(job, gpus, free_batch=True)
        if alone <= 0 or fast <= 0:
            return float("inf")
        ideal = max((left + _done(job, left)) / alone, 1.0)
        return (max(0.0, self.now - job.submitted_at) + left / fast) / ideal


def rho(job: Job, snapshot: Snapshot) -> Estimate:
    """The number on a job's page: with what it holds now, or, while it waits, with its fair share from now on.

    It is as good as what is known of its work. The jobs there are now stand for those of its whole life.
    """
    work = estimates.work(job)
    return Estimate(Shares(snapshot).rho(job, job.gpus or None), work.source, work.error)


def _done(job: Job, left: float) -> float:
    """Work done so far, in seconds on one GPU."""
    if job.progress is not None and job.progress < 1.0 and job.work is not None:
        return left * job.progress / (1.0 - job.progress)
    if job.run_seconds <= 0:
        return job.served_gpu_seconds
    return job.run_seconds * estimates.speed(job, max(1, round(job.served_gpu_seconds / job.run_seconds)))
