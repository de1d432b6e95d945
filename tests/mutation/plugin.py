"""A pytest plug-in: runs the tests that a file lists, in that order, and reports the first that fails as JSON."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS, REPORT = "MUTATION_TESTS", "MUTATION_REPORT"
"""Environment variables: files to read and to write. Without the first, all tests that pytest collects are run."""


class Witness:
    """Notes which tests ran and which failed, after each, so that a killed run leaves its report as well."""

    def __init__(self, report: Path) -> None:
        self.report = report
        self.found: dict[str, Any] = {"ran": 0, "failed": [], "broken": []}
        self._write()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        # Before all other plug-ins: pytest-django's order, where tests that empty tables come last, is kept above ours.
        if TESTS in os.environ:
            place = {name: number for number, name in enumerate(Path(os.environ[TESTS]).read_text().splitlines())}
            items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
        yield

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found["broken"].append([report.nodeid, str(report.longrepr)[-300:]])
            self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found["ran"] += report.when == "call"
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(getattr(crash, "message", report.longrepr))
            self.found["failed"].append([report.nodeid, message.splitlines()[0][:200] if message else ""])
        if report.failed or report.when == "teardown":
            self._write()

    def _write(self) -> None:
        self.report.write_text(json.dumps(self.found))


def pytest_configure(config: pytest.Config) -> None:
    if REPORT in os.environ:
        config.pluginmanager.register(Witness(Path(os.environ[REPORT])), "mutation-witness")
