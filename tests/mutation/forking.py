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
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    suspect: str = ""
    """A control: nothing is changed, and the question is whether this test, the last one, fails all the same."""
    tests_left: tuple[str, ...] = ()
    """Of a control: the tests that the mutant is judged by, should it be so."""


class Nothing:
    """The next test that pytest is given when only the session's fixtures are to stay."""

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
        self._caught: dict[str, dict[str, Any]] = {}
        """Results that wait for their control, by mutant."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._warm_up(session)
        waiting = deque(self.tasks)
        running: dict[int, tuple[Task, float]] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                task = waiting.popleft()
                running[self._fork(session, items, task)] = task, time.monotonic()
            for task, result in self._ended(running):
                waiting.extendleft(self._after(task, result))
        return True

    def _after(self, task: Task, result: dict[str, Any]) -> list[Task]:
        """Note a result that is sure. What a test caught is tried again without the mutant, in the same order."""
        original = next(each for each in self.tasks if each.name == task.name)
        if task.suspect:
            if result["outcome"] == "caught" and result["test"] == task.suspect:
                tests = tuple(test for test in task.tests_left if test != task.suspect)
                return [replace(original, tests=tests)]
            result = self._caught.pop(task.name)
        elif result["outcome"] == "caught" and result["ran"]:
            self._caught[task.name] = result
            ran = tuple(result.pop("order"))
            return [replace(task, source="", tests=ran, suspect=result["test"], tests_left=task.tests)]
        result.pop("order", None)
        with self.results.open("a") as file:
            file.write(json.dumps({"name": task.name, **result}) + "\n")
        return []

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
        began = time.monotonic()
        try:
            os.setpgid(0, 0)
            result = self._judge(session, items, task)
        except BaseException:
            result = {"outcome": "undecided", "message": traceback.format_exc()[-1000:]}
        result = {"test": "", "message": "", "ran": 0, "seconds": round(time.monotonic() - began, 1), **result}
        self._own_file("result", os.getpid()).write_text(json.dumps(result))
        os._exit(0)

    def _judge(self, session: pytest.Session, items: dict[str, pytest.Item], task: Task) -> dict[str, Any]:
        """In the child: run the tests until one fails."""
        if not task.suspect:
            try:
                swap(Path.cwd() / task.path, task.source)
            except CannotSwapError as error:
                return {"outcome": "cannot swap", "message": str(error)}
        _own_home()
        chosen = sorted(_chosen(items, task.tests), key=_empties_tables)
        self.failed.clear()
        following: Sequence[Any] = [*chosen[1:], Nothing(session)]
        for number, (item, after) in enumerate(zip(chosen, following, strict=True), start=1):
            self._own_file("current", os.getpid()).write_text(json.dumps([item.nodeid, time.monotonic()]))
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
            if failed := [each for each in self.failed if task.suspect in ("", each[0])]:
                test, message = failed[0]
                order = [each.nodeid for each in chosen[:number]]
                return {"outcome": "caught", "test": test, "message": message, "ran": number, "order": order}
        return {"outcome": "survived", "ran": len(chosen)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(getattr(crash, "message", report.longrepr)).strip()
            self.failed.append((report.nodeid, message.partition("\n")[0][:200]))

    def _own_file(self, kind: str, child: int) -> Path:
        return self.results.with_name(f"{kind}-{child}")

    def _ended(self, running: dict[int, tuple[Task, float]]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield what has ended since the last look, or whose time is up. Such a child is killed with what it started."""
        time.sleep(POLL_SECONDS)
        for child, (task, began) in list(running.items()):
            seconds = time.monotonic() - began
            over = seconds > task.seconds
            if over:
                _kill(child)
            if os.waitpid(child, 0 if over else os.WNOHANG)[0]:
                _kill(child)
                del running[child]
                yield task, self._result(child) or self._hung(child, round(seconds, 1))

    def _result(self, child: int) -> dict[str, Any] | None:
        file = self._own_file("result", child)
        found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
        return found

    def _hung(self, child: int, seconds: float) -> dict[str, Any]:
        """What to say of a child that was killed: a test that does not end at all has noticed something."""
        file = self._own_file("current", child)
        test, since = json.loads(file.read_text()) if file.exists() else ("", time.monotonic())
        hangs = time.monotonic() - since > HANG_SECONDS
        outcome, message = ("caught", "It did not end.") if hangs else ("undecided", "its time was up")
        return {"outcome": outcome, "test": test if hangs else "", "message": message, "ran": 0, "seconds": seconds}


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
