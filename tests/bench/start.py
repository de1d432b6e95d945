"""``python -m tests.bench.start``: submit -> a rank's first line, beside ``docker run`` of the same image and imports.

The script imports torch and Horovod, then says so. A job's line counts when the portal has stored it, the bare
container's when its log has it. Both have the same limits and take turns; the first of each does not count, because
it reads the image from the disk.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from tests.bench.rig import ENVIRONMENT, START_SECONDS, Rig, Target, rig, seconds, verdict
from tests.system.product import wait_for

RUNS = 5
MOST_OVERHEAD_SECONDS = 1.0
LINE = b"torch is here"
SCRIPT = f"import time\n\nimport horovod.torch\nimport torch\n\nprint({LINE.decode()!r}, flush=True)\ntime.sleep(1)\n"
LOOK_SECONDS = 0.1
"""At both sides: each look costs the machine something, too."""
RING = {"launcher": "horovod", "entry": "first.py"}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"launcher": "command", "entry": "python first.py"},
    "Horovod": RING,
    "elastic Horovod": {**RING, "elastic": True},
}


def ours(it: Rig, code: Mapping[str, int], spec: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds until the first line is stored, and the limits of the job's container."""
    began = time.monotonic()
    job = it.product.submit(dict(code), "", environment=ENVIRONMENT, **spec)
    wait_for("the first line", lambda: LINE in it.product.log(job), START_SECONDS, every=LOOK_SECONDS)
    took, limits = time.monotonic() - began, it.limits(job)
    it.product.wait_for_job(job, "SUCCEEDED", seconds=START_SECONDS)
    return took, limits


def bare(it: Rig, limits: Mapping[str, Any], network: str) -> float:
    began = time.monotonic()
    with it.container(["python", "-u", "-c", SCRIPT], network_mode=network, **limits) as container:
        wait_for("docker's first line", lambda: LINE in container.logs(), START_SECONDS, every=LOOK_SECONDS)
        took = time.monotonic() - began
        container.wait()
    return took


def main() -> int:
    targets = []
    with rig() as it:
        code = it.product.upload("first", first=SCRIPT)
        for kind, spec in KINDS.items():
            pairs = []
            for _ in range(1 + RUNS):
                took, limits = ours(it, code, spec)
                pairs.append((took, bare(it, limits, "none" if kind == "plain" else "bridge")))
            submitted, floor = zip(*pairs[1:], strict=True)
            over = statistics.median(submitted) - statistics.median(floor)
            print(f"submit -> first line, {kind}: {seconds(submitted)}; bare docker run: {seconds(floor)}", flush=True)
            targets.append(Target(f"overhead of a start, {kind}", over, MOST_OVERHEAD_SECONDS, "s"))
    return verdict(targets)


if __name__ == "__main__":
    sys.exit(main())
