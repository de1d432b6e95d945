"""Which tests to run for a changed line: those that ran it before, the most specific ones first."""

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from coverage import CoverageData

Lines = dict[int, set[str]]
SLOW_SECONDS = 5.0


class Covered:
    """The tests of one layer by the lines that they ran, from coverage data with a context for each test.

    Such data comes from ``pytest --cov --cov-context=test``, whose contexts are ``tests/a/test_b.py::test_c|run``. Next
    to it may be the JUnit file of that run, by its name and ``.xml``, which states how long each test took.
    """

    def __init__(self, data_file: Path) -> None:
        data = CoverageData(basename=str(data_file))
        data.read()
        self._lines: dict[str, Lines] = {}
        self._all: Counter[str] = Counter()
        """How many lines of all measured files each test ran."""
        report = data_file.with_name(f"{data_file.name}.xml")
        self._slow = slow_tests(report) if report.exists() else set()
        for path in data.measured_files():
            lines = {
                number: {context.partition("|")[0] for context in contexts if context}
                for number, contexts in data.contexts_by_lineno(path).items()
            }
            self._lines[path] = lines
            self._all.update(test for tests in lines.values() for test in tests)

    def tests(self, path: str, lines: Iterable[int]) -> list[str]:
        """Return the ids of the tests that ran any of the lines of a file, whose path is relative to the tree.

        First come those in the test file that is named after the module, and the ones that spend the largest part of what
        they run on this file; slow ones come last.
        """
        in_file = self._of(path)
        found = {test for line in lines for test in in_file.get(line, ())}
        module = Path(path).stem

        here = Counter(test for tests in in_file.values() for test in tests)

        def generality(test: str) -> tuple[bool, bool, float, str]:
            named = module in Path(test.partition("::")[0]).stem
            return test in self._slow, not named, -here[test] / self._all[test], test

        return sorted(found, key=generality)

    def _of(self, path: str) -> Lines:
        merged: Lines = defaultdict(set)
        for measured, lines in self._lines.items():
            if measured == path or measured.endswith(f"/{path}"):
                for number, tests in lines.items():
                    merged[number] |= tests
        return merged


def slow_tests(report: Path) -> set[str]:
    """Return the ids of the tests that took long, from a JUnit file."""
    found = set()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - written by our own pytest
        if float(case.get("time", 0)) >= SLOW_SECONDS:
            *folders, last = case.get("classname", "").split(".")
            module, classes = ([*folders, last], []) if last.startswith("test_") else (folders, [last])
            found.add("::".join([f"{'/'.join(module)}.py", *classes, case.get("name", "")]))
    return found
