"""``python -m tests.bench.small``: two costs that need neither a portal nor an engine.

1. one fit of the speed model to 45 measurements, the fastest of five;
2. the processor time of a supervisor while its program does nothing, as a share of one processor.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from scheduling.toolkit.performance import fit
from tests.bench.targets import Target, verdict
from tests.runners.launching import attempt, until
from tests.scheduling.toolkit.test_performance import PLANTED, measured

FITS = 5
MAX_FIT_SECONDS = 0.05
IDLE_SECONDS = 10.0
MAX_IDLE_SHARE = 0.05


def fit_seconds() -> float:
    points = measured(PLANTED, noise=0.1)
    took = []
    for _ in range(FITS):
        began = time.perf_counter()
        fit(points)
        took.append(time.perf_counter() - began)
    return min(took)


def idle_share() -> float:
    with tempfile.TemporaryDirectory() as home, attempt(Path(home)) as made:
        container = made.container(("sleep", "600")).start(SCHEDULEARN_TURN_SECONDS="0.5")
        assert container.process is not None  # noqa: S101
        status = container.scribe / "status.json"
        until(lambda: status.exists() and '"ranks": 1' in status.read_text())
        pid = container.process.pid
        time.sleep(1)  # its start is not part of it
        before, began = processor_seconds(pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        return (processor_seconds(pid) - before) / (time.monotonic() - began)


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of all threads of a process, in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    return verdict(
        [
            Target("one fit of the speed model", fit_seconds(), MAX_FIT_SECONDS, "s"),
            Target("a supervisor whose program does nothing", idle_share(), MAX_IDLE_SHARE, "processors"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
