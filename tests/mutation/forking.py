"""A pytest plug-in that judges many mutants in one session: a fork for each, after everything was imported once.

To start Python and Django, to collect tests and to make a database takes ten seconds; the tests that notice a mutant
take one. The parent does the former once and forks for each mutant; the child puts the mutant into its memory
(``swapping``) and runs the tests that ran its line, until the first one fails.
"""

import json
import os
import signal
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connections

from tests.mutation.swapping import CannotSwapError, swap

PLAN, RESULTS, JOBS = "MUTATION_PLAN", "MUTATION_RESULTS", "MUTATION_JOBS"
"""Environment variables: the file to read, ``Task`` objects as JSON, the one to which a line for each is added, and how many
children there may be at once."""
POLL_SECONDS = 0.02
HANG_SECONDS = 150.0
"""A test that has not ended after this time, which is longer than pytest allows it, hangs: that is noticed, too."""


@dataclass(frozen=True, slots=True)
class Task:
    """A mutant to judge by these tests, in this order."""

    name: str
    path: str
    """Of the changed file, relative to the tree."""
    source: str
    tests: tuple[str, ...]
    seconds: float


class Nothing:
    """What pytest is told to be the next test when only the session's fixtures are to stay."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session

    def listchain(self) -> list[Any]:
        return [self.session]


class Judge:
    """Takes the place of pytest's loop over all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.jobs = int(os.environ[JOBS])
        self.results = Path(os.environ[RESULTS])
        self.tasks = [Task(**entry) for entry in json.loads(Path(os.environ[PLAN]).read_text())]
        self.failed: list[tuple[str, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._warm_up(session)
        running: dict[int, tuple[Task, float]] = {}
        for task in self.tasks:
            while len(running) >= self.jobs:
                self._reap(running)
            running[self._fork(session, items, task)] = task, time.monotonic()
        while running:
            self._reap(running)
        return True

    def _warm_up(self, session: pytest.Session) -> None:
        """Run one test that needs the database, so that it is made before the first fork."""
        plain = (item for item in session.items if "asyncio" not in item.keywords)
        for item in plain:
            if item.get_closest_marker("django_db"):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=Nothing(session))
                return

    def _fork(self, session: pytest.Session, items: dict[str, pytest.Item], task: Task) -> int:
        connections.close_all()  # a connection to PostgreSQL serves one process; SQLite's, in memory, stays
        child = os.fork()
        if child:
            return child
        try:
            os.setpgid(0, 0)
            self._judge(session, items, task)
        except BaseException:
            self._note(task, "undecided", 0, time.monotonic(), message=traceback.format_exc()[-1000:])
        finally:
            os._exit(0)

    def _judge(self, session: pytest.Session, items: dict[str, pytest.Item], task: Task) -> None:
        """In the child: run the tests until one fails, and note which."""
        began = time.monotonic()
        try:
            swap(Path.cwd() / task.path, task.source)
        except CannotSwapError as error:
            self._note(task, "cannot swap", 0, began, message=str(error))
            return
        _own_home()
        chosen = sorted(_chosen(items, task.tests), key=_empties_tables)
        self.failed.clear()
        following: Sequence[Any] = [*chosen[1:], Nothing(session)]
        for number, (item, after) in enumerate(zip(chosen, following, strict=True), start=1):
            self._current(os.getpid()).write_text(json.dumps([item.nodeid, time.monotonic()]))
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                test, message = self.failed[0]
                self._note(task, "caught", number, began, test, message)
                return
        self._note(task, "survived", len(chosen), began)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(getattr(crash, "message", report.longrepr)).strip()
            self.failed.append((report.nodeid, message.partition("\n")[0][:200]))

    def _running(self, child: int) -> tuple[str, float]:
        try:
            test, since = json.loads(self._current(child).read_text())
        except (FileNotFoundError, ValueError):
            return "", time.monotonic()
        return test, since

    def _current(self, child: int) -> Path:
        """A file with the test that a child runs now, and since when."""
        return self.results.with_name(f"current-{child}")

    def _reap(self, running: dict[int, tuple[Task, float]]) -> None:
        """Wait for any child; one whose time is up is killed with what it started."""
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in running:
            task, began = running.pop(child)
            if status:
                self._note(task, "undecided", 0, began, message=f"its process ended with status {status}")
            _kill(child)
            return
        now = time.monotonic()
        for child, (task, began) in list(running.items()):
            if now - began > task.seconds:
                _kill(child)
                os.waitpid(child, 0)
                del running[child]
                test, since = self._running(child)
                if now - since > HANG_SECONDS:
                    self._note(task, "caught", 0, began, test, "It did not end.")
                else:
                    self._note(task, "undecided", 0, began, message="its time was up")
        time.sleep(POLL_SECONDS)

    def _note(self, task: Task, outcome: str, ran: int, began: float, test: str = "", message: str = "") -> None:
        seconds = round(time.monotonic() - began, 1)
        entry = {
            "name": task.name,
            "outcome": outcome,
            "test": test,
            "message": message,
            "ran": ran,
            "seconds": seconds,
        }
        with self.results.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _chosen(items: dict[str, pytest.Item], tests: Sequence[str]) -> list[pytest.Item]:
    """The tests with these ids. Of one whose cases have other names now, as one was added, all cases are taken."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for name, item in items.items():
        cases[name.partition("[")[0]].append(item)
    found = (item for test in tests for item in ([items[test]] if test in items else cases[test.partition("[")[0]]))
    return list(dict.fromkeys(found))


def _empties_tables(item: pytest.Item) -> bool:
    """Such tests come last, as pytest-django has it: they also delete what migrations have put into tables."""
    marker = item.get_closest_marker("django_db")
    fixtures = getattr(item, "fixturenames", ())
    return (
        bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in fixtures or "live_server" in fixtures
    )


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _own_home() -> None:
    """Give the child files of its own, as tests.conftest gives them to each of xdist's workers."""
    settings.HOME = Path(tempfile.mkdtemp(prefix="fork-", dir=settings.HOME))
    os.environ["SCHEDULEARN_HOME"] = str(settings.HOME)


def pytest_configure(config: pytest.Config) -> None:
    if PLAN in os.environ:
        config.pluginmanager.register(Judge(config), "mutation-judge")
