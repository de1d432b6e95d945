"""``python -m tests.bench.learning.library``: steps with the training library, against plain Horovod.

A small network learns on two ranks, each bound to a separate processor: a few steps with Horovod alone and a few with the
library, which reports them, alternate within the same processes. As one start of a training differs from the next, there
are several, and their medians count.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import engine
from tests.bench.targets import Target, verdict

SCRIPT = Path(__file__).parent / "job" / "steps.py"
STARTS, RUN_SECONDS = 6, 240
MIN_RATIO, MAX_REPORTING = 0.98, 0.01


def start(python: str) -> tuple[float, float]:
    """Return the throughput with the library over that without it, and the fraction of its steps spent on reporting."""
    env = engine.rank_env(python)
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics"
        metrics.touch()
        env |= {"SCHEDULEARN_CHECKPOINTS": folder, "SCHEDULEARN_METRICS": str(metrics)}
        command = ["horovodrun", "--gloo", "-np", "2", "python", str(SCRIPT)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert metrics.stat().st_size, "it reports its steps"
    pairs = [(float(plain), float(library)) for plain, library in re.findall(r"pair (\S+) (\S+)", done.stdout)]
    plain, library = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    reporting = float(re.findall(r"reporting (\S+)", done.stdout)[0])
    means = f"a step by hand {plain * 1e3:.2f} ms, with the library {library * 1e3:.2f} ms"
    print(f"{means}: {plain / library:.4f}, of which reporting {reporting:.3%}", flush=True)
    return plain / library, reporting


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning.library", description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help=f"of the training ({STARTS})")
    given = parser.parse_args()
    python = engine.job_environment_python()
    library, reporting = map(statistics.median, zip(*(start(python) for _ in range(given.starts)), strict=True))
    return verdict(
        [
            Target("steps with the library over plain Horovod's", library, MIN_RATIO, at_least=True),
            Target("fraction of the steps that reporting them costs", reporting, MAX_REPORTING),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
