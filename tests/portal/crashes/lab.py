"""Two nodes, a portal, and a story of what people do, until everything rests."""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, TypeVar
from unittest import mock

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection

from portal.cluster.installation import installation_id
from portal.cluster.models import Node as NodeRow
from portal.jobs import lifecycle, services
from portal.jobs.clock import WallClock
from portal.jobs.models import FINISHED_STATES, Container, Job
from portal.jobs.spec import Submission
from portal.refused import Refused
from runners.agent.journal import delete_tree
from runners.host.node_files import write_json
from tests.portal.crashes.judge import Expected, Judge
from tests.portal.crashes.node import Node, Shipper
from tests.portal.crashes.points import Clock, NodeClock, Points, When
from tests.portal.crashes.processes import Away, Process, Scheduler, Web
from tests.portal.jobs_world import make_code, make_environment, make_project, make_user

MOST_ROUNDS = 600
MOST_KILLS = 8
"""In one run."""
DOWN_SECONDS = 15.0
"""Of the portal, at most, while a backup is restored: less than the leases allow."""
STEPS = (1.0, 2.0, 3.0, 4.0)
"""Seconds between two rounds."""
PERIOD_SECONDS = 8
"""Of the scheduler, when nothing notifies it: turns are most of the work of a run."""
TIMED = ("program", "actions", "loops", "machine", "log_shipper", "outputs", "checkpoints", "leftovers")
Answer = TypeVar("Answer")
Story = Callable[["Lab"], Iterator[Callable[[], object]]]
"""After each part, what it waits for."""


