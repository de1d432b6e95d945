"""The speed and the length of a job as far as they are known, with defaults where they are not.

Policies use this instead of reading curves themselves, so that "unknown" means the same to all of them.
"""

from functools import lru_cache

from scheduling.types import Curve, Estimate, Job

DEFAULT_EXPONENT = 0.9
"""The exponent of speed of a job that was never measured: n GPUs are n ** 0.9 times as fast, a mild communication loss."""
DEFAULT_WORK_SECONDS = 3600.0
"""The default work of a job, one GPU-hour: about the median of published traces of shared clusters."""


def curve(job: Job, *, free_batch: bool = False) -> Curve | None:
    return job.free_speed or job.speed if free_batch else job.speed


def speed(job: Job, gpus: int, *, free_batch: bool = False) -> float:
    """Return the useful work per second with ``gpus`` GPUs; 1.0 is one GPU with the batch size asked for."""
    if gpus <= 0:
        return 0.0
    known = curve(job, free_batch=free_batch)
    if known is None or not known.speeds:
        assumed: float = gpus**DEFAULT_EXPONENT
        return assumed
    return known.speeds[min(gpus, len(known.speeds)) - 1]


def batch(job: Job, gpus: int) -> int:
    """Return the best total batch size with ``gpus`` GPUs if it may change; otherwise the current one, 0 when unknown."""
    known = job.free_speed
    if known is None or not known.batches or gpus <= 0:
        return job.batch
    return known.batches[min(gpus, len(known.batches)) - 1]


def work(job: Job) -> Estimate:
    """Return the seconds of work left on one GPU. Unknown lengths count as heavy-tailed: as much again as was served."""
    if job.work is not None:
        return job.work
    return Estimate(max(DEFAULT_WORK_SECONDS, job.served_gpu_seconds), "default", 2.0)


def remaining_seconds(job: Job, gpus: int, *, free_batch: bool = False) -> float:
    """Return how long the job still takes with ``gpus`` GPUs; infinite without any."""
    fast = speed(job, gpus, free_batch=free_batch)
    return work(job).value / fast if fast > 0 else float("inf")


def steps(
    job: Job, count: int, minimum: int, maximum: int, *, free_batch: bool = False
) -> tuple[tuple[int, float], ...]:
    """Return the sizes from ``minimum`` to ``maximum`` worth growing to from ``count``, with the gain per GPU up to each.

    They are the corners of the concave hull of the speeds: five GPUs of two nodes may be slower than four of one, and
    eight faster than both. Gains fall from step to step, so it is right to give the next GPUs to the largest gain.
    """
    known = curve(job, free_batch=free_batch)
    return _steps(known.speeds if known is not None else (), count, minimum, maximum)


@lru_cache(maxsize=4096)
def _steps(speeds: tuple[float, ...], count: int, minimum: int, maximum: int) -> tuple[tuple[int, float], ...]:
    def fast(gpus: int) -> float:
        return (speeds[min(gpus, len(speeds)) - 1] if speeds else gpus**DEFAULT_EXPONENT) if gpus else 0.0

    hull = [(count, fast(count))]
    for size in range(max(minimum, count + 1), (min(maximum, max(len(speeds), minimum)) if speeds else maximum) + 1):
        here = fast(size)
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (size, here)):
            hull.pop()
        hull.append((size, here))
    gains = ((there[0], _slope(here, there)) for here, there in zip(hull, hull[1:], strict=False))
    return tuple((size, gain) for size, gain in gains if gain > 0)


def _slope(here: tuple[int, float], there: tuple[int, float]) -> float:
    return (there[1] - here[1]) / (there[0] - here[0])
