"""``make bench-training``: the costs and gains of the training library (docs/training/measurements.md).

1. its steps against those of plain Horovod, with and without reporting them;
2. how well workers' speeds are predicted;
3. real elastic jobs under ``ffdl``, with the batch chosen and with it as asked;
4. time to a target on unequal workers, mode by mode.

Each can run alone: ``python -m tests.bench.learning.library``, and so on. Exits with 1 when one misses a target.
Arguments go to the last one: ``--resume``, ``--minutes 60``, ``--plots docs/plots``.
"""

import sys

from tests.bench.__main__ import run_programs

if __name__ == "__main__":
    sys.exit(
        run_programs("tests.bench.learning", {"library": (), "predictors": (), "burst": (), "unequal": sys.argv[1:]})
    )
