"""``make bench``: each figure with its floor from the same run; medians of several (docs/development/performance.md).

1. submit -> a rank's first line stored, against a bare ``docker run`` of the same image and imports;
2. training on two ranks, against bare ``horovodrun``;
3. changing the GPUs of a running job, against stopping and restarting it; GPUs asked back -> free;
4. a line written -> a browser's socket, against a bare tail of the same file;
5. one scheduling cycle at 1,000 jobs (its floor is nothing);
6. one decision of every policy at three sizes of labs, and how that grows;
7. the agent API with 500 nodes, and the list of 100,000 jobs;
8. one fit of the speed model, and an idle supervisor;
9. the home page of a large lab;
10. a thousand open logs of a job that writes 200 lines a second.

Each can run alone: ``python -m tests.bench.start``, and so on. Exits with 1 when one misses a target.
"""

import sys
from collections.abc import Mapping, Sequence

from tests.programs import call

PARTS = ("start", "training", "resize", "line", "cycle", "decisions", "nodes", "lists", "small", "home", "viewers")
"""Each runs in a separate process: one sets up Django, another must not be disturbed."""


def main() -> int:
    return run_programs("tests.bench", dict.fromkeys(PARTS, ()))


def run_programs(package: str, parts: Mapping[str, Sequence[str]]) -> int:
    """Run the programs of a package with their arguments; return 1 when one missed a target, as an exit code."""
    missed = []
    for part, arguments in parts.items():
        print(f"\n=== {part} ===", flush=True)
        if call([sys.executable, "-m", f"{package}.{part}", *arguments]):
            missed.append(part)
    if missed:
        print(f"\nTargets were missed, or could not be measured, in: {', '.join(missed)}.")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
