"""``python -m tests.bench.learning.predictors``: how far predictions of a worker's speed are off, reported as it is.

Made-up loads of three kinds, from several seeds, and errors one iteration ahead: the mean of the absolute difference of
logarithms, which is about a part of the speed. What is predicted before a network has seen enough does not count.
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
