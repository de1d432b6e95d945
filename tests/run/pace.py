"""How fast the processors of this machine are while tests run, so that budgets mean the same on every machine."""

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

USUAL_SECONDS = 0.022
"""Processor time of ``some_work`` on the machine on which tests/run/budget.toml was measured, in a run of `make test`."""
PAUSE_SECONDS = 5.0


def some_work() -> None:
    """Always the same: what tests mostly do, objects and texts in Python."""
    rows = [{"id": number, "name": f"job {number % 97}", "gpus": [number, number + 1]} for number in range(3_000)]
    found = sorted(json.loads(json.dumps(rows)), key=lambda row: (row["name"], -row["id"]))
    if len(found) != len(rows):
        raise AssertionError("rows were lost")


def processor_seconds(work: Callable[[], None] = some_work) -> float:
    """What the work takes of a processor, however long it waited for one."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


class Pace:
    """Samples of one run."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @property
    def slowness(self) -> float:
        """How many times as long as usual this machine takes; 1 when it is as fast or faster."""
        return max(1.0, statistics.median(self.samples) / USUAL_SECONDS) if self.samples else 1.0


@contextmanager
def measured_pace(pause_seconds: float = PAUSE_SECONDS) -> Iterator[Pace]:
    """Take a sample now and after each pause, until the run is over."""
    pace, over = Pace(), threading.Event()

    def take_samples() -> None:
        pace.samples.append(processor_seconds())
        while not over.wait(pause_seconds):
            pace.samples.append(processor_seconds())

    sampler = threading.Thread(target=take_samples, name="pace", daemon=True)
    sampler.start()
    try:
        yield pace
    finally:
        over.set()
        sampler.join()
