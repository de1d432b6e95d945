"""``make bench``: each number beside its floor, measured in the same run; medians of several (docs/performance.md).

1. submit -> a rank's first line stored, beside a bare ``docker run`` of the same image and imports;
2. training on two ranks, beside bare ``horovodrun``;
3. a running job's GPUs changed, beside stopping it and starting it again; GPUs asked back -> free;
4. a line written -> a browser's socket, beside a bare tail of the same file;
5. one scheduling cycle at 1,000 jobs (its floor is nothing);
6. one decision of every policy at three sizes of labs, and how that grows;
7. the agent API with 500 nodes;
8. one fit of the speed model, and a supervisor at rest.

Each is a program of its own: ``python -m tests.bench.start``, and so on. Ends with 1 when any misses a target.
"""

import sys
from collections.abc import Mapping, Sequence

from tests.programs import call

PARTS = ("start", "training", "resize", "line", "cycle", "decisions", "nodes", "small")
"""In processes of their own: one sets Django up, another wants nothing else in the way."""


def main() -> int:
    return in_turn("tests.bench", dict.fromkeys(PARTS, ()))


def in_turn(package: str, parts: Mapping[str, Sequence[str]]) -> int:
    """Runs programs of a package with their arguments; which of them missed a target, as an exit code."""
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
