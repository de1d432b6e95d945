"""``manage.py runscheduler``: the scheduler's loop."""

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
from portal.wake import SCHEDULER, Subscription

logger = logging.getLogger(__name__)

COOL_DOWN_SECONDS = 0.2
"""Between two cycles: a burst of events is one reason to decide, not a hundred."""
LISTEN_SECONDS = 0.5
"""How long a signal may go unnoticed while the loop waits for a notification."""
REST_SECONDS = 2.0
"""The pause after a database error."""


class Command(BaseCommand):
    """Decides which job gets which GPUs, until a signal ends it.

    1. Take the lead, or stand by until the present leader is gone.
    2. Run one scheduling cycle (``cycle.run``).
    3. Wait for a notification or the end of the period, but at least for the cool-down; begin again.

    A scheduler that has lost the lead goes back to 1. A database error is logged, and after a pause the loop begins at 1
    with a new connection. SIGTERM and SIGINT end the loop after the current cycle.
    """

    help = "Run the scheduler. Several may run: one leads, the others stand by."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Run one scheduling cycle and exit (for testing).")

    def handle(self, *args: Any, once: bool = False, **options: Any) -> None:
        self.ending = False
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._end)
        leadership, subscription = Leadership(), Subscription(SCHEDULER)
        try:
            while not self.ending:
                self.run_cycle(leadership)
                if once:
                    return
                self._wait(subscription)
        finally:
            leadership.resign()
            subscription.close()

    def run_cycle(self, leadership: Leadership) -> None:
        """Take the lead if it is free, and run one cycle if we lead."""
        try:
            if leadership.epoch is None and leadership.take():
                logger.info("leading with epoch %s", leadership.epoch)
                self.history = History()
            if leadership.epoch is not None:
                cycle.run(leadership.epoch, history=self.history)
        except cycle.LeadershipLostError as lost:
            logger.warning("lost the lead: %s", lost)
            leadership.release()
        except DatabaseTrouble:
            logger.exception("database error; trying again with a new connection")
            leadership.release()
            connections.close_all()
            time.sleep(REST_SECONDS)

    def _wait(self, subscription: Subscription) -> None:
        time.sleep(COOL_DOWN_SECONDS)
        until = time.monotonic() + settings.SCHEDULER_PERIOD_SECONDS - COOL_DOWN_SECONDS
        while not self.ending and (left := until - time.monotonic()) > 0:
            if subscription.wait(min(left, LISTEN_SECONDS)):
                return

    def _end(self, signum: int, frame: FrameType | None) -> None:
        self.ending = True
