"""``manage.py demo`` (``make demo``): a separate lab for trying everything, without a cluster."""

import logging
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.jobs.models import Progress
from portal.ops.demo import month, people, traffic
from portal.ops.demo.workload import LabSize
from portal.ops.management.commands import up
from portal.ops.up.preflight import AlreadyRunningError, lock_home
from portal.ops.up.processes import Program, ProgramManager
from portal.ops.up.welcome import ExampleReport
from portal.refused import Refused
from runners.agent.settings import NodeIdentity
from runners.demo.nodes import DemoAgent, GpuModel, JobProgress, start_node

SUBMIT_SECONDS = 25.0
ANSWER_SECONDS = 60.0
"""How long the portal may take to answer after its start."""
DEMO_VARIABLE = "SCHEDULEARN_DEMO"
REAL_LAB_VARIABLES = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")
"""Settings of the real lab: the demo lab has its own."""
CONTENT_VERSION = 2
"""The version of a demo lab's contents: it is only started by releases with the same version. What pages do without, such as
schedules or a second model of GPUs, does not change it: a lab that was made before lacks it and starts as it is."""


class Command(up.Command):
    """Starts the demo lab. Without the mark it only restarts itself in the demo lab's folder: real labs stay untouched."""

    command = "make demo"

    help = "Start a demo lab: fictional people, a month of history, and nodes that only simulate jobs. Ctrl-C stops it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--nodes", type=int, default=4, help="How many nodes a new demo lab has (1 to 20).")
        parser.add_argument("--gpus", type=int, default=4, help="How many GPUs each of them has (1 to 16).")
        parser.add_argument("--fill-only", action="store_true", help="Make the lab and exit.")
        parser.add_argument("--remove", action="store_true", help="Remove the demo lab and everything in it.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["nodes"] <= 20 or not 1 <= options["gpus"] <= 16:
            raise CommandError("A demo lab has 1 to 20 nodes with 1 to 16 GPUs each.")
        if not settings.DEMO:
            home = settings.HOME / "demo"
            if options["remove"]:
                self._remove(home)
            else:
                self._restart_in_demo_home(home, options)
            return
        self.options, self.agents, self.submit_at = options, list[DemoAgent](), 0.0
        self.chance = random.Random()  # noqa: S311  # nothing secret depends on it
        if options["fill_only"]:
            self._check_content_version()
            call_command("migrate", verbosity=0, interactive=False)
            self._fill()
            return
        super().handle(*args, **options)

    # --- outside the demo lab ------------------------------------------------------------------------------------

    def _remove(self, home: Path) -> None:
        if not home.exists():
            self.print("There is no demo lab.")
            return
        try:
            lock_home(home).close()
        except AlreadyRunningError:
            raise CommandError("The demo lab is running. Stop it first (Ctrl-C where it was started).") from None
        shutil.rmtree(home)
        self.print("The demo lab and everything in it are removed.")

    def _restart_in_demo_home(self, home: Path, options: dict[str, Any]) -> None:
        names = {name for each in REAL_LAB_VARIABLES for name in (each, f"{each}_FILE")}
        env = {name: value for name, value in os.environ.items() if name not in names}
        env.setdefault("LOG_LEVEL", "WARNING")  # show only what a visitor needs on the terminal
        env |= {"SCHEDULEARN_HOME": str(home), DEMO_VARIABLE: "true", "PORT": str(settings.PORT)}
        command = [sys.executable, sys.argv[0], "demo", f"--nodes={options['nodes']}", f"--gpus={options['gpus']}"]
        # It replaces this process, so that Ctrl-C and a supervising process reach the demo lab itself.
        os.execve(sys.executable, [*command, *(["--fill-only"] if options["fill_only"] else [])], env)  # noqa: S606

    # --- inside --------------------------------------------------------------------------------------------------

    def _preflight(self) -> None:
        super()._preflight()
        self._check_content_version()

    def _check_content_version(self) -> None:
        """Raise CommandError for a demo lab of another release: its history may lack what the pages show now."""
        filled = User._meta.db_table in connection.introspection.table_names() and User.objects.exists()
        if filled and people.read_fact("edition") != CONTENT_VERSION:
            raise CommandError(
                "This demo lab was made by another release and has another history. Remove it with "
                "`make demo OPTIONS=--remove`, then start again with `make demo`."
            )

    def _fill(self) -> None:
        """Fill a new demo lab; leave one that is filled as it is."""
        if User.objects.exists():
            return
        self.print("Making a lab with a month of history; this takes some seconds ...")
        size = LabSize(self.options["nodes"], self.options["gpus"])
        written = month.fill(timezone.now(), size, self._url())
        people.store_facts(edition=CONTENT_VERSION)
        self.print(month.summary(written, size))

    @property
    def configured_home(self) -> Path:
        return settings.HOME.parent if settings.DEMO else settings.HOME

    def _url(self) -> str:
        return f"http://127.0.0.1:{settings.PORT}"

    def _programs(self) -> list[Program]:
        self._fill()
        return super()._programs()

    def _agent_program(self, env: Mapping[str, str]) -> list[Program]:
        return []  # the agents of its nodes are threads of this process

    def _announce_ready(self, what: str) -> None:
        """Do nothing: ``_announce`` prints the names that can sign in."""

    def _announce(self) -> None:
        """Start the agents once the portal answers, since earlier ones would log errors, and print how to sign in."""
        self._wait_for_answer()
        for node in Node.objects.filter(removed_at=None, runtime=Node.Runtime.FAKE):
            home = people.node_home(node.name)
            identity = NodeIdentity.read(home / "node.json")
            if identity is not None:
                models = [GpuModel(*row) for row in node.gpus.order_by("index").values_list("model", "memory_mib")]
                self.agents.append(start_node(home, self._url(), identity, models, reached_step_for_agent))
        admin, *others = people.PEOPLE
        self.print(f"\nThe demo lab is ready: {settings.SITE_URL}\n\n")
        self.print(f"  Sign in as   {admin} (admin), or {', '.join(others)}")
        self.print(f"  Password     {people.demo_password()} (the same for everyone)\n\n")
        self.print("Nothing in it is real. Ctrl-C stops it and keeps it; `make demo OPTIONS=--remove` removes it.\n\n")

    def _wait_for_answer(self) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until and not self.stopping.wait(0.1):
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", settings.PORT)) == 0:
                    return

    def _example_report(self) -> ExampleReport | None:
        return None

    def _supervise(self, manager: ProgramManager) -> None:
        try:
            super()._supervise(manager)
        finally:
            for agent in self.agents:
                agent.stop()

    def on_each_check(self) -> None:
        if time.monotonic() < self.submit_at:
            return
        self.submit_at = time.monotonic() + SUBMIT_SECONDS * self.chance.uniform(0.5, 1.5)
        gpus = [len(agent.runtime.uuids) for agent in self.agents]
        try:
            traffic.submit_one(self.chance, LabSize(len(gpus), min(gpus, default=1)))
        except Refused as refusal:
            logging.getLogger(__name__).warning("A job of the demo was refused: %s", refusal.message)
        finally:
            connection.close()


def reached_step(job: int) -> JobProgress | None:
    """Return how far the earlier attempts of a resumable job got; None when there are none."""
    known = Progress.objects.filter(attempt__job=job, attempt__job__resumable=True, attempt__ended_at__isnull=False)
    last = known.filter(batch__gt=0, total__gt=0).order_by("attempt__number").last()
    return JobProgress(last.step, (last.total or 0) // last.batch) if last else None


def reached_step_for_agent(job: int) -> JobProgress | None:
    """Return the same as ``reached_step``, in a thread that keeps no database connection."""
    try:
        return reached_step(job)
    finally:
        connection.close()
