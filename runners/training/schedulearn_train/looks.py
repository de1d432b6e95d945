"""What ranks tell each other when they look up together: about once a second, which all of them reckon alike from the same sums."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 1.0
MOST_STEPS = 1000
COMPARES = 2
"""Added to ``Look.reports`` where all ranks are to compare their parameters. A field of its own would make the sums of this
release longer than those of earlier ones, whose ranks may be in the same ring."""


def steps_between(step_seconds: float) -> int:
    """Steps from one look to the next, where one takes so long."""
    return max(1, min(MOST_STEPS, round(LOOK_SECONDS / max(step_seconds, 1e-6))))


def means(steps: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """Column by column; zeros where there are none."""
    count = max(1, len(steps))
    samples, computing, waiting = zip(*steps, strict=True) if steps else ((), (), ())
    return sum(samples) / count, sum(computing) / count, sum(waiting) / count


class Look(NamedTuple):
    """What each rank gives to a sum over all of them; those behind ``measured`` rank 0 alone."""

    stops: float
    loss: float
    samples: float
    own: float
    """Of the last step the squared length of its own gradient, and 1 / its samples: ``noise.Meter``."""
    inverse: float
    measured: float
    """1 if there are such."""
    difference: float = 0.0
    whole: float = 0.0
    step_seconds: float = 0.0
    saves: float = 0.0
    batch: float = 0.0
    reports: float = 0.0


def chosen_batch(present: int, least: int, most: int) -> int:
    """Return the scheduler's choice, within what the owner declared safe, or the ``present`` batch while there is none."""
    try:
        wanted = int(Path(os.environ["SCHEDULEARN_BATCH"]).read_text())
    except (KeyError, OSError, ValueError):
        return present
    return min(most, max(least, wanted)) if wanted > 0 else present
