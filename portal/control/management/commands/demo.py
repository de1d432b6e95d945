"""``manage.py demo``: a toy lab of its own to try everything in, with no cluster behind it."""

import logging
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.control.demo import past, people, traffic
from portal.control.management.commands import up
from portal.control.up.preflight import AlreadyRunning, lock_home
from portal.control.up.processes import Keeper, Program
from portal.control.up.welcome import Story
from portal.refused import Refused
from runners.agent_settings import Identity
from runners.demo import DemoAgent, start_node

SUBMIT_SECONDS = 25.0
MARK = "SCHEDULEARN_DEMO"
REAL = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")
"""Of the real lab: the demo lab has its own."""


class Command(up.Command):
    """Started without the mark it only starts itself again in the demo lab's folder, so no real lab is ever touched."""

    help = (
        "Start a demo lab: made-up people, a week of history, and nodes on which nothing really runs. Ctrl-C stops it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--nodes", type=int, default=4, help="How many nodes a new demo lab has (1 to 20).")
        parser.add_argument("--gpus", type=int, default=4, help="How many GPUs each of them has (1 to 16).")
        parser.add_argument("--fill-only", action="store_true", help="Make the lab and stop.")
        parser.add_argument("--remove", action="store_true", help="Remove the demo lab and all that is in it.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["nodes"] <= 20 or not 1 <= options["gpus"] <= 16:
            raise CommandError("A demo lab has 1 to 20 nodes of 1 to 16 GPUs.")
        if not settings.DEMO:
            home = settings.HOME / "demo"
            if options["remove"]:
                self._remove(home)
            else:
                self._start_again(home, options)
            return
        self.options, self.agents, self.submit_at = options, list[DemoAgent](), 0.0
        self.chance = random.Random()  # noqa: S311  # nothing secret hangs on it
        if options["fill_only"]:
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
        except AlreadyRunning:
            raise CommandError("The demo lab is running. Stop it first (Ctrl-C where it was started).") from None
        shutil.rmtree(home)
        self.say("The demo lab is gone; nothing of it is left.")

    def _start_again(self, home: Path, options: dict[str, Any]) -> None:
        names = {name for each in REAL for name in (each, f"{each}_FILE")}
        env = {name: value for name, value in os.environ.items() if name not in names}
        env.setdefault("LOG_LEVEL", "WARNING")  # its many agents and tasks would drown what is told
        env |= {"SCHEDULEARN_HOME": str(home), MARK: "true", "PORT": str(settings.PORT)}
        command = [sys.executable, sys.argv[0], "demo", f"--nodes={options['nodes']}", f"--gpus={options['gpus']}"]
        # In our place, so that Ctrl-C and whoever watches us meet the demo lab itself.
        os.execve(sys.executable, [*command, *(["--fill-only"] if options["fill_only"] else [])], env)  # noqa: S606

    # --- inside --------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Once."""
        if User.objects.exists():
            return
        self.say("Making people, nodes and a week of history ...")
        now = timezone.now()
        made = people.fill(now, self.options["nodes"], self.options["gpus"], self._url())
        jobs = past.write(now, now - people.PAST, made.nodes, made.codes)
        self.say(f"{len(made.nodes)} nodes, {len(people.PEOPLE)} people, {jobs} jobs of the last days.")

    def _url(self) -> str:
        return f"http://127.0.0.1:{settings.PORT}"

    def _programs(self) -> list[Program]:
        self._fill()
        return [program for program in super()._programs() if program.name in ("web", "scheduler")]

    def _announce(self) -> None:
        for node in Node.objects.filter(removed_at=None, runtime=Node.Runtime.FAKE):
            home = people.node_home(node.name)
            identity = Identity.read(home / "node.json")
            if identity is not None:
                self.agents.append(start_node(home, self._url(), identity, node.gpus.count()))
        names = ", ".join(people.PEOPLE)
        self.say(f"\nThe demo lab is starting at {settings.SITE_URL}")
        self.say(f"Sign in as {names}; everybody's password is {people.kept_password()} (ada is an admin).")
        self.say("Ctrl-C stops it; manage.py demo --remove removes it.\n")

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
        try:
            traffic.submit_one(self.chance, min(len(agent.runtime.uuids) for agent in self.agents))
        except Refused as refusal:
            logging.getLogger(__name__).warning("the demo's job was refused: %s", refusal.message)
        finally:
            connection.close()
