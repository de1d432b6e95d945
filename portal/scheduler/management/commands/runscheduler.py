"""The scheduler's loop."""

import logging
import signal
import time
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseTrouble
from django.db import connections

from portal.scheduler import cycle
from portal.scheduler.job_history import History
from portal.scheduler.leader_election import Leadership
from portal.wake import SCHEDULER, Bell

logger = logging.getLogger(__name__)

COOL_DOWN_SECONDS = 0.2
"""Between two turns: a burst of events is one reason to look, not a hundred."""
LISTEN_SECONDS = 0.5
"""So long a signal to end may go unheard while waiting for the bell."""
REST_SECONDS = 2.0
"""After trouble with the database."""


class Command(BaseCommand):
    """Decides which job gets which GPUs, until it is told to end.

    1. Take the lead, or stand by until the present leader is gone.
    2. Turn once (``cycle.run``).
    3. Wait for the bell or the period, but at least the cool-down; begin again.

    A turn that finds itself deposed goes back to 1. Trouble with the database is logged, and after a rest and
    with a new connection the loop begins at 1. SIGTERM and SIGINT end it after the turn in hand.
    """

    help = "Run the scheduler. Several may run: one leads, the others stand by."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Turn once and end (for trying things out).")

    def handle(self, *args: Any, once: bool = False, **options: Any) -> None:
        self.ending = False
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._end)
        leadership, bell = Leadership(), Bell(SCHEDULER)
        try:
            while not self.ending:
                self.run_cycle(leadership)
                if once:
                    return
                self._wait(bell)
        finally:
            leadership.release()
            bell.close()

    def run_cycle(self, leadership: Leadership) -> None:
        """One unit of work."""
        try:
            if leadership.epoch is None and leadership.take():
                logger.info("leading with epoch %s", leadership.epoch)
                self.history = History()
            if leadership.epoch is not None:
                cycle.run(leadership.epoch, history=self.history)
        except cycle.LeadershipLostError as deposed:
            logger.warning("deposed: %s", deposed)
            leadership.release()
        except DatabaseTrouble:
            logger.exception("the database did not do as told; trying again with a new connection")
            leadership.release()
            connections.close_all()
            time.sleep(REST_SECONDS)

    def _wait(self, bell: Bell) -> None:
        time.sleep(COOL_DOWN_SECONDS)
        until = time.monotonic() + settings.SCHEDULER_PERIOD_SECONDS - COOL_DOWN_SECONDS
        while not self.ending and (left := until - time.monotonic()) > 0:
            if bell.wait(min(left, LISTEN_SECONDS)):
                return

    def _end(self, signum: int, frame: FrameType | None) -> None:
        self.ending = True
