"""Counts and minutes of a run, beside the budget of each layer."""

import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BUDGETS = Path(__file__).with_name("budget.toml")
TOLERANCE = 2.0
"""A layer that takes longer than its budget times this fails the run: the same browser tests took 3.0 and 5.3 minutes."""
SHOWN_LINES = 12
"""Of the message of a test that failed, at the end of a run."""
CORES = 2
"""Of the machine that budgets are for."""


@dataclass
class Result:
    """The outcome of one layer. ``not_run`` is the reason why nothing ran."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Without those of containers. The sum over all layers is what two cores have to do, whatever runs beside what."""
    aside: bool = False
    """Ran at a low priority beside other layers, so most of its ``seconds`` may be theirs."""
    note: str = ""
    not_run: str = ""

    @property
    def own_seconds(self) -> float:
        """What counts against the budget.

        A layer that computes all the time, or with what time others leave, would take its processor time if it were alone.
        """
        computes = self.aside or self.processor_seconds > self.seconds
        return min(self.seconds, self.processor_seconds / CORES) if computes else self.seconds


def budget_of(level: str) -> dict[str, float]:
    """Minutes per layer. Raises ValueError when one is no number."""
    found = tomllib.loads(BUDGETS.read_text())[level].items()
    if wrong := [name for name, minutes in found if not isinstance(minutes, int | float)]:
        raise ValueError(f"{BUDGETS}: [{level}] has no number of minutes for {', '.join(wrong)}")
    return {name: float(minutes) for name, minutes in found}


def count(report: Path) -> Result:
    """Numbers from pytest's JUnit file."""
    suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - written by pytest just now
    result = Result()
    for suite in suites:
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        result.failed += bad
        result.skipped += skipped
        result.passed += int(suite.get("tests", 0)) - bad - skipped
    return result


def over_budget(results: Mapping[str, Result], budget: Mapping[str, float], slowness: float = 1.0) -> list[str]:
    """Layers that took more than their budget allows on a machine that takes ``slowness`` times as long as usual."""
    allowed = {name: 60 * TOLERANCE * slowness * minutes for name, minutes in budget.items()}
    return [name for name, result in results.items() if result.own_seconds > allowed.get(name, float("inf"))]


def table(results: Mapping[str, Result], budget: Mapping[str, float], level: str, slowness: float = 1.0) -> str:
    """One line per layer, in the order given."""
    late = set(over_budget(results, budget, slowness))
    lines = ["layer      passed failed skipped minutes budget    cpu"]
    for name, result in results.items():
        allowed = f"{budget[name]:6.1f}" if name in budget else "     -"
        counts = f"{name:10} {result.passed:6} {result.failed:6} {result.skipped:7}"
        row = f"{counts} {result.seconds / 60:7.1f} {allowed} {result.processor_seconds / 60:6.1f}"
        notes = [result.note, result.not_run and f"NOT RUN: {result.not_run}"]
        notes += (
            [f"OVER BUDGET: more than twice its minutes (tests/run/budget.toml, [{level}])"] if name in late else []
        )
        lines.append("  ".join([row, *filter(None, notes)]))
    return "\n".join(lines)


def slowest(reports: Iterable[Path], number: int = 50) -> str:
    """The slowest tests of a run, from its JUnit files, as a table in Markdown."""
    tests = [
        (float(case.get("time", 0)), report.stem, f"{case.get('classname')}::{case.get('name')}")
        for report in reports
        for case in ET.parse(report).getroot().iter("testcase")  # noqa: S314 - written by pytest
    ]
    rows = [f"| {seconds:.1f} | {layer} | `{name}` |" for seconds, layer, name in sorted(tests, reverse=True)[:number]]
    return "\n".join(["| seconds | layer | test |", "|---|---|---|", *rows])


def failures(reports: Iterable[Path]) -> str:
    """The tests that failed, with the beginning of why, so that the end of a long output has what matters."""
    found = []
    for report in reports:
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - written by pytest
            for problem in (each for each in case if each.tag in ("failure", "error")):
                message = (problem.get("message") or problem.text or "").strip().splitlines()
                shown = [f"    {line[:300]}" for line in message[:SHOWN_LINES]]
                found.append("\n".join([f"{report.stem}: {case.get('classname')}::{case.get('name')}", *shown]))
    return "\n".join(found)
