"""``manage.py demo`` (``make demo``): a lab of its own to try everything in, with no cluster behind it."""

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
from portal.ops.demo.workload import Size
from portal.ops.management.commands import up
from portal.ops.up.preflight import AlreadyRunningError, lock_home
from portal.ops.up.processes import Keeper, Program
from portal.ops.up.welcome import Story
from portal.refused import Refused
from runners.agent.settings import Identity
from runners.demo.nodes import DemoAgent, ReachedStep, start_node

SUBMIT_SECONDS = 25.0
ANSWER_SECONDS = 60.0
"""How long the portal may take to answer after its start."""
MARK = "SCHEDULEARN_DEMO"
REAL = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")
"""Settings of the real lab: the demo lab has its own."""
EDITION = 2
"""Of what a demo lab is filled with: a demo lab is only started by releases that would fill it alike."""


class Command(up.Command):
    """Started without the mark it only starts itself again in the demo lab's folder, so no real lab is ever touched."""

    command = "make demo"

    help = (
        "Start a demo lab: made-up people, a month of history, and nodes on which nothing really runs. Ctrl-C stops it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--nodes", type=int, default=4, help="How many nodes a new demo lab has (1 to 20).")
        parser.add_argument("--gpus", type=int, default=4, help="How many GPUs each of them has (1 to 16).")
        parser.add_argument("--fill-only", action="store_true", help="Make the lab and stop.")
        parser.add_argument("--remove", action="store_true", help="Remove the demo lab and all that is in it.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["nodes"] <= 20 or not 1 <= options["gpus"] <= 16:
            raise CommandError("A demo lab has 1 to 20 nodes with 1 to 16 GPUs each.")
        if not settings.DEMO:
            home = settings.HOME / "demo"
            if options["remove"]:
                self._remove(home)
            else:
                self._start_again(home, options)
            return
        self.options, self.agents, self.submit_at = options, list[DemoAgent](), 0.0
        self.chance = random.Random()  # noqa: S311  # nothing secret depends on it
        if options["fill_only"]:
            self._refuse_other_edition()
            call_command("migrate", verbosity=0, interactive=False)
            self._fill()
            return
        super().handle(*args, **options)

    # --- outside the demo lab ------------------------------------------------------------------------------------

    def _remove(self, home: Path) -> None:
        if not home.exists():
            self.say("There is no demo lab.")
            return
        try:
            lock_home(home).close()
        except AlreadyRunningError:
            raise CommandError("The demo lab is running. Stop it first (Ctrl-C where it was started).") from None
        shutil.rmtree(home)
        self.say("The demo lab and everything in it are removed.")

    def _start_again(self, home: Path, options: dict[str, Any]) -> None:
        names = {name for each in REAL for name in (each, f"{each}_FILE")}
        env = {name: value for name, value in os.environ.items() if name not in names}
        env.setdefault("LOG_LEVEL", "WARNING")  # the terminal is for what a visitor needs
        env |= {"SCHEDULEARN_HOME": str(home), MARK: "true", "PORT": str(settings.PORT)}
        command = [sys.executable, sys.argv[0], "demo", f"--nodes={options['nodes']}", f"--gpus={options['gpus']}"]
        # In our place, so that Ctrl-C and whoever watches us reach the demo lab itself.
        os.execve(sys.executable, [*command, *(["--fill-only"] if options["fill_only"] else [])], env)  # noqa: S606

    # --- inside --------------------------------------------------------------------------------------------------

    def _preflight(self) -> None:
        super()._preflight()
        self._refuse_other_edition()

    def _refuse_other_edition(self) -> None:
        """Raise CommandError for a demo lab of an older release: its history lacks what the pages show now."""
        filled = User._meta.db_table in connection.introspection.table_names() and User.objects.exists()
        if filled and people.kept("edition") != EDITION:
            raise CommandError(
                "This demo lab was made by another release and has another history. Remove it with "
                "`make demo OPTIONS=--remove`, then start again with `make demo`."
            )

    def _fill(self) -> None:
        """Fill a new demo lab; leave one that is filled as it is."""
        if User.objects.exists():
            return
        self.say("Making a lab with a month of history; this takes some seconds ...")
        size = Size(self.options["nodes"], self.options["gpus"])
        written = month.fill(timezone.now(), size, self._url())
        people.keep(edition=EDITION)
        self.say(month.summary(written, size))

    @property
    def given_home(self) -> Path:
        return settings.HOME.parent if settings.DEMO else settings.HOME

    def _url(self) -> str:
        return f"http://127.0.0.1:{settings.PORT}"

    def _programs(self) -> list[Program]:
        self._fill()
        return super()._programs()

    def _agent_program(self, env: Mapping[str, str]) -> list[Program]:
        return []  # the agents of its nodes are threads of this process

    def _say_ready(self, what: str) -> None:
        """The demo lab announces itself, with the names that can sign in."""

    def _announce(self) -> None:
        """Say that it is ready once it is: agents that start earlier would complain that nothing answers."""
        self._wait_for_answer()
        for node in Node.objects.filter(removed_at=None, runtime=Node.Runtime.FAKE):
            home = people.node_home(node.name)
            identity = Identity.read(home / "node.json")
            if identity is not None:
                self.agents.append(start_node(home, self._url(), identity, node.gpus.count(), reached_for_agent))
        admin, *others = people.PEOPLE
        self.say(f"\nThe demo lab is ready: {settings.SITE_URL}\n\n")
        self.say(f"  Sign in as   {admin} (admin), or {', '.join(others)}")
        self.say(f"  Password     {people.kept_password()} (the same for everyone)\n\n")
        self.say("Nothing in it is real. Ctrl-C stops it and keeps it; `make demo OPTIONS=--remove` removes it.\n\n")

    def _wait_for_answer(self) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until and not self.stopping.wait(0.1):
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", settings.PORT)) == 0:
                    return

    def _story(self) -> Story | None:
        return None

    def _keep(self, keeper: Keeper) -> None:
        try:
            super()._keep(keeper)
        finally:
            for agent in self.agents:
                agent.stop()

    def each_look(self) -> None:
        if time.monotonic() < self.submit_at:
            return
        self.submit_at = time.monotonic() + SUBMIT_SECONDS * self.chance.uniform(0.5, 1.5)
        gpus = [len(agent.runtime.uuids) for agent in self.agents]
        try:
            traffic.submit_one(self.chance, Size(len(gpus), min(gpus, default=1)))
        except Refused as refusal:
            logging.getLogger(__name__).warning("A job of the demo was refused: %s", refusal.message)
        finally:
            connection.close()


def reached(job: int) -> ReachedStep | None:
    """How far the earlier attempts of a resumable job came; None when there are none."""
    known = Progress.objects.filter(attempt__job=job, attempt__job__resumable=True, attempt__ended_at__isnull=False)
    last = known.filter(batch__gt=0, total__gt=0).order_by("attempt__number").last()
    return ReachedStep(last.step, (last.total or 0) // last.batch) if last else None


def reached_for_agent(job: int) -> ReachedStep | None:
    """The same, in a thread that keeps no connection."""
    try:
        return reached(job)
    finally:
        connection.close()
