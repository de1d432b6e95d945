"""How many GPUs a job may grow to, and whether growing is worth it."""

from typing import TYPE_CHECKING

from scheduling.renamed import renamed
from scheduling.toolkit import estimates
from scheduling.types import Job

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"pays": "growth_pays_off"})

MIN_GAIN = 0.05
"""A job does not get another GPU that makes it faster by less than this fraction of one GPU."""
LOOK_AHEAD = 8
"""How many sizes to look ahead: curves are not concave, so five GPUs of two nodes may be slower than four of one, and
eight faster than both."""


def max_size(job: Job) -> int:
    """Return the largest size of a job: one that cannot be resized keeps its size, and starts with what it asked for."""
    if job.running and (not job.elastic or job.blocked):
        return 0
    return job.max_gpus if job.elastic else job.asked


def next_size(job: Job, count: int, largest: int) -> int:
    """Return the next larger size at which each additional GPU is worthwhile; 0 when there is none up to ``largest``."""
    known = estimates.curve(job, free_batch=True)
    if known is None or not known.speeds:
        return count + 1 if count < largest else 0
    speeds = known.speeds
    now = speeds[min(count, len(speeds)) - 1] if count else 0.0
    for size in range(count + 1, min(largest, len(speeds), count + LOOK_AHEAD) + 1):
        if speeds[size - 1] - now >= MIN_GAIN * (size - count):
            return size
    return 0


def growth_pays_off(job: Job, size: int, within: float) -> bool:
    """Whether a running job that grows to ``size`` makes up for the interruption ``within`` seconds and before it ends."""
    now, then = estimates.speed(job, job.gpus, free_batch=True), estimates.speed(job, size, free_batch=True)
    seconds = min(within, estimates.remaining_seconds(job, size, free_batch=True))
    return seconds * (then - now) > job.resize_seconds * now
