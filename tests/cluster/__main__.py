"""The fault matrix: ``python -m tests.cluster [FAULT ...] [--seed N] [--times N] [--minutes N] [--write]`` (make test-faults).

Carries faults out on a lab of three machines until all are done or the time is up, prints a row for each and every
complaint of the judge, and ends with 1 when there was one. ``--write`` puts the table into docs/reliability.md.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from tests.cluster.faults import FAULTS
from tests.cluster.matrix import Row, carry_out, stage
from tests.cluster.scene import Fault

MACHINES = 3
MINUTES = 60
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("faults", nargs="*", help="their numbers, like F2; all when none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--times", type=int, default=0, help="injections of each, instead of its own number")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no fault is begun after so long")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    given = parser.parse_args()
    wanted = [fault for fault in FAULTS if not given.faults or fault.key in given.faults]
    if unknown := set(given.faults) - {fault.key for fault in FAULTS}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    print(f"seed {given.seed}: repeat with --seed {given.seed}", flush=True)
    rows, left = play(wanted, given.seed, given.times, given.minutes)
    report(rows, left)
    if given.write:
        write(rows, given.seed)
    return 1 if left or any(row.complaints for row in rows) else 0


def play(wanted: list[Fault], seed: int, times: int, minutes: float) -> tuple[list[Row], list[Fault]]:
    """Rows of those that were carried out, and those for which there was no time."""
    rows: list[Row] = []
    until = time.monotonic() + minutes * 60
    with stage(MACHINES) as on:
        for number, fault in enumerate(wanted):
            if time.monotonic() > until:
                return rows, wanted[number:]
            rows.append(carry_out(on, fault, seed * 1000 + number * 10, times or fault.times))
            print(rows[-1].text(), flush=True)
            for said in [*rows[-1].complaints, *rows[-1].slow]:
                print(f"      {said}", flush=True)
    return rows, []


def report(rows: list[Row], left: list[Fault]) -> None:
    jobs, injections = sum(row.jobs for row in rows), sum(row.injections for row in rows)
    complaints, late = sum(len(row.complaints) for row in rows), sum(len(row.slow) for row in rows)
    print(f"\n{len(rows)} faults, {injections} injections, {jobs} jobs: {complaints} complaints, {late} late")
    if left:
        print(f"not carried out for want of time: {', '.join(fault.key for fault in left)}")


def write(rows: list[Row], seed: int) -> None:
    table = [
        f"Seed {seed}.",
        "",
        "| # | fault | injections | jobs | run again | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        outcome = "as it must be" if not row.complaints else "; ".join(row.complaints[:3])
        late = f" ({len(row.slow)} later than the bound)" if row.slow else ""
        cells = (row.fault.key, row.fault.title, row.injections, row.jobs, row.restarted, outcome + late)
        table.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}" + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
