"""``manage.py up``: everything of the small size on this machine, in one process group (``make run``)."""

import logging
import logging.config
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from celery.beat import EmbeddedService
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from portal.accounts.services import has_admin, setup_link
from portal.celery import app
from portal.cluster.services import issue_join_token
from portal.jobs.models import Container
from portal.ops.up.logs import quiet_logging
from portal.ops.up.preflight import AlreadyRunningError, findings, listen, lock_home, portal_responds
from portal.ops.up.processes import Program, ProgramManager
from portal.ops.up.terminal import Terminal
from portal.ops.up.welcome import ExampleReport, submit_examples, unfinished_examples
from portal.serving.handover import handover_pair
from portal.ui import counted
from runners.agent.settings import NodeIdentity
from runners.agent.signals import StopSignal

CHECK_SECONDS = 0.5
PORTAL_SECRETS = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "EMAIL_HOST_PASSWORD")
"""Never passed to the agent, which runs beside users' code; the same holds for the files named by ``NAME_FILE``."""
HOST = os.environ.get("HOST") or "127.0.0.1"


def start_schedule(file: Path) -> None:
    """Run the schedule in a thread of this process, which also runs the tasks: without the imports it only queues them."""
    app.loader.import_default_modules()
    EmbeddedService(app, thread=True, schedule_filename=str(file)).start()


