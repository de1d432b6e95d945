"""``manage.py up``: everything of the small size on this machine, in one process group (``make run``)."""

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from celery.beat import EmbeddedService
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from portal.accounts.services import setup_link
from portal.celery import app
from portal.cluster.services import issue_join_token
from portal.control.up.preflight import AlreadyRunning, findings, lock_home
from portal.control.up.processes import Keeper, Program
from portal.control.up.welcome import Story, submit_example, unfinished_example
from runners.signals import StopSignal

LOOK_SECONDS = 0.5
PORTAL_SECRETS = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "EMAIL_HOST_PASSWORD")
"""Never given to the agent, which runs beside users' code; nor are the files named by ``NAME_FILE``."""
HOST = os.environ.get("HOST") or "127.0.0.1"


def begin_schedule(file: Path) -> None:
    """In a thread of this process, which carries the tasks out itself: it must know them, or it would only send them."""
    app.loader.import_default_modules()
    EmbeddedService(app, thread=True, schedule_filename=str(file)).start()


class Command(BaseCommand):
    help = "Start the portal, the scheduler and this machine's agent together, and keep them running until Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        """1. Look whether it can start. 2. Migrate. 3. Start the programs. 4. Tell where and how to sign in.
        5. Keep the programs running, and tell the way of the first job. 6. On Ctrl-C or SIGTERM stop them all."""
        self.stopping = StopSignal(signal.SIGINT, signal.SIGTERM)
        self._preflight()
        call_command("migrate", verbosity=0, interactive=False)
        keeper = Keeper(self._log_folder())
        try:
            for program in self._programs():
                keeper.start(program)
            self._announce()
            self._keep(keeper)
        finally:
            self.say("Stopping ...")
            keeper.stop()
            self.say("Stopped. Everything is kept; make run goes on from here.")

    def say(self, text: str) -> None:
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except BrokenPipeError:
            pass

    def _preflight(self) -> None:
        try:
            self.lock = lock_home(settings.HOME)
        except AlreadyRunning:
            raise CommandError(
                f"Schedulearn is already running with {settings.HOME}. Stop it there, or choose another SCHEDULEARN_HOME."
            ) from None
        for finding in findings(settings.HOME, HOST, settings.PORT):
            if finding.fatal:
                raise CommandError(f"{finding.text} {finding.mend}")
            self.say(f"Note: {finding.text} {finding.mend}")

    def _log_folder(self) -> Path:
        folder = settings.HOME / "log"
        folder.mkdir(exist_ok=True)
        return folder

    def _programs(self) -> list[Program]:
        env = {
            **os.environ,
            "SCHEDULEARN_HOME": str(settings.HOME),
            "PORT": str(settings.PORT),
            "SCHEDULEARN_URL": f"http://127.0.0.1:{settings.PORT}",
        }
        agent_env = {name: value for name, value in env.items() if name.removesuffix("_FILE") not in PORTAL_SECRETS}
        if not (settings.HOME / "agent" / "node.json").exists():
            agent_env["SCHEDULEARN_JOIN_TOKEN"] = issue_join_token(None, approves=True)
        python = sys.executable
        web = (
            python,
            "-m",
            "daphne",
            "-v",
            "0",
            "--application-close-timeout",
            "2",
            "-b",
            HOST,
            "-p",
            str(settings.PORT),
            "portal.asgi:application",
        )
        programs = [
            Program("web", web, env),
            Program("scheduler", (python, "manage.py", "runscheduler"), env),
            Program("agent", (python, "-m", "runners.agent", "--stop-jobs-on-exit"), agent_env, grace_seconds=25),
        ]
        if settings.LAB:
            beat = ("-B", "-s", str(self._beat_file()))
            programs.append(Program("worker", (python, "-m", "celery", "-A", "portal", "worker", *beat), env))
        return programs

    def _beat_file(self) -> Path:
        """When what is periodic was done last. Celery's default is a file in the folder of the code."""
        return settings.HOME / "beat"

    def _announce(self) -> None:
        self.say(f"\nSchedulearn is starting at {settings.SITE_URL}")
        if link := setup_link(settings.SITE_URL):
            self.say(f"Set up your admin account, once, here:\n\n    {link}\n")
        self.say(f"Logs are in {settings.HOME / 'log'}. Ctrl-C stops everything.\n")

    def _keep(self, keeper: Keeper) -> None:
        if not settings.LAB:
            begin_schedule(self._beat_file())
        story = self._story()
        while not self.stopping.wait(LOOK_SECONDS):
            keeper.look()
            self.each_look()
            if story is not None and not story.over:
                try:
                    for line in story.news():
                        self.say(f"  first job: {line}")
                except DatabaseError:
                    logging.getLogger(__name__).exception("the first job's way could not be read")
                    connection.close()
                    time.sleep(LOOK_SECONDS)

    def each_look(self) -> None:
        """For the demo lab."""

    def _story(self) -> Story | None:
        job = submit_example() or unfinished_example()
        if job is None:
            return None
        story = Story(job, settings.SITE_URL)
        self.say(f"A first job shows the way: an elastic Horovod training ({story.link})")
        return story
