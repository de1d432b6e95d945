"""``python -m tests.bench.learning.library``: steps with the training library, beside plain Horovod's.

A small network learns on two ranks, each bound to a processor of its own: a few steps with Horovod alone and a few with
the library take turns within the same processes. Once more with the library telling of its steps. As one start of a
training differs from the next, there are several of both, and their medians count.
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
LEAST_RATIO, MOST_TELLING = 0.98, 0.01


def ratio(telling: bool, python: str) -> float:
    """Throughput with the library over that by hand, in one start."""
    env = engine.rank_env(python)
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        told.touch()
        env["SCHEDULEARN_CHECKPOINTS"] = folder
        if telling:
            env["SCHEDULEARN_METRICS"] = str(told)
        command = ["horovodrun", "--gloo", "-np", "2", "python", str(SCRIPT)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert telling == bool(told.stat().st_size), "it tells of its steps when asked, and only then"
    pairs = [(float(plain), float(library)) for plain, library in re.findall(r"pair (\S+) (\S+)", done.stdout)]
    plain, library = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    how = "telling of its steps" if telling else "with the library"
    print(f"a step by hand {plain * 1e3:.2f} ms, {how} {library * 1e3:.2f} ms: {plain / library:.4f}", flush=True)
    return plain / library


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning.library", description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help=f"of each kind ({STARTS})")
    given = parser.parse_args()
    python = engine.job_environment_python()
    silent, telling = zip(*((ratio(False, python), ratio(True, python)) for _ in range(given.starts)), strict=True)
    library, told = statistics.median(silent), statistics.median(telling)
    return verdict(
        [
            Target("steps with the library over plain Horovod's", library, LEAST_RATIO, least=True),
            Target("part of the steps that telling of them costs", 1 - told / library, MOST_TELLING),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
