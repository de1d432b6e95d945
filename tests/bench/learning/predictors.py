"""``python -m tests.bench.learning.predictors``: the errors of predictions of the speed of a worker; no target.

Three kinds of synthetic load, from several seeds, and errors one iteration ahead: the mean of the absolute difference of
logarithms, which is about a fraction of the speed. Predictions before a network has seen enough do not count.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests import engine

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "runners" / "training"), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).parent / "job" / "errors.py"
    return subprocess.run([engine.job_environment_python(), str(script)], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
