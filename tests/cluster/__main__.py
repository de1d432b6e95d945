"""The fault matrix: ``python -m tests.cluster [FAULT ...]`` (make test-faults FAULTS="...").

Carries faults out on a lab of three machines until all are done or the time is up, prints a row for each as soon as it
is done, with every complaint of the judge and every bound that was missed, and ends with 1 when there was one. Rows are
kept in a file: ``--resume`` goes on with the same seed where an interrupted run stopped. ``--write`` puts the table into
docs/development/fault-tests.md.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from runners.environments.preparing import cache_home
from tests.cluster import kept
from tests.cluster.faults import FAULTS, away
from tests.cluster.matrix import Row, carry_out, stage
from tests.cluster.scene import Fault
from tests.run.packages import MissingError, Need, provide

MACHINES = 3
MINUTES = 180
"""What all of it needs on two cores, with some to spare."""
JOBS = 500
"""At least, for the whole matrix."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "development" / "fault-tests.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NEEDS = frozenset({Need.SERVERS, Need.ENGINE, Need.NAMESPACES})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("faults", nargs="*", help="their numbers, like F2; all when none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--times", type=int, default=0, help="injections of each, instead of its own number")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no fault is begun that would end after so long")
    parser.add_argument("--away", type=float, default=10, help="minutes for which the portal is away")
    parser.add_argument("--file", type=Path, help="where rows are kept, instead of the cache folder")
    parser.add_argument("--resume", action="store_true", help="go on with what the file has")
    parser.add_argument("--write", action="store_true", help="put the table into docs/development/fault-tests.md")
    given = parser.parse_args()
    faults = [away(given.away) if fault.key == "away" else fault for fault in FAULTS]
    wanted = [fault for fault in faults if not given.faults or fault.key in given.faults]
    if unknown := set(given.faults) - {fault.key for fault in faults}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    file = given.file or cache_home() / f"{'-'.join(['test-faults', *sorted(given.faults)])}.json"
    if given.resume and not file.exists():
        parser.error(f"nothing was kept in {file}")
    try:
        provide(NEEDS)
    except MissingError as problem:
        parser.error(str(problem))
    seed, rows = kept.load(file, wanted) if given.resume else (given.seed, [])
    print(f"seed {seed}: repeat with --seed {seed}, go on with --resume (rows are kept in {file})", flush=True)
    left = play(wanted, rows, seed, given.times, given.minutes, file)
    report(rows, left, whole=not given.faults)
    if given.write:
        write(rows, seed)
    return 1 if left or any(row.complaints or row.slow for row in rows) else 0


def play(wanted: list[Fault], rows: list[Row], seed: int, times: int, minutes: float, file: Path) -> list[Fault]:
    """Adds a row for each fault that has none yet; those for which there was no time."""
    done = {row.fault.key for row in rows}
    left = [fault for fault in wanted if fault.key not in done]
    if not left:
        return []
    until = time.monotonic() + minutes * 60
    with stage(MACHINES, sorted({"python", *(fault.environment for fault in left)})) as on:
        for fault in list(left):
            count = times or fault.times
            print(f"about {time_for(left, times, rows) / 60:.0f} minutes left", flush=True)
            if time.monotonic() + time_for([fault], times, rows) > until:
                continue
            # By its place among all faults, so that one alone is carried out as it was with the others.
            row = carry_out(on, fault, seed * 1000 + [each.key for each in FAULTS].index(fault.key) * 10, count)
            print(row.text(), flush=True)
            for complaint in [*row.complaints, *row.slow]:
                print(f"      {complaint}", flush=True)
            rows.append(row)
            left.remove(fault)
            kept.save(file, seed, rows)
    return left


def time_for(faults: list[Fault], times: int, rows: list[Row]) -> float:
    """Seconds, about. What one machine takes for an injection more than was supposed, it takes for others too."""
    supposed = sum(kept.seconds_of(row.fault, row.injections) for row in rows if row.injections)
    pace = sum(row.seconds for row in rows if row.injections) / supposed if supposed else 1.0
    return pace * sum(kept.seconds_of(fault, times or fault.times) for fault in faults)


def report(rows: list[Row], left: list[Fault], whole: bool) -> None:
    jobs, injections = sum(row.jobs for row in rows), sum(row.injections for row in rows)
    complaints, late = sum(len(row.complaints) for row in rows), sum(len(row.slow) for row in rows)
    print(f"\n{len(rows)} faults, {injections} injections, {jobs} jobs: {complaints} complaints, {late} late")
    if left:
        print(f"not carried out, for lack of time: {', '.join(fault.key for fault in left)}")
    elif whole and jobs < JOBS:
        print(f"fewer than {JOBS} jobs: too few for a conclusion")


def write(rows: list[Row], seed: int) -> None:
    jobs, injections = sum(row.jobs for row in rows), sum(row.injections for row in rows)
    starved = max((row.starved for row in rows), default=0.0)
    hours = sum(row.seconds for row in rows) / 3600
    table = [
        f"Seed {seed}: {len(rows)} faults, {injections} injections, {jobs} jobs in {hours:.1f} hours; starved for at most",
        f"{starved:.1f} s (see below).",
        "",
        "| # | fault | injections | jobs | run again | outcome |",
        "|---|---|---|---|---|---|",
    ]
    order = [fault.key for fault in FAULTS]
    for row in sorted(rows, key=lambda row: order.index(row.fault.key)):
        outcome = "as it must be" if not row.complaints else "; ".join(row.complaints[:3])
        late = f" ({'; '.join(row.slow[:3])})" if row.slow else ""
        cells = (row.fault.key, row.fault.title, row.injections, row.jobs, row.restarted, outcome + late)
        table.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}" + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