class AtOnce:
    """In the place of an executor: all of the lab runs in one thread."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> SimpleNamespace:
        done = work(*args)
        return SimpleNamespace(result=lambda: done)


class Lab:
    """A context; ``play`` once, then look at ``judge.complaints`` and ``points``."""

    def __init__(self, home: Path, story: Story, seed: int, plan: Mapping[tuple[str, When], int] | None = None) -> None:
        self.home, self.story, self.seed = home, story, seed
        self.chance, self.clock, self.notified = random.Random(seed), Clock(), set[str]()
        self.node_clock = NodeClock(self.clock)
        self.points = Points(plan or {}, self._calm)
        self.judge = Judge(self.clock.monotonic)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)
        installation_id.cache_clear()  # the database of this lab has none yet
        self._patch()
        self.alice = make_user("alice")
        self.project = make_project(self.alice)
        self.code, self.environment = make_code(self.project), make_environment()
        self.web, self.scheduler = Web(self), Scheduler(self)
        self.nodes = {name: Node(self, name, f"10.1.0.{number}") for number, name in enumerate("ab", start=1)}
        self.processes: list[Process] = [self.web, self.scheduler, *self.nodes.values()]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.go_away(0)
        self._stack.close()

    def _patch(self) -> None:
        """Time is ours, what threads would do is done in our order, and whatever lasts is passed by ``points``."""
        random.seed(self.seed)  # pauses between tries
        lab = self

        class Now(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return lab.clock.now()

        class Later:
            def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
                self.work = lambda: target(*args)

            def start(self) -> None:
                node = lab.points.running[-1]
                assert isinstance(node, Node)
                node.background.append(self.work)

        def watched(plain: Callable[..., Any], action: str) -> Callable[..., Any]:
            return lambda *args: lab.points.around(action, lambda: plain(*args))

        database: Any = connection
        commit = database._commit
        new: dict[str, object] = {
            **{f"runners.agent.{module}.time": self.node_clock for module in TIMED},
            "portal.agents.sync.time": self.clock,
            "django.utils.timezone.datetime": Now,
            "runners.agent.program.threading": SimpleNamespace(Thread=Later, Lock=threading.Lock),
            "runners.agent.program.LogShipper": Shipper,
            "runners.agent.actions.write_json": watched(write_json, "note"),
            "runners.agent.journal.ThreadPoolExecutor": AtOnce,
            "runners.agent.journal.write_json": watched(write_json, "note"),
            "runners.agent.journal.delete_tree": watched(delete_tree, "delete"),
            "os.fsync": lambda handle: None,  # who is killed leaves behind what it wrote
            "portal.wake.notify": self.notified.add,
            "portal.jobs.lifecycle.wall_clock": lifecycle.wall_clock,
            "portal.jobs.checkpoints.wall_clock": WallClock(self.clock.time, self.clock.monotonic, 0.0),
        }
        for target, value in new.items():
            self._stack.enter_context(mock.patch(target, value))
        self._stack.enter_context(mock.patch.object(settings, "HOME", self.home))
        self._stack.enter_context(mock.patch.object(settings, "SCHEDULER_PERIOD_SECONDS", PERIOD_SECONDS))
        self._stack.enter_context(mock.patch.object(database, "_commit", lambda: self.points.commit(commit)))
        self._stack.enter_context(connection.execute_wrapper(self.points.statement))

    def _calm(self) -> bool:
        """All have been back for a while since the last kill."""
        return len(self.points.kills) < MOST_KILLS and not any(process.killed for process in self.processes)

    def play(self) -> None:
        before = logging.root.manager.disable
        logging.disable(logging.ERROR)  # of what could not be reached for a while
        try:
            self._play()
        finally:
            logging.disable(before)

    def _play(self) -> None:
        story = self.story(self)
        waits_for: Callable[[], object] | None = self._open
        changes = -1
        for _ in range(MOST_ROUNDS):
            self.clock.seconds += self.chance.choice(STEPS)
            for node in self.nodes.values():
                node.engine.look()
            if waits_for is not None and waits_for():
                waits_for = next(story, None)
            for process in self.chance.sample(self.processes, len(self.processes)):
                process.turn()
            self.judge.watch()
            if changes != self.points.changes:
                changes = self.points.changes
                self.judge.look()
            elif waits_for is None and self._rests():
                for node in self.nodes.values():
                    self.judge.left(node.name, node.tidied())
                self.judge.close()
                return
        states = list(Job.objects.order_by("pk").values_list("name", "state", "waiting_reason"))
        parts = list(Container.objects.filter(collected_at=None).values_list("name", "state", "wanted"))
        busy = [name for name, node in self.nodes.items() if not node.rests]
        self.judge.complain(f"it does not come to rest: {states}, {parts}, busy: {busy}, waits for {waits_for}")

    def _open(self) -> bool:
        ready = NodeRow.objects.filter(ready=True, gpus__isnull=False, environments__state="ready").distinct()
        self.points.counting = ready.count() == len(self.nodes)
        return self.points.counting

    def _rests(self) -> bool:
        return (
            all(node.rests for node in self.nodes.values())
            and not Job.objects.exclude(state__in=FINISHED_STATES).exists()
            and not Container.objects.filter(collected_at=None).exists()
        )

    # --- what stories are made of

    def answered(self, work: Callable[[], object]) -> Callable[[], bool]:
        """Asks the portal until it has answered. What was done although no answer came, is refused as done then."""
        in_vain = False

        def ask() -> bool:
            nonlocal in_vain
            try:
                self.web.answer(work)
            except Away:
                in_vain = True
            except Refused as refused:
                if not (in_vain and refused.code == "conflict"):
                    raise
                return True
            else:
                return True
            return False

        return ask

    def submit(self, key: str, expected: Expected, seconds: float | None = None, **asked: Any) -> Callable[[], bool]:
        """Submit a job that runs for so many seconds, or forever: a command on one GPU, unless ``asked`` differs."""
        code, deaf = asked.pop("code", 0), asked.pop("deaf", "")
        given: dict[str, Any] = {"launcher": "command", "entry": "train", "time_limit_seconds": 3600, **asked}
        given.setdefault("max_gpus", given.get("min_gpus", 1))
        ends = {"FAKE_RUN_SECONDS": "never" if seconds is None else str(seconds), "FAKE_EXIT_CODE": str(code)}
        env = {**ends, "DEAF": deaf, "FAKE_OUTPUT": f"this is {key}\n"}
        wish = Submission(code=self.code, environment=self.environment, env_vars=env, name=key, **given)

        def submit() -> None:
            job = services.submit(self.alice, self.project, wish, idempotency_key=key)
            self.judge.expect(key, job.pk, expected)

        return self.answered(submit)

    def restart(self) -> None:
        """Stop all processes of the product and start them again, as an upgrade does."""
        for process in self.processes:
            process.go_away(1)

    def backup(self) -> str:
        return str(connection.creation.serialize_db_to_string())

    def restore(self, saved: str) -> None:
        """Replace the database by what a backup has, while nodes go on. The portal's processes stop for that."""
        for process in (self.web, self.scheduler):
            process.go_away(self.chance.uniform(0, DOWN_SECONDS))
        call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)
        connection.creation.deserialize_db_from_string(saved)
        with connection.cursor() as cursor:  # pg_restore does so, too
            for statement in connection.ops.sequence_reset_sql(no_style(), apps.get_models(include_auto_created=True)):
                cursor.execute(statement)
        self.points.read_history_again()
        self.judge.forget()

    def act(self, act: Callable[..., object], key: str) -> Callable[[], bool]:
        """Cancel, hold or release."""
        return self.answered(lambda: act(self.alice, Job.objects.get(pk=self.judge.jobs[key])))

    def admin(self, act: Callable[..., object], node: str) -> Callable[[], bool]:
        return self.answered(lambda: act(None, NodeRow.objects.get(pk=self.nodes[node].row.pk)))

    def runs(self, key: str, number: int = 1, hosts: int = 1) -> Callable[[], bool]:
        """So many hosts of this attempt run on engines."""
        return lambda: self.judge.hosts(key, number) == hosts

    def ran(self, key: str) -> Callable[[], bool]:
        """It has begun; it may be over."""
        return lambda: any(run.spec.job == self.judge.jobs[key] for run in self.judge.runs)

    def stopped(self, key: str) -> Callable[[], bool]:
        return lambda: not self.judge.at_work(key)

    def home_of(self, key: str) -> Node:
        """Where it runs, the driver's node first."""
        return self.nodes[self.judge.at_work(key)[0].node]
