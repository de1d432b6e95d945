"""Which tests to run for a changed line: those that ran it before, the most specific ones first."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from coverage import CoverageData

Lines = dict[int, set[str]]


class Covered:
    """The tests of one layer by the lines that they ran, from coverage data with a context for each test.

    Such data comes from ``pytest --cov --cov-context=test``, whose contexts are ``tests/a/test_b.py::test_c|run``.
    """

    def __init__(self, data_file: Path) -> None:
        data = CoverageData(basename=str(data_file))
        data.read()
        self._lines: dict[str, Lines] = {}
        self._all: Counter[str] = Counter()
        """How many lines of all measured files each test ran."""
        for path in data.measured_files():
            lines = {
                number: {context.partition("|")[0] for context in contexts if context}
                for number, contexts in data.contexts_by_lineno(path).items()
            }
            self._lines[path] = lines
            self._all.update(test for tests in lines.values() for test in tests)

    def tests(self, path: str, lines: Iterable[int]) -> list[str]:
        """Return the ids of the tests that ran any of the lines of a file, whose path is relative to the tree.

        First come those in the test file that is named after the module, then those that spend the largest part of
        what they run on this file.
        """
        in_file = self._of(path)
        found = {test for line in lines for test in in_file.get(line, ())}
        here: Counter[str] = Counter(test for tests in in_file.values() for test in tests)
        module = Path(path).stem

        def generality(test: str) -> tuple[bool, float, int, str]:
            return (
                module not in Path(test.partition("::")[0]).stem,
                -here[test] / self._all[test],
                self._all[test],
                test,
            )

        return sorted(found, key=generality)

    def _of(self, path: str) -> Lines:
        merged: Lines = defaultdict(set)
        for measured, lines in self._lines.items():
            if measured == path or measured.endswith(f"/{path}"):
                for number, tests in lines.items():
                    merged[number] |= tests
        return merged
