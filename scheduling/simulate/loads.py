"""Synthetic workloads from a seed: a month of a lab, a day before a deadline, and FfDL's bursts. Not for tuning."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scheduling.simulate.inputs import Submission
from scheduling.simulate.truth import Knowledge, Plain
from scheduling.types import Curve, Job

DAY = 86400.0
SIZES: Sequence[int] = (1, 2, 4, 8)
SIZE_SHARES: Sequence[float] = (0.7, 0.14, 0.11, 0.05)
"""Most jobs of labs ask for one GPU (Philly, and Helios after it)."""
LOG_SPREAD = 1.6
"""Standard deviation of the log of job lengths: the mean is several times the median, as in published traces."""
HOURS = np.array([3, 2, 2, 1, 1, 1, 2, 3, 5, 8, 9, 9, 7, 8, 10, 10, 9, 8, 7, 6, 6, 5, 5, 4], dtype=float)
"""The relative number of submissions by hour of the day."""


def month(
    *,
    users: int = 200,
    days: float = 30.0,
    jobs: int = 20_000,
    gpus: int = 128,
    load: float = 0.8,
    elastic: float = 0.4,
    preemptible: float = 0.7,
    seed: int = 0,
    knowledge: Knowledge = "none",
) -> list[Submission]:
    """Return a month of a lab. ``load`` is the fraction of ``gpus`` that is busy if each job has what it asked for.

    Few users submit most of the jobs (Zipf); groups have ten users. ``elastic`` and ``preemptible`` are fractions of the
    jobs.
    """
    rng = np.random.default_rng(seed)
    hour = rng.choice(24, size=jobs, p=HOURS / HOURS.sum())
    day = np.floor(rng.uniform(0, days, size=jobs))
    comes = np.sort(np.minimum(day * DAY + (hour + rng.uniform(0, 1, size=jobs)) * 3600, days * DAY - 1))
    rank = 1.0 / np.arange(1, users + 1) ** 0.8
    owner = rng.choice(users, size=jobs, p=rank / rank.sum())
    size = rng.choice(SIZES, size=jobs, p=SIZE_SHARES)
    size = np.minimum(size, gpus)
    seconds = np.minimum(np.exp(rng.normal(0.0, LOG_SPREAD, size=jobs)), 200.0)
    seconds *= load * gpus * days * DAY / float((seconds * size).sum())
    seconds = np.maximum(seconds, 10.0)
    exponent = rng.uniform(0.7, 0.98, size=jobs)
    may_resize, may_stop = rng.uniform(size=jobs) < elastic, rng.uniform(size=jobs) < preemptible
    curves = {e: Curve(tuple(float(n**e) for n in range(1, 33))) for e in np.unique(np.round(exponent, 2)).tolist()}
    made = []
    for number in range(jobs):
        asked, lasts = int(size[number]), float(seconds[number])
        curve = curves[float(np.round(exponent[number], 2))]
        stretch = bool(may_resize[number])
        user = int(owner[number])
        job = Job(
            id=f"job-{number:06}",
            owner=f"user-{user:03}",
            group=f"group-{user // 10:02}",
            submitted_at=float(comes[number]),
            min_gpus=max(1, asked // 2) if stretch else asked,
            max_gpus=min(gpus, asked * 4) if stretch else asked,
            asked_gpus=asked,
            elastic=stretch,
            preemptible=bool(may_stop[number]),
        )
        made.append(Submission(job, Plain(lasts * curve.speeds[asked - 1], curve, knowledge=knowledge)))
    return made


WIDE: Sequence[int] = (8, 16, 32)
"""GPUs of the large jobs of a deadline day if they cannot be resized."""
DEADLINE_CURVE = Curve(tuple(float(n**0.9) for n in range(1, max(WIDE) + 1)))


def deadline_day(
    *, short: int = 950, large: int = 50, hours: float = 12.0, people: int = 20, trainers: int = 5, elastic: bool = True,
    seed: int = 0, knowledge: Knowledge = "none",
) -> list[Submission]:  # fmt: skip
    """Return a day with many short experiments and a few large jobs: made for 64 GPUs, which the large jobs overload.

    Short jobs take two minutes on one GPU and cannot be stopped. Large ones take 1 to 3 hours on 16 GPUs, use 8 to 32,
    and restart from a checkpoint after a stop; where they are not ``elastic`` each uses 8, 16 or 32 for 1 to 3 hours, so
    that they fill the cluster without a gap. They belong to ``trainers``, who submit no short jobs; without any of these,
    each job belongs to one of the ``people``.
    """
    rng = np.random.default_rng(seed)
    comes = np.sort(rng.uniform(0, hours * 3600, size=short + large))
    is_large = np.zeros(short + large, dtype=bool)
    is_large[rng.choice(short + large, size=large, replace=False)] = True
    made = []
    for number in range(short + large):
        wide = bool(is_large[number])
        size, seconds = int(rng.choice(WIDE)), float(rng.uniform(3600, 3 * 3600))
        person, trainer = int(rng.integers(people)), int(rng.integers(trainers or people))
        owner = f"trainer-{trainer:02}" if wide and trainers else f"user-{person:02}"
        name = f"{'large' if wide else 'short'}-{number:04}"
        job = Job(name, owner, float(comes[number]), 1, 1)
        work = 120.0
        if wide:
            minimum, maximum = (min(WIDE), max(WIDE)) if elastic else (size, size)
            job = replace(job, min_gpus=minimum, max_gpus=maximum, elastic=elastic, preemptible=True)
            work = seconds * DEADLINE_CURVE.speeds[(16 if elastic else size) - 1]
        made.append(Submission(job, Plain(work, DEADLINE_CURVE, knowledge=knowledge)))
    return made


CLASSES = {"compute-bound": 0.02, "balanced": 0.2, "communication-bound": 1.0}
"""Seconds of an exchange of gradients between the first two GPUs, when a sample takes ``SAMPLE_SECONDS``."""
SAMPLE_SECONDS = 0.01
STEP_SECONDS = 0.05
MIN_BATCH, MAX_BATCH, MEMORY = 32, 2048, 256
"""Bounds of the total batch of a job, and the samples that fit into the memory of one GPU."""


def bursts(
    *, batch: Literal["chosen", "least", "drawn", "most"] = "chosen", waves: int = 4, jobs: int = 40,
    gap_seconds: float = 3600.0, spread_seconds: float = 300.0, minutes: float = 30.0, max_gpus: int = 8, seed: int = 0,
) -> list[Submission]:  # fmt: skip
    """Return waves of jobs with a free batch size, a third of each of ``CLASSES``: the workload that FfDL was made for.

    The classes differ by the communication of their workers in a step; with a larger batch it is less frequent. All
    samples have the same value, as FfDL assumes within the declared range of batch sizes, and each GPU must hold its part
    of the batch at once. ``batch`` restricts the batch size of jobs: any within their bounds (``chosen``), or only the
    smallest, the largest, or one drawn between them, as in FfDL's baseline; a fixed one needs enough GPUs to hold it.
    ``minutes`` is the mean length of jobs alone on one GPU with the best batch size, equal for all four.
    """
    rng = np.random.default_rng(seed)
    kinds = list(CLASSES)
    made = []
    for number in range(waves * jobs):
        kind = kinds[int(rng.integers(len(kinds)))]
        comes = number // jobs * gap_seconds + float(rng.uniform(0, spread_seconds))
        samples = float(rng.exponential(minutes * 60)) * _rate_alone(kind)
        drawn = int(2 ** rng.uniform(np.log2(MIN_BATCH), np.log2(MAX_BATCH)))
        asked = {"chosen": drawn, "least": MIN_BATCH, "drawn": drawn, "most": MAX_BATCH}[batch]
        choice = tuple(range(MIN_BATCH, MAX_BATCH + 1, 32)) if batch == "chosen" else (asked,)
        curve = _batch_curve(kind, max_gpus, choice)
        minimum = 1 if batch == "chosen" else -(-asked // MEMORY)
        job = Job(
            id=f"job-{number:04}", owner=f"user-{number % 20:02}", submitted_at=comes, min_gpus=minimum,
            max_gpus=max_gpus, asked_gpus=minimum, elastic=True, preemptible=True, script=kind, batch=asked,
            speed=replace(curve, batches=()), free_speed=curve if batch == "chosen" else None,
        )  # fmt: skip
        truth = Plain(samples / _rate_alone(kind), curve, knowledge="speed")
        made.append(Submission(job, truth))
    return sorted(made, key=lambda each: each.job.submitted_at)


def _rates(kind: str, gpus: int, batches: NDArray[Any]) -> NDArray[Any]:
    """Return the samples per second with each total batch; 0 where it does not fit into memory."""
    local = np.ceil(batches / gpus)
    wait = CLASSES[kind] * (1 + 0.1 * (gpus - 2)) if gpus > 1 else 0.0
    return np.where(local <= MEMORY, batches / (STEP_SECONDS + local * SAMPLE_SECONDS + wait), 0.0)


def _rate_alone(kind: str) -> float:
    """Return the samples per second of one GPU with the largest batch that it can hold."""
    return float(_rates(kind, 1, np.array([MEMORY]))[0])


@lru_cache(maxsize=4096)
def _batch_curve(kind: str, maximum: int, batches: tuple[int, ...]) -> Curve:
    """Return the curve of the best of ``batches`` for each number of GPUs, relative to one GPU with its largest batch."""
    tried = np.array(batches)
    table = [_rates(kind, gpus, tried) for gpus in range(1, maximum + 1)]
    best = tuple(int(tried[row.argmax()]) for row in table)
    return Curve(tuple(float(row.max()) / _rate_alone(kind) for row in table), best)
