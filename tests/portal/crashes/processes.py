"""What is killed: it stays away for some seconds, and restarts with nothing in memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from django.conf import settings

from portal.agents import sync
from portal.jobs import lifecycle
from portal.jobs.clock import WallClock
from portal.scheduler.leader_election import Leadership
from portal.scheduler.management.commands.runscheduler import Command
from portal.wake import SCHEDULER
from tests.portal.crashes.points import Killed

if TYPE_CHECKING:
    from tests.portal.crashes.lab import Lab

MOST_AWAY = 6.0
"""Seconds. A kill alone may let no fence fall."""
REST = 3.0
"""Seconds for which all must have been back before another kill."""
Answer = TypeVar("Answer")


class Away(Exception):  # noqa: N818
    """The server is down, or died before it answered."""


class Process:
    kind = ""

    def __init__(self, lab: "Lab") -> None:
        self.lab = lab
        self.up = False
        self.killed = False
        """It is away, or not back for long, because it was killed; not by the story."""
        self.back_at = 0.0

    def turn(self) -> None:
        """One piece of its work, or nothing while it is away."""
        now = self.lab.clock.seconds
        if not self.up:
            if now < self.back_at:
                return
            self.begin()
            self.up = True
        self.killed = self.killed and now < self.back_at + REST
        try:
            with self.lab.points.within(self):
                self.work()
        except Killed:
            self.killed = True
            self.go_away(self.lab.chance.uniform(0, MOST_AWAY))

    def go_away(self, seconds: float) -> None:
        self.back_at = self.lab.clock.seconds + seconds
        if self.up:
            self.up = False
            self.end()

    def begin(self) -> None:
        """With nothing in memory."""

    def work(self) -> None:
        """What it does now and then."""

    def end(self) -> None:
        """What the system does when a process is gone."""


class Scheduler(Process):
    kind = "scheduler"

    def begin(self) -> None:
        self.command, self.leadership = Command(), Leadership(self.lab.home / "scheduler.lock")
        lifecycle.wall_clock = WallClock(self.lab.clock.time, self.lab.clock.monotonic)
        self.turned_at = float("-inf")

    def work(self) -> None:
        now = self.lab.clock.seconds
        if SCHEDULER in self.lab.notified or now - self.turned_at > settings.SCHEDULER_PERIOD_SECONDS:
            self.lab.notified.discard(SCHEDULER)
            self.turned_at = now
            self.command.run_cycle(self.leadership)

    def end(self) -> None:
        self.leadership.release()  # its files and connections are closed


class Web(Process):
    """Answers agents and people."""

    kind = "web"

    def begin(self) -> None:
        sync._environments.forget()

    def answer(self, work: Callable[[], Answer]) -> Answer:
        """Raises Away when none came."""
        if not self.up:
            raise Away
        try:
            with self.lab.points.within(self):
                return work()
        except Killed:
            self.killed = True
            self.go_away(self.lab.chance.uniform(0, MOST_AWAY))
            raise Away from None
