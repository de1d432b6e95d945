"""A day before a deadline under every policy: ``loads.deadline_day`` on 16 nodes with 4 GPUs.

``python -m tests.bench.deadline [--policies fifo fair_share] [--kinds few mixed] [--seeds 0 1]`` prints a table for
each kind of day, the shortest waits of short jobs first. No policy knows anything about the jobs. Exits with 1 when the
default policy misses a target.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from scheduling import registry
from scheduling.simulate import JobResult, Options, accounts_of, compare, simulate
from scheduling.simulate.loads import deadline_day
from tests.bench.targets import Target, verdict

CLUSTER = "16x4"
KINDS: dict[str, dict[str, Any]] = {
    "few": {},
    "few-rigid": {"elastic": False},
    "mixed": {"trainers": 0},
    "mixed-rigid": {"trainers": 0, "elastic": False},
}
"""The owners of the large jobs (a few users, or all), and whether they can be resized."""
SLOW = ("ones",)
"""Policies that search at each decision, which takes an hour for this day."""
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fair_share", {"passed_over_hours": 0.0, "yields_after_minutes": 0.0}),
    ("ffdl", {"waiting_bonus": 0.0}),
    ("fifo", {"strict": False}),
)
"""Parameters to run in addition to the defaults."""
COLUMNS = (
    "policy", "knows", "short: wait p50 s", "p95", "large: wait p50 s", "max", "last start s", "mean s", "useful",
    "preemptions",
)  # fmt: skip
SHORT_WAIT_SECONDS = 60.0
PATIENCE_SECONDS = 24 * 3600.0
"""The patience of a lab with default settings."""
LARGE_WAIT_HOURS = 24.0 + 3.0
"""That patience, and the longest of the jobs: the large ones ask for twice as much as there is in these hours."""


def waits(jobs: Sequence[JobResult], kind: str) -> list[float]:
    return sorted(job.waiting for job in jobs if job.id.startswith(kind) and job.waiting is not None)


def measure(key: str, params: dict[str, Any], kind: str, seed: int) -> tuple[list[str], float, float]:
    """Return a row of the table, the median wait of the short jobs, and the longest wait of a large one."""
    submissions = deadline_day(seed=seed, **KINDS[kind])
    result = simulate(
        registry.build(key, params), compare.parse_cluster(CLUSTER), submissions, accounts=accounts_of(submissions),
        options=Options(patience_seconds=PATIENCE_SECONDS),
    )  # fmt: skip
    summary = result.summary()
    short, large = waits(result.jobs, "short"), waits(result.jobs, "large")
    last = max(job.first_started_at or 0.0 for job in result.jobs if job.id.startswith("large"))
    name = " ".join([key, *(f"{param}={value}" for param, value in params.items())])
    row = [
        name, "nothing", f"{statistics.median(short):,.0f}", f"{short[int(0.95 * len(short))]:,.0f}",
        f"{statistics.median(large):,.0f}", f"{large[-1]:,.0f}", f"{last:,.0f}", f"{summary.turnaround.mean:,.0f}",
        f"{summary.useful_utilisation:.0%}", f"{summary.preemptions}",
    ]  # fmt: skip
    return row, statistics.median(short), large[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A day before a deadline under every policy.")
    known = [key for key in registry.POLICIES if key not in SLOW]
    parser.add_argument("--policies", nargs="*", default=known, choices=list(registry.POLICIES))
    parser.add_argument("--kinds", nargs="*", default=["few-rigid"], choices=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    given = parser.parse_args(arguments)
    targets: list[Target] = []
    cases: list[tuple[str, dict[str, Any]]] = [(key, {}) for key in given.policies] + [
        case for case in VARIANTS if case[0] in given.policies
    ]
    for kind, seed in itertools.product(given.kinds, given.seeds):
        rows = []
        for key, params in cases:
            row, short, large = measure(key, params, kind, seed)
            print(f"{kind}, seed {seed}: {row[0]}", file=sys.stderr)
            rows.append((short, row))
            if key == registry.DEFAULT and not params:
                targets += [
                    Target(f"default, {kind}, seed {seed}: median wait of short jobs", short, SHORT_WAIT_SECONDS, "s"),
                    Target(
                        f"default, {kind}, seed {seed}: longest wait of a large job",
                        large / 3600,
                        LARGE_WAIT_HOURS,
                        "h",
                    ),
                ]
        print(f"\n{kind}, seed {seed}\n")
        print(compare.table([row for _, row in sorted(rows, key=lambda each: each[0])], COLUMNS))
    return verdict(targets)


if __name__ == "__main__":
    sys.exit(main())
