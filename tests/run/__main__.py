"""The command line of ``python -m tests.run``."""

import argparse
import os
import sys
import time
from collections.abc import Sequence

import tests.run as package
from tests.run.execution import REPORTS, Run, announce
from tests.run.layers import LAYERS, Layer, Level, layers_of, named
from tests.run.pace import measured_pace
from tests.run.report import budget_of, failures, over_budget, slowest, table

NAMES = [layer.name for layer in LAYERS]


def parser() -> argparse.ArgumentParser:
    parsing = argparse.ArgumentParser(
        prog="python -m tests.run", description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = [*Level, "lint", *NAMES, "slowest"]
    parsing.add_argument("what", nargs="+", choices=[str(choice) for choice in choices], metavar="WHAT")
    parsing.add_argument("--from", dest="first", choices=NAMES, help="begin at this layer")
    parsing.add_argument("--level", type=Level, choices=list(Level), default=None, help="for single layers")
    parsing.add_argument("--seed", type=int, help="of the property tests with new examples")
    return parsing


def chosen(what: Sequence[str], first: str | None, level: Level | None) -> tuple[list[Layer], bool, Level]:
    """The layers to run, whether lint runs, and at which level."""
    levels = [Level(word) for word in what if word in list(Level)]
    if levels:
        layers = layers_of(levels[-1])
        with_lint = True
    else:
        layers = [named(word) for word in what if word != "lint"]
        with_lint = "lint" in what
    if first is not None:
        names = [layer.name for layer in layers]
        if first not in names:
            raise ValueError(f"{first} is not part of this run; its layers are {', '.join(names)}")
        layers, with_lint = layers[names.index(first) :], False
    return layers, with_lint, level or (levels[-1] if levels else Level.ALL)


def main(words: Sequence[str]) -> int:
    """0 when everything passed, for ``test`` and ``all`` within the budget of each layer."""
    parsing = parser()
    given = parsing.parse_args(words)
    if "slowest" in given.what:
        if len(given.what) > 1:
            parsing.error("slowest stands alone: it reads the reports of the last run")
        print(slowest(REPORTS.glob("*.xml")))
        return 0
    try:
        layers, with_lint, level = chosen(given.what, given.first, given.level)
        budget = budget_of(level)
    except ValueError as error:
        parsing.error(str(error))
    may_install = os.environ.get("INSTALL", "yes").lower() not in ("no", "0", "false")
    announce(layers, may_install)
    started, run = time.monotonic(), Run(level, may_install, given.seed)
    if layers and level == Level.ALL:
        print(f"Property tests draw new examples; --seed {run.seed} repeats them.", flush=True)
    with measured_pace() as pace:
        results = run.carry_out(layers, with_lint)
    reports = (REPORTS / f"{name}.xml" for name, result in results.items() if result.failed)
    if failed_tests := failures(report for report in reports if report.exists()):
        print(f"\nFailed:\n{failed_tests}")
    print(f"\n{table(results, budget, level, pace.slowness)}\n{(time.monotonic() - started) / 60:.1f} minutes in all")
    print(f"The same work takes this machine {pace.slowness:.1f} times as long as the one that the budgets are for.")
    left_out = [name for name, result in results.items() if result.not_run]
    if left_out:
        print(f"Left out: {', '.join(left_out)}")
    must_run = [name for name in left_out if name != "gpu"] if may_install or os.environ.get("CI") else []
    if must_run:
        print(f"Not run, which is a failure without INSTALL=no: {', '.join(must_run)}")
    failed = sum(result.failed for result in results.values()) + len(must_run)
    passed = sum(result.passed for result in results.values())
    skipped = sum(result.skipped for result in results.values())
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    late = over_budget(results, budget, pace.slowness) if {*given.what} & {Level.TEST, Level.ALL} else []
    if late:
        print(f"Too slow: {', '.join(late)}. Make the tests faster.")
    return 1 if failed or late else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
