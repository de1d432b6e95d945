"""``python -m tests.mutation list | run | report``: what the test suite catches (docs/development/seeded-faults.md).

``measure``: runs layers with a coverage context for each test, into one file a layer.
``run``: judges each mutant by the tests that ran its line, and writes a JSON file that a later run continues.
``report``: compares two such files; exits with 1 when a mutant that was caught before is not caught any more.
``breadth``: mutmut on one pure module, with the tests that import it.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.mutation import report
from tests.mutation.breadth import breadth
from tests.mutation.catalogue import ROOT, Mutant, Sources, by_subject, load
from tests.mutation.runner import Copy, Layer, Verdict, confirm, judge_all
from tests.mutation.selection import Covered
from tests.run.execution import PYTEST
from tests.run.layers import LAYERS, WORKERS, Level
from tests.run.packages import MissingError, provide

SECONDS = 300.0
HOME = ROOT / "var" / "mutation"
IN_PROCESS = ("pure", "portal", "runners", "databases")
"""Layers whose tests call the code in their own process, where coverage sees it; the cheapest first."""


def layer_named(name: str, coverage: Path | None = None) -> Layer:
    """Return a layer of ``make test`` as this tool runs it: without workers of its own."""
    known = {layer.name: layer for layer in LAYERS}
    if name not in known:
        raise SystemExit(f"There is no layer {name}. There are {', '.join(known)}.")
    layer = known[name]
    words = layer.arguments(Level.TEST)
    args = tuple(word for word in words if word not in layer.paths and word not in WORKERS)
    return Layer(name, layer.paths, args, {}, layer.database, Covered(coverage) if coverage else None)


def show(mutants: Sequence[Mutant]) -> int:
    """Print the list, by subject."""
    for subject, group in by_subject(mutants).items():
        print(f"{subject} ({len(group)})")
        for mutant in group:
            print(f"  {mutant.name}: {mutant.breaks}")
    return 0


def measure(folder: Path, names: Sequence[str], mutants: Sequence[Mutant]) -> int:
    """Run layers under coverage of the files that have mutants; the data is ``cov-<layer>`` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sources, failed = Sources(), 0
    files = sorted({str(sources.coverage_path(mutant).relative_to(ROOT)) for mutant in mutants})
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "coverage.ini"
        config.write_text("[run]\nbranch = False\ninclude =\n" + "".join(f"    {file}\n" for file in files))
        cov = ("--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=")
        for layer in (layer for layer in LAYERS if layer.name in names):
            try:
                provide(layer.needs)
            except MissingError as problem:
                print(f"{layer.name}: {problem}")
                failed += 1
                continue
            env = {**os.environ, "COVERAGE_FILE": str(folder.resolve() / f"cov-{layer.name}")}
            servers = [sys.executable, "-m", "tests.servers"] if layer.database else []
            times = f"--junitxml={folder.resolve() / f'cov-{layer.name}.xml'}"
            command = [*servers, *PYTEST, *layer.arguments(Level.TEST), *cov, times]
            failed += subprocess.run(command, cwd=ROOT, env=env, check=False).returncode != 0
    return int(failed > 0)


def run_all(
    mutants: Sequence[Mutant],
    layers: Sequence[Layer],
    out: Path,
    jobs: int,
    seconds: float,
    tree: Path,
    python: str,
    hints: Mapping[str, str],
) -> int:
    """Judge mutants that the file does not know yet, and confirm that their tests pass without them."""
    results = report.read(out)
    todo = [mutant for mutant in mutants if mutant.name not in results]
    done = 0

    def note(name: str, verdict: Verdict) -> None:
        nonlocal done
        done += 1
        results[name] = verdict
        report.write(out, results)
        where = f"{verdict.layer} {verdict.test}".strip()
        print(f"{done}/{len(todo)} {name}: {verdict.outcome} {where} ({verdict.seconds} s)", flush=True)

    mine = {mutant.name for mutant in mutants}
    with ExitStack() as stack:
        copy = Copy(stack, tree, python)
        judge_all(todo, copy, layers, seconds, jobs, note, hints)
        unsure = {name: each for name, each in results.items() if name in mine and each.confirmed is None}
        results |= confirm(unsure, copy, layers)
        report.write(out, results)
    print(report.summary({name: each for name, each in results.items() if name in mine}))
    return 0


def compare(mutants: Sequence[Mutant], paths: Sequence[Path], brief: bool) -> int:
    """Print the table of one or two result files; 1 when the second has lost something."""
    runs = {path.stem: report.read(path) for path in paths}
    print(report.counts(mutants, runs) if brief else report.table(mutants, runs))
    for title, results in runs.items():
        print(f"\n{title}: {report.summary(results)}")
    before, *later = runs.values()
    gone = report.lost(before, later[0]) if later else []
    if gone:
        print(f"\nNo longer caught: {', '.join(gone)}")
    return int(bool(gone))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the seeded faults")
    measuring = commands.add_parser("measure", help="run layers with a coverage context for each test")
    measuring.add_argument("--into", type=Path, default=HOME)
    measuring.add_argument("layers", nargs="*", default=list(IN_PROCESS))
    running = commands.add_parser("run", help="judge the seeded faults by the tests that run their lines")
    running.add_argument(
        "--coverage", action="append", required=True, metavar="LAYER=FILE", help="cheapest layer first"
    )
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--only", nargs="*", default=[], metavar="NAME", help="faults or subjects")
    running.add_argument("--again", nargs="*", default=[], metavar="OUTCOME", help="forget these outcomes first")
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--seconds", type=float, default=SECONDS, help="of tests for each fault")
    running.add_argument("--hints", nargs="*", type=Path, default=[], help="earlier results: their tests are run first")
    running.add_argument("--tree", type=Path, default=ROOT, help="test another working tree")
    running.add_argument("--python", default=sys.executable)
    comparing = commands.add_parser("report", help="compare two result files")
    comparing.add_argument("results", nargs="+", type=Path)
    comparing.add_argument("--brief", action="store_true", help="a row for each subject instead of each fault")
    wide = commands.add_parser("breadth", help="mutmut on one pure module")
    wide.add_argument("file", type=Path)
    wide.add_argument("tests", nargs="*", type=Path)
    asked = parser.parse_args(arguments)

    mutants = load()
    match asked.command:
        case "list":
            return show(mutants)
        case "measure":
            return measure(asked.into, asked.layers, mutants)
        case "report":
            return compare(mutants, asked.results, asked.brief)
        case "breadth":
            return breadth(asked.file, asked.tests)
    named = [each for each in mutants if not asked.only or {each.name, each.subject} & set(asked.only)]
    there = [f"{name}={HOME / f'cov-{name}'}" for name in IN_PROCESS if (HOME / f"cov-{name}").exists()]
    pairs = [each.partition("=") for each in asked.coverage or there]
    if not pairs:
        parser.error("there is no coverage yet: run `python -m tests.mutation measure` first")
    layers = [layer_named(name, Path(file)) for name, _, file in pairs]
    if asked.again:
        kept = {name: each for name, each in report.read(asked.out).items() if each.outcome not in asked.again}
        report.write(asked.out, kept)
    hints = {
        name: verdict.test
        for path in asked.hints
        for name, verdict in report.read(path).items()
        if report.caught(verdict) and "::" in verdict.test
    }
    return run_all(named, layers, asked.out, asked.jobs, asked.seconds, asked.tree.resolve(), asked.python, hints)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an ended run deletes its copies, too
    sys.exit(main())
