"""Finish-time fairness: how much later a job ends than if it had an equal share of the cluster for itself.

``rho = T_shared / T_ideal`` (Themis, NSDI'20): 1 means that sharing cost its owner nothing, 2 that the result takes
twice the time. The metric is confirmed from secondary sources; the estimates of its parts are our own.
"""

from scheduling.toolkit import estimates
from scheduling.types import Estimate, Job, Snapshot


class Shares:
    """The fair share in one snapshot: all GPUs of open nodes, divided by the jobs that run or wait."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now
        self.gpus = sum(node.total for node in snapshot.nodes if node.open)
        self.jobs = max(1, sum(job.running or (job.waiting and not job.blocked) for job in snapshot.jobs))
        self.each = self.gpus / self.jobs

    def speed(self, job: Job) -> float:
        """Return the speed of a job on its fair share: a fraction of a GPU counts as a fraction of the time."""
        share = min(self.each, job.max_gpus)
        if share < job.min_gpus:
            return estimates.speed(job, job.min_gpus, free_batch=True) * share / job.min_gpus
        whole = int(share)
        here = estimates.speed(job, whole, free_batch=True)
        more = estimates.speed(job, min(whole + 1, job.max_gpus), free_batch=True)
        return here + (more - here) * (share - whole)

    def rho(self, job: Job, gpus: int | None = None) -> float:
        """Return the rho of a job with ``gpus`` GPUs from now on, by default with its fair share; infinite without any."""
        alone = self.speed(job)
        left = estimates.work(job).value
        fast = alone if gpus is None else estimates.speed(job, gpus, free_batch=True)
        if alone <= 0 or fast <= 0:
            return float("inf")
        ideal = max((left + _work_done(job, left)) / alone, 1.0)
        return (max(0.0, self.now - job.submitted_at) + left / fast) / ideal


def rho(job: Job, snapshot: Snapshot) -> Estimate:
    """Return the rho of a job for its page: with the GPUs that it holds or, while it waits, with its fair share from now on.

    It is as accurate as the estimate of the work. The number of jobs now stands for that over the whole life of the job.
    """
    work = estimates.work(job)
    return Estimate(Shares(snapshot).rho(job, job.gpus or None), work.source, work.error)


def _work_done(job: Job, left: float) -> float:
    """Return the work done so far, in seconds on one GPU."""
    if job.progress is not None and job.progress < 1.0 and job.work is not None:
        return left * job.progress / (1.0 - job.progress)
    if job.run_seconds <= 0:
        return job.served_gpu_seconds
    return job.run_seconds * estimates.speed(job, max(1, round(job.served_gpu_seconds / job.run_seconds)))
