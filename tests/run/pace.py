"""How fast this machine is while tests run, so that budgets mean the same on every machine."""

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

USUAL_SECONDS = 1.0
"""What ``one_process`` takes on the machine on which tests/run/budget.toml was measured, in a run of `make test`."""
PAUSE_SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import asyncio, email, http.server, unittest.mock; from tests.run.pace import some_work; some_work()"
MOST_SECONDS = 120.0
"""Of one sample, which a machine that does nothing else any more may need."""


def some_work() -> None:
    """Always the same, and what tests mostly do: objects and texts in Python, and a database in a file."""
    rows = [{"id": number, "name": f"job {number % 97}", "gpus": [number, number + 1]} for number in range(20_000)]
    found = sorted(json.loads(json.dumps(rows)), key=lambda row: (row["name"], -row["id"]))
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/rows")) as database:
        database.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, name TEXT, gpus TEXT)")
        for start in range(0, len(found), 500):
            with database:
                some = ((row["id"], row["name"], json.dumps(row["gpus"])) for row in found[start : start + 500])
                database.executemany("INSERT INTO row VALUES (?, ?, ?)", some)
        [(kept,)] = database.execute("SELECT count(*) FROM row WHERE name LIKE 'job %'")
    if kept != len(rows):
        raise AssertionError("rows were lost")


def one_process() -> float:
    """Seconds that a new process takes for this work, its start and the wait for a processor included."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, check=True, timeout=MOST_SECONDS)
    return time.monotonic() - started


class Pace:
    """Samples of one run."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @property
    def slowness(self) -> float:
        """How many times as long as usual this machine takes; 1 when it is as fast or faster."""
        return max(1.0, statistics.median(self.samples) / USUAL_SECONDS) if self.samples else 1.0


@contextmanager
def measured_pace(sample: Callable[[], float] = one_process, pause_seconds: float = PAUSE_SECONDS) -> Iterator[Pace]:
    """Take a sample now and after each pause, until the run is over. One that fails counts for nothing."""
    pace, over = Pace(), threading.Event()

    def take_samples() -> None:
        while True:
            try:
                pace.samples.append(sample())
            except (OSError, subprocess.SubprocessError) as problem:
                print(f"The pace of this machine could not be measured: {problem}", flush=True)
            if over.wait(pause_seconds):
                return

    sampler = threading.Thread(target=take_samples, name="pace", daemon=True)
    sampler.start()
    try:
        yield pace
    finally:
        over.set()
        sampler.join()
