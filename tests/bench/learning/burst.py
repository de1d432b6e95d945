"""``python -m tests.bench.learning.burst``: real elastic jobs under ``ffdl``, with the batch chosen and with it as asked.

A burst of jobs is submitted to a lab of four simulated GPUs: a step sleeps as long as one would compute. All else is the
product: portal, scheduler, agent, Horovod jobs that grow and shrink, the training library that changes the batch size. The
baseline is the same policy with fixed batch sizes. They alternate, each time in a new lab, which knows nothing about the
jobs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from runners.environments.preparing import cache_home
from tests.bench.rig import ENVIRONMENT
from tests.bench.targets import Target, verdict
from tests.system.product import Product, running, wait_for

SCRIPT = Path(__file__).parent / "job" / "burst.py"
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "batch as asked": {"batch": "asked", "period_seconds": 20},
    "batch chosen": {"batch": "chosen", "period_seconds": 20},
}
GPUS = 4
EPOCHS = (12, 36, 24, 48, 24, 36)
"""The epochs of the jobs in order. An epoch takes 5.4 seconds on one GPU with the batch size asked for."""
APART_SECONDS = 10.0
MAX_SECONDS = 900.0
REPEATS = 3


class BurstResult(NamedTuple):
    """The result of a burst: seconds from the submission of each job to its end, and from the first to the last end."""

    completions: tuple[float, ...]
    makespan: float
    changes: int
    """The utilisation of the GPUs of running jobs."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.completions)

    def done_within(self, seconds: float) -> int:
        """Return the number of jobs that had ended within ``seconds`` after the first submission."""
        return sum(number * APART_SECONDS + completion <= seconds for number, completion in enumerate(self.completions))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning.burst", description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--file", type=Path, default=cache_home() / "bench-burst.json", help="where rows are kept")
    parser.add_argument("--resume", action="store_true", help="go on with what the file has")
    given = parser.parse_args()
    rows: dict[str, list[BurstResult]] = {name: [] for name in POLICIES}
    if given.resume and given.file.exists():
        rows = {
            name: [BurstResult(*row) for row in known] for name, known in json.loads(given.file.read_text()).items()
        }
    for repeat in range(given.repeats):
        for name, params in POLICIES.items():
            if len(rows[name]) > repeat:
                continue
            rows[name].append(burst(params))
            given.file.write_text(json.dumps(rows))
            print(f"{name}, {repeat + 1} of {given.repeats}: {describe(rows[name][-1])}", flush=True)
    print(table(rows))
    return verdict(targets(rows))


def burst(params: Mapping[str, Any]) -> BurstResult:
    with tempfile.TemporaryDirectory(prefix="sl-burst-") as folder:
        lab = Product.make(Path(folder), "process", SCHEDULEARN_CPU_SLOTS=str(GPUS))
        with running(lab):
            lab.start_all()
            lab.wait_for_environment(ENVIRONMENT)
            answer = lab.api("PUT", "policy/", json={"policy": "ffdl", "params": dict(params)})
            assert answer.status_code == 200, answer.text
            code = lab.upload("burst", burst=SCRIPT.read_text())
            jobs = []
            for epochs in EPOCHS:
                jobs.append(submit(lab, code, epochs))
                time.sleep(APART_SECONDS)
            wait_for("the burst is over", lambda: all_ended(lab, jobs), MAX_SECONDS, every=1.0)
            return read_result(lab, jobs)


def submit(lab: Product, code: dict[str, int], epochs: int) -> int:
    return lab.submit(
        code,
        "burst.py",
        arguments=[str(epochs)],
        launcher="horovod",
        elastic=True,
        resumable=True,
        max_gpus=GPUS,
        environment=ENVIRONMENT,
        time_limit_seconds=int(MAX_SECONDS),
    )


def all_ended(lab: Product, jobs: Sequence[int]) -> bool:
    states = {job: lab.job_state(job) for job in jobs}
    for job, state in states.items():
        assert state != "FAILED", lab.why(job)
    return all(state == "SUCCEEDED" for state in states.values())


def read_result(lab: Product, jobs: Sequence[int]) -> BurstResult:
    details = [lab.get(f"jobs/{job}/") for job in jobs]
    came, ended = ([moment(job[key]) for job in details] for key in ("submitted_at", "finished_at"))
    changes = sum(len(lab.get(f"jobs/{job}/band/")["changes"]) for job in jobs)
    completions = tuple(end - start for start, end in zip(came, ended, strict=True))
    return BurstResult(completions, max(ended) - min(came), changes)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def describe(found: BurstResult) -> str:
    return f"mean completion {found.mean:.0f} s, all done after {found.makespan:.0f} s, {found.changes} changes of GPUs"


def table(rows: Mapping[str, Sequence[BurstResult]]) -> str:
    """Return medians and ranges. Jobs done are counted at half of the longest time of the baseline."""
    half = half_time(rows)
    lines = [
        f"| `ffdl` | mean completion | all done after | of {len(EPOCHS)} jobs done after {half:.0f} s | changes of GPUs |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, some in rows.items():
        cells = (
            spread([row.mean for row in some], " s"),
            spread([row.makespan for row in some], " s"),
            spread([row.done_within(half) for row in some]),
            spread([row.changes for row in some]),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def half_time(rows: Mapping[str, Sequence[BurstResult]]) -> float:
    return statistics.median(row.makespan for row in rows["batch as asked"]) / 2


def spread(values: Sequence[float], unit: str = "") -> str:
    minimum, maximum = min(values), max(values)
    return f"{statistics.median(values):.0f}{unit} ({minimum:.0f} to {maximum:.0f})"


def targets(rows: Mapping[str, Sequence[BurstResult]]) -> list[Target]:
    mean, count = (
        {name: statistics.median(one(row) for row in some) for name, some in rows.items()}
        for one in (lambda row: row.mean, lambda row: row.done_within(half_time(rows)))
    )
    ours, baseline = "batch chosen", "batch as asked"
    return [
        Target("mean completion beside the baseline's", mean[ours] / mean[baseline], 1.0),
        Target(
            "jobs done by half of the baseline's time, less its own", count[ours] - count[baseline], 0, at_least=True
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
