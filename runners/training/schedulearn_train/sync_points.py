"""The values that ranks exchange at a sync point, about once a second, and when the next one is.

All ranks sum up their values and make the same decisions from the sums (``coordination.py``, ``keras.py``).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SYNC_SECONDS = 1.0
MAX_STEPS = 1000
COMPARES = 2
"""Added to ``SyncValues.reports`` where all ranks are to compare their parameters. A field of its own would make the sums of
this release longer than those of earlier ones, whose ranks may train together with these."""


def steps_between(step_seconds: float) -> int:
    """Return the number of steps from one sync point to the next, for steps that take so long."""
    return max(1, min(MAX_STEPS, round(SYNC_SECONDS / max(step_seconds, 1e-6))))


def means(steps: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """Return the means of samples, computing and waiting over the steps; zeros without any."""
    count = max(1, len(steps))
    samples, computing, waiting = zip(*steps, strict=True) if steps else ((), (), ())
    return sum(samples) / count, sum(computing) / count, sum(waiting) / count


class SyncValues(NamedTuple):
    """The values of one rank that are summed over all ranks. Only rank 0 sets the fields after ``measured``."""

    stops: float
    loss: float
    samples: float
    own: float
    """The squared norm of this rank's gradient in the last measured step (``meter.py``)."""
    inverse: float
    """1 / the samples of this rank in that step."""
    measured: float
    """1 if this rank has measured a step."""
    difference: float = 0.0
    whole: float = 0.0
    step_seconds: float = 0.0
    saves: float = 0.0
    batch: float = 0.0
    reports: float = 0.0


def chosen_batch(current: int, minimum: int, maximum: int) -> int:
    """Return the batch size that the scheduler chose, within these limits, or the ``current`` one while there is none."""
    try:
        wanted = int(Path(os.environ["SCHEDULEARN_BATCH"]).read_text())
    except (KeyError, OSError, ValueError):
        return current
    return min(maximum, max(minimum, wanted)) if wanted > 0 else current
