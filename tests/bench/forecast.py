"""The horizon and the number of futures of forecasts in a large lab, and whether they keep to their time.

``python -m tests.bench.forecast [--policy KEY] [--sizes 850x1024] [--seconds 20]`` creates a full lab with a long queue
(of which the first 500 jobs count) and computes the forecasts of one half minute under each policy, as the lab size does.
Times are processor times of this process, here and in the budget itself, so that other load does not affect them.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace

from scheduling import registry
from scheduling.decide import decide
from tests.bench.decisions import SIZES as _SIZES
from tests.bench.decisions import lab

SIZES = (_SIZES[0], (850, 1_024))
COLUMNS = ("policy", "jobs", "GPUs", "wait", "one decision s", "futures", "looked ahead h", "have a range", "took s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--policy", action="append", choices=list(registry.POLICIES))
    parser.add_argument("--sizes", default=",".join(f"{jobs}x{gpus}" for jobs, gpus in SIZES))
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.forecast import futures, services
    from scheduling.simulate import compare

    services.SIMULATION_SECONDS = given.seconds
    vars(futures)["time"] = SimpleNamespace(perf_counter=time.process_time)
    rows = []
    for size in given.sizes.split(","):
        jobs, gpus = (int(part) for part in size.split("x"))
        seen = lab(jobs, gpus, full=True)
        for key in given.policy or registry.POLICIES:
            policy = registry.build(key, {})
            one = median(clock(partial(decide, policy, seen)) for _ in range(2))
            began = time.process_time()
            ranges, notes, found = services.forecast_ranges(policy, seen)
            took = time.process_time() - began
            known = sum(low < float("inf") for low, _ in ranges.values())
            rows.append((
                key, str(jobs), str(gpus), str(len(ranges) + len(notes)), f"{one:.3f}", str(found.draws),
                f"{(found.until - seen.now) / 3600:.1f}", str(known), f"{took:.1f}",
            ))  # fmt: skip
            print(" ".join(rows[-1]), flush=True)
    print(compare.table(rows, COLUMNS))


def clock(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
