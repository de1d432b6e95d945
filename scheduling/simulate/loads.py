"""Made-up workloads, drawn from a seed: a lab's month, for speed and for trying things out. Never for tuning."""

from collections.abc import Sequence

import numpy as np

from scheduling.simulate.inputs import Submission
from scheduling.simulate.truth import Knowledge, Plain
from scheduling.types import Curve, Job

DAY = 86400.0
SIZES: Sequence[int] = (1, 2, 4, 8)
SIZE_SHARES: Sequence[float] = (0.7, 0.14, 0.11, 0.05)
"""Most jobs of labs ask for one GPU (Philly, and Helios after it)."""
LOG_SPREAD = 1.6
"""Of lengths: the mean is several times the median, as in published traces."""
HOURS = np.array([3, 2, 2, 1, 1, 1, 2, 3, 5, 8, 9, 9, 7, 8, 10, 10, 9, 8, 7, 6, 6, 5, 5, 4], dtype=float)
"""How many jobs come in which hour of the day."""


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
    """``load`` is the part of ``gpus`` that the work would keep busy if everybody had just what he asked for.

    Few users submit most of the jobs (Zipf); groups have ten users. ``elastic`` and ``preemptible`` are shares of jobs.
    """
    dice = np.random.default_rng(seed)
    hour = dice.choice(24, size=jobs, p=HOURS / HOURS.sum())
    day = np.floor(dice.uniform(0, days, size=jobs))
    comes = np.sort(np.minimum(day * DAY + (hour + dice.uniform(0, 1, size=jobs)) * 3600, days * DAY - 1))
    rank = 1.0 / np.arange(1, users + 1) ** 0.8
    owner = dice.choice(users, size=jobs, p=rank / rank.sum())
    size = dice.choice(SIZES, size=jobs, p=SIZE_SHARES)
    size = np.minimum(size, gpus)
    seconds = np.minimum(np.exp(dice.normal(0.0, LOG_SPREAD, size=jobs)), 200.0)
    seconds *= load * gpus * days * DAY / float((seconds * size).sum())
    seconds = np.maximum(seconds, 10.0)
    exponent = dice.uniform(0.7, 0.98, size=jobs)
    may_resize, may_stop = dice.uniform(size=jobs) < elastic, dice.uniform(size=jobs) < preemptible
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
