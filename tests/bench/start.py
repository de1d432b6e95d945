"""``python -m tests.bench.start``: submit -> a rank's first line, against ``docker run`` of the same image and imports.

The script imports torch and Horovod, then prints a line. The line of a job counts when the portal has stored it, that of the
bare container when the engine has it; both record the time, so that no polling is necessary. Both have the same limits and
alternate; the first of each does not count, because it reads the image from the disk.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tests.bench.rig import ENVIRONMENT, START_SECONDS, Rig, rig, seconds
from tests.bench.targets import Target, verdict
from tests.system.product import wait_for

RUNS = 5
MAX_OVERHEAD_SECONDS = 1.0
LINE = b"torch is here"
SCRIPT = f"import time\n\nimport horovod.torch\nimport torch\n\nprint({LINE.decode()!r}, flush=True)\ntime.sleep(1)\n"
LOOK_SECONDS = 0.5
DISTRIBUTED = {"launcher": "horovod", "entry": "first.py"}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"launcher": "command", "entry": "python first.py"},
    "Horovod": DISTRIBUTED,
    "elastic Horovod": {**DISTRIBUTED, "elastic": True},
}
STORED = "line stored"


def ours(it: Rig, code: Mapping[str, int], spec: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the times of events, in seconds since the submission, and the limits of the container of the job."""
    began = time.time()
    job = it.product.submit(dict(code), "", environment=ENVIRONMENT, **spec)
    limits = wait_for("its container", lambda: it.limits(job), START_SECONDS, every=LOOK_SECONDS)
    wait_for("its end", lambda: it.product.job_state(job) == "SUCCEEDED", START_SECONDS, every=2 * LOOK_SECONDS)
    moments = {**it.rows("print_starts")[str(job)], **it.engine_moments(job)}
    return {what: at - began for what, at in sorted(moments.items(), key=lambda item: item[1])}, limits


def bare(it: Rig, limits: Mapping[str, Any], network: str) -> float:
    began = time.time()
    with it.container(["python", "-u", "-c", SCRIPT], network_mode=network, **limits) as container:
        container.wait()
        stamp, _, line = container.logs(timestamps=True).partition(b" ")
    assert line.strip() == LINE, line
    return datetime.fromisoformat(stamp.decode()).timestamp() - began


def timeline(starts: Sequence[Mapping[str, float]]) -> str:
    """Return the medians of the times of events; containers by their index (0 is that of the driver, if any)."""
    usual = {what: statistics.median(start[what] for start in starts) for what in starts[0]}
    return ", ".join(f"{what} {at:.2f}" for what, at in sorted(usual.items(), key=lambda item: item[1]))


def main() -> int:
    targets = []
    with rig() as it:
        code = it.product.upload("first", first=SCRIPT)
        for kind in sys.argv[1:] or KINDS:
            pairs = []
            for _ in range(1 + RUNS):
                start, limits = ours(it, code, KINDS[kind])
                pairs.append((start, bare(it, limits, "none" if kind == "plain" else "bridge")))
            starts, floor = zip(*pairs[1:], strict=True)
            submitted = [start[STORED] for start in starts]
            over = statistics.median(submitted) - statistics.median(floor)
            print(f"submit -> first line, {kind}: {seconds(submitted)}; bare docker run: {seconds(floor)}", flush=True)
            print(f"  after so many seconds: {timeline(starts)}", flush=True)
            targets.append(Target(f"overhead of a start, {kind}", over, MAX_OVERHEAD_SECONDS, "s"))
    return verdict(targets)


if __name__ == "__main__":
    sys.exit(main())