class Command(BaseCommand):
    programs_after_web: Sequence[Program] = ()
    """Programs that are started once the portal answers."""
    link: str | None = None
    """The address at which the first person becomes admin."""

    command = "make run"

    help = "Start the portal, the scheduler and this machine's agent together, and keep them running until Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run all programs of the lab until a signal ends them.

        1. Check that it can start. 2. Migrate. 3. Start the programs. 4. Print where and how to sign in.
        5. Keep the programs running, and report the first jobs. 6. On Ctrl-C or SIGTERM stop them all.
        """
        self.stopping = StopSignal(signal.SIGINT, signal.SIGTERM)
        self._preflight()
        folder = self._log_folder()
        self._log_to_file(folder / "up.log")
        call_command("migrate", verbosity=0, interactive=False)
        manager = ProgramManager(folder, self.terminal)
        try:
            programs = self._programs()
            for program in programs:
                if not program.needs_web:
                    manager.start(program)
            self.programs_after_web = [program for program in programs if program.needs_web]
            self._announce()
            self._supervise(manager)
        finally:
            self.terminal.progress("")
            self.print(f"Stopping ... {describe_stopped_jobs(count_local_jobs(settings.HOME))}".rstrip())
            manager.stop()
            self.print(
                f"Stopped. All data is kept; start again with: {start_command(self.command, self.configured_home)}"
            )

    @property
    def configured_home(self) -> Path:
        """The value of SCHEDULEARN_HOME."""
        return settings.HOME

    @cached_property
    def terminal(self) -> Terminal:
        self.stdout.ending = ""  # the terminal adds the line ends
        return Terminal(self.stdout)

    def print(self, text: str) -> None:
        self.terminal.print(text)

    sockets: Sequence[socket.socket] = ()
    """Sockets that stay open for the web processes, which inherit them each time they start."""

    def _preflight(self) -> None:
        try:
            self.lock = lock_home(settings.HOME)
        except AlreadyRunningError:
            raise CommandError(
                f"Schedulearn is already running with {settings.HOME}. Stop it there, or choose another SCHEDULEARN_HOME."
            ) from None
        for finding in findings(settings.HOME, HOST, settings.PORT):
            if finding.fatal:
                raise CommandError(f"{finding.text} {finding.fix.replace('make run', self.command)}")

    def _log_folder(self) -> Path:
        folder = settings.HOME / "log"
        folder.mkdir(exist_ok=True)
        return folder

    def _log_to_file(self, path: Path) -> None:
        # Changed in the settings, because Celery sets up Django again when it loads the tasks.
        settings.LOGGING = quiet_logging(settings.LOGGING, path, self.terminal)
        logging.config.dictConfig(settings.LOGGING)

    def _programs(self) -> list[Program]:
        env = {
            **os.environ,
            "SCHEDULEARN_HOME": str(settings.HOME),
            "PORT": str(settings.PORT),
            "SCHEDULEARN_URL": f"http://127.0.0.1:{settings.PORT}",
        }
        python = sys.executable
        programs = [
            *self._web_programs(env),
            Program("scheduler", (python, "manage.py", "runscheduler"), env),
            *self._agent_program(env),
        ]
        if settings.LAB:
            beat = ("-B", "-s", str(self._beat_file()))
            programs.append(Program("worker", (python, "-m", "celery", "-A", "portal", "worker", *beat), env))
        return programs

    def _web_programs(self, env: Mapping[str, str]) -> list[Program]:
        """Return the web programs: one for people, one for nodes, and one that passes each its connections.

        Two are needed so that neither pages nor uploads delay a node's lease. Connections wait in the sockets made here
        while one of the programs restarts.
        """
        to_pages, pages = handover_pair()
        to_nodes, nodes = handover_pair()
        self.sockets = [listen(HOST, settings.PORT), to_pages, pages, to_nodes, nodes]
        listening = self.sockets[0]

        def program(name: str, module: str, arguments: Sequence[str], *given: socket.socket) -> Program:
            handles = tuple(each.fileno() for each in given)
            words = (sys.executable, "-m", module, *arguments, *(str(handle) for handle in handles))
            return Program(name, words, env, handles=handles)

        return [
            program("web", "portal.serving", ["--handed-over"], pages),
            program("nodes", "portal.serving", ["--only", "nodes", "--handed-over"], nodes),
            program("entry", "portal.serving.entry", [], listening, to_pages, to_nodes),
        ]

    def _agent_program(self, env: Mapping[str, str]) -> list[Program]:
        """Return this machine's agent, which joins the lab by itself at the first start."""
        env = {name: value for name, value in env.items() if name.removesuffix("_FILE") not in PORTAL_SECRETS}
        if not (settings.HOME / "agent" / "node.json").exists():
            env["SCHEDULEARN_JOIN_TOKEN"] = issue_join_token(None, approves=True)
        command = (sys.executable, "-m", "runners.agent", "--stop-jobs-on-exit")
        return [Program("agent", command, env, 25, needs_web=True)]

    def _beat_file(self) -> Path:
        """The file with the times of the last periodic tasks. Celery's default is in the folder of the code."""
        return settings.HOME / "beat"

    def _announce(self) -> None:
        self.link = setup_link(settings.SITE_URL)
        self.print(f"\nSchedulearn is starting at {settings.SITE_URL}")
        if self.link:
            self.print(f"Set up your admin account with this link, which works once:\n\n    {self.link}\n")
        self.print(f"Logs are in {settings.HOME / 'log'}. Ctrl-C stops everything.\n")

    def _supervise(self, manager: ProgramManager) -> None:
        if not settings.LAB:
            start_schedule(self._beat_file())
        report = self._example_report()
        web = ready = False
        while not self.stopping.wait(CHECK_SECONDS):
            manager.check()
            self.on_each_check()
            if not web and (web := portal_responds(HOST, settings.PORT)):
                for program in self.programs_after_web:
                    manager.start(program)
            if report is not None and not report.finished:
                self._report(report)
                if report.succeeded:
                    ready = True
                    self._announce_ready("Everything is prepared, for elastic jobs too.")
            if web and not ready and (report is None or report.any_finished or not report.announces_first_success):
                ready = True
                self._announce_ready("Schedulearn is ready.")

    def _report(self, report: ExampleReport) -> None:
        try:
            for line in report.new_lines():
                self.print(f"  {line}")
            self.terminal.progress(*report.progress())
        except DatabaseError:
            logging.getLogger(__name__).exception("the progress of the first jobs could not be read")
            connection.close()
            time.sleep(CHECK_SECONDS)

    def _announce_ready(self, what: str) -> None:
        if self.link and not has_admin():
            self.print(f"\n{what} Set up your admin account here:\n\n    {self.link}\n")
        else:
            self.print(f"\n{what} Sign in at {settings.SITE_URL}\n")

    def on_each_check(self) -> None:
        """Do nothing; the demo lab submits jobs here."""

    def _example_report(self) -> ExampleReport | None:
        submitted = submit_examples()
        jobs = submitted or unfinished_examples()
        if not jobs:
            return None
        report = ExampleReport(jobs, settings.SITE_URL, announces_first_success=bool(submitted))
        if submitted:
            self.print("Two examples show how it works: a plain training first, then an elastic one with Horovod.")
        for job_report in report.reports:
            self.print(f"  {job_report.name}: {job_report.link}")
        self.print("")
        return report


def start_command(command: str, home: Path) -> str:
    """Return the command that starts the same lab again with the same settings."""
    given = {"SCHEDULEARN_HOME": str(home), "HOST": HOST, "PORT": str(settings.PORT)}
    defaults = {
        "SCHEDULEARN_HOME": str(settings.DEFAULT_HOME),
        "HOST": "127.0.0.1",
        "PORT": str(settings.DEFAULT_PORT),
    }
    return " ".join(
        [command, *(f"{name}={shlex.quote(word)}" for name, word in given.items() if word != defaults[name])]
    )


def count_local_jobs(home: Path) -> int:
    """Return how many jobs run on this machine, whose agent ends with the portal."""
    try:
        identity = NodeIdentity.read(home / "agent" / "node.json")
        if identity is None:
            return 0
        parts = Container.objects.filter(node=identity.node, exited_at=None, attempt__ended_at=None)
        return parts.values("attempt__job").distinct().count()
    except (OSError, ValueError, DatabaseError):
        return 0  # it is only for a message


def describe_stopped_jobs(jobs: int) -> str:
    """Describe what a stop does to jobs on this machine; empty when none runs."""
    if not jobs:
        return ""
    return f"{counted(jobs, 'running job')} {'stops' if jobs == 1 else 'stop'} too, and will run again after the next start."
