"""Where a process does something that lasts: commits, statements outside of transactions, and what agents do."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from django.db import connection

from portal.jobs.models import JobEvent

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = (f"{ROOT}/portal/", f"{ROOT}/runners/")
IN_BETWEEN = ("runners/agent/journal.py", "runners/agent/portal_client.py")
"""Their lines do not show what a note or a request is for; those of their callers do."""
BEGIN = datetime(2040, 1, 1, tzinfo=UTC)
"""Later than what any file here was written at."""
Answer = TypeVar("Answer")
When = Literal["before", "after"]


class Killed(BaseException):
    """Whoever was at this point is dead; caught only where the process was let run."""


class Runs(Protocol):
    kind: str


@dataclass(frozen=True, order=True)
class Kill:
    """At which passing of a point its process died, and whether what it did there was still done."""

    point: str
    passing: int
    when: When


class Points:
    """``plan``: from which passing on to kill at a point, once. ``calm``: whether the lab may be hit now."""

    def __init__(self, plan: Mapping[tuple[str, When], int], calm: Callable[[], bool]) -> None:
        self.passed: Counter[str] = Counter()
        self.kills: list[Kill] = []
        self.counting = False
        """Only from when the lab is open."""
        self.changes = 0
        """Commits, whoever's."""
        self.running: list[Runs] = []
        """The last one's code runs now: an agent waits while the portal answers."""
        self._plan, self._calm = dict(plan), calm
        self._last_event = 0

    @contextlib.contextmanager
    def within(self, process: Runs) -> Iterator[None]:
        self.running.append(process)
        try:
            yield
        finally:
            self.running.pop()

    def around(self, action: str, work: Callable[[], Answer]) -> Answer:
        """Do the work at a point that is named after the process, the action and the line of code."""
        if not (self.running and self.counting):
            return work()
        point = f"{self.running[-1].kind}: {action}, {_line()}"
        self.passed[point] += 1
        kill = self._due(point, self.passed[point])
        if kill != "before":
            answer = work()
        if kill:
            self.kills.append(Kill(point, self.passed[point], kill))
            raise Killed(point)
        return answer

    def _due(self, point: str, passing: int) -> When | None:
        whens: tuple[When, ...] = ("before", "after")
        for when in whens:
            if passing >= self._plan.get((point, when), sys.maxsize) and self._calm():
                del self._plan[point, when]
                return when
        return None

    # --- the portal

    def read_history_again(self) -> None:
        """Read events from the first one again, after the database was replaced."""
        self._last_event = 0

    def commit(self, plain: Callable[[], None]) -> None:
        """Replace the connection's own. The name of a point includes the events that it adds to histories of jobs."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT id, kind FROM {JobEvent._meta.db_table} WHERE id > %s ORDER BY id", [self._last_event]
            )
            events = cursor.fetchall()
        kinds = "+".join(dict.fromkeys(kind for _, kind in events))
        try:
            self.around(f"commit of {kinds}" if kinds else "commit", plain)
        except Killed:
            connection.connection.rollback()  # as the database does when its client is gone
            connection.run_on_commit = []  # its notifications are never sent
            raise
        self._last_event = max((pk for pk, _ in events), default=self._last_event)
        self.changes += 1

    def statement(self, execute: Callable[..., Answer], sql: str, *rest: Any) -> Answer:
        """One outside of a transaction that writes commits by itself."""
        if connection.in_atomic_block or not sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            return execute(sql, *rest)
        self.changes += 1
        return self.around(" ".join(sql.split()[:3]).replace('"', ""), lambda: execute(sql, *rest))


def _line() -> str:
    """Where the product's code is now, or which of its functions ends with a commit."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        code, line = frame.f_code, frame.f_lineno
        if (
            code.co_filename == contextlib.__file__ and code.co_name == "inner"
        ):  # of a decorator like transaction.atomic
            code = frame.f_locals["func"].__code__
            line = code.co_firstlineno
        if code.co_filename.startswith(PRODUCT) and not code.co_filename.endswith(IN_BETWEEN):
            return f"{code.co_filename.removeprefix(f'{ROOT}/')}:{line} {code.co_qualname}"
        frame = frame.f_back
    raise AssertionError("nothing of the product does this")


class Clock:
    """The lab's, in the place of the module ``time``. Each look takes a microsecond: no two moments are the same."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.set_by = 0.0
        """By how much the wall clock of the portal's machine was set since the beginning."""

    def monotonic(self) -> float:
        self.seconds += 1e-6
        return self.seconds

    def time(self) -> float:
        return BEGIN.timestamp() + self.monotonic() + self.set_by

    def time_ns(self) -> int:
        return int(self.time() * 1e6) * 1000

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.monotonic() + self.set_by)


class NodeClock:
    """That of the nodes: the same seconds pass, but their wall clocks are set from outside."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.set_by = 0.0
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def time(self) -> float:
        return BEGIN.timestamp() + self.monotonic() + self.set_by

    def time_ns(self) -> int:
        return int(self.time() * 1e6) * 1000
