"""``python -m tests.bench.learning.library``: steps with the training library, beside plain Horovod's.

A small network learns on two ranks: with Horovod alone, with the library, and with the library while it tells of its
steps. The three take turns; what is compared is the median of many short stretches in each of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import engine
from tests.bench.targets import Target, verdict

SCRIPT = Path(__file__).parent / "job" / "steps.py"
SIDES = ("plain", "library", "telling")
RUNS, RUN_SECONDS = 7, 240
LEAST_RATIO, MOST_TELLING = 0.98, 0.01


def steps_per_second(side: str, python: str) -> float:
    env = engine.rank_env(python)
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        told.touch()
        env["SCHEDULEARN_CHECKPOINTS"] = folder
        if side == "telling":
            env["SCHEDULEARN_METRICS"] = str(told)
        command = ["horovodrun", "--gloo", "-np", "2", "python", str(SCRIPT), "plain" if side == "plain" else "library"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (side == "telling") == bool(told.stat().st_size), "it tells of its steps when asked, and only then"
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    return float(json.loads(line[line.index("{") :])["steps_per_second"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning.library", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each side ({RUNS})")
    given = parser.parse_args()
    python = engine.job_environment_python()
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(given.runs):
        for side in SIDES:
            found[side].append(steps_per_second(side, python))
        print(", ".join(f"{side}: {found[side][-1]:.1f} steps/s" for side in SIDES), flush=True)
    ratio = statistics.median(one / other for one, other in zip(found["library"], found["plain"], strict=True))
    telling = 1 - statistics.median(one / other for one, other in zip(found["telling"], found["library"], strict=True))
    return verdict(
        [
            Target("steps with the library over plain Horovod's", ratio, LEAST_RATIO, least=True),
            Target("part of the steps that telling of them costs", telling, MOST_TELLING),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
