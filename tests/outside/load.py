"""People and admins at random, by a seed: jobs of all kinds, and everything that disturbs them."""

import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tests.outside.record import Act, Asked, Poll
from tests.outside.rest import RefusedError, Rest

MOST_WAITING = 14
"""More would only wait; with fewer all GPUs are in use."""
PAUSE_SECONDS = 0.7
DELETE_AFTER = 0.4
"""Part of the time after which one machine leaves the lab."""
KILLS_AT = (0.3, 0.7)
SCHEDULER_AWAY_SECONDS = (1.0, 3.0)
DRAIN_SECONDS = (5.0, 15.0)
EMPTY_SECONDS = 30.0
TIME_LIMIT_SECONDS, SHORT_LIMIT_SECONDS = 600, 10
SETTLED_POLICY = "elastic_fifo"


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    rest: Rest
    project: Mapping[str, int]
    """Of a submission: project and code."""
    premium: bool = False


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The process, as far as it is disturbed."""

    kill: Callable[[], None]
    start: Callable[[], None]


class Load:
    """``act`` does one thing; ``settle`` takes all that is unusual away, so that every job comes to its end."""

    def __init__(
        self,
        seed: int,
        admin: Rest,
        people: list[Person],
        groups: Mapping[str, frozenset[str]],
        scheduler: Scheduler,
        last_poll: Callable[[], Poll | None],
    ) -> None:
        self.chance = random.Random(seed)
        self.admin = admin
        self.people = people
        self.groups = groups
        self.scheduler = scheduler
        self.last_poll = last_poll
        self.acts: list[Act] = []
        self.asked: dict[int, Asked] = {}
        self.owners: dict[int, Person] = {}
        self.held: set[int] = set()
        self.drained: dict[int, float] = {}
        """Nodes by id, and when they take work again."""
        self.gone: set[int] = set()
        self.policies = [(row["key"], row["params"]) for row in admin.get("policies/")]
        self._shuffled: list[int] = []

    # --- what happens when ----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        kills = [part * seconds for part in KILLS_AT]
        while (passed := time.monotonic() - began) < seconds:
            if kills and passed > kills[0]:
                kills.pop(0)
                self.restart_scheduler()
            if passed > DELETE_AFTER * seconds and not self.gone:
                self.delete_node()
            self.act()
            self.resume_nodes()
            time.sleep(self.chance.expovariate(1 / PAUSE_SECONDS))

    def act(self) -> None:
        """One thing; one that the portal refuses, because the world has moved on, has not happened."""
        choices: tuple[tuple[Callable[[], None], int], ...] = (
            (self.submit, 60),
            (self.cancel, 6),
            (self.hold, 4),
            (self.release, 4),
            (self.switch_policy, 8),
            (self.change_limit, 5),
            (self.reserve, 4),
            (self.end_reservation, 2),
            (self.drain, 3),
        )
        (what,) = self.chance.choices([each for each, _ in choices], [weight for _, weight in choices])
        with suppress(RefusedError):
            what()

    def settle(self) -> None:
        for row in self.admin.get("reservations/"):
            with suppress(RefusedError):  # it is over
                self.note("unreserve", partial(self.admin.call, "DELETE", f"reservations/{row['id']}/"))
        self.resume_nodes(all_of_them=True)
        for row in self.admin.pages("limits/"):
            self._limit(row["kind"], row["name"], None, premium=row["premium"])
        for job in sorted(self.held):
            with suppress(RefusedError):  # it has ended
                self.note("release", partial(self.owners[job].rest.call, "POST", f"jobs/{job}/release/"), job=job)
        self._switch(SETTLED_POLICY, {})

    def note(self, what: str, work: Callable[[], Any], **about: Any) -> Any:
        """Do it, and keep what was done if the portal agreed. Raises RefusedError."""
        began = time.time()
        answer = work()
        self.acts.append(Act(what, began, time.time(), **about))
        return answer

    # --- jobs -----------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        poll = self.last_poll()
        if poll is not None and sum(job.waits for job in poll.jobs.values()) >= MOST_WAITING:
            return
        chance, person = self.chance, self.chance.choice(self.people)
        spec, asked = self.draw_job(person.premium)
        spec["name"] = f"{spec['launcher']} {chance.randrange(10_000)}"
        row = person.rest.call("POST", "jobs/", json={**person.project, **spec})
        self.asked[row["id"]], self.owners[row["id"]] = asked, person

    def draw_job(self, may_be_premium: bool) -> tuple[dict[str, Any], Asked]:
        """What to submit, and what is to become of it."""
        chance = self.chance
        launcher, elastic = chance.choice(
            (("command", False), ("torchrun", False), ("torchrun", True), ("horovod", True), ("horovod", False))
        )
        least = chance.choice((1, 1, 2, 2, 3, 4, 5, 6)) if launcher != "command" else chance.randint(1, 4)
        most = min(8, least + chance.choice((0, 1, 2, 4, 6))) if elastic else least
        tiers = ["premium"] * 3 * may_be_premium + ["standard"] * 5 + ["basic"] * 3
        tier = chance.choice(tiers)
        seconds = chance.uniform(4, 22) if chance.random() < 0.9 else chance.uniform(25, 45)
        fails, overruns = chance.random() < 0.08, chance.random() < 0.04
        asked = Asked(
            seconds, exit_code=3 if fails and not overruns else 0, retries=chance.choice((0, 0, 1)), overruns=overruns
        )
        spec = {
            "launcher": launcher,
            "elastic": elastic,
            "entry": "python train.py" if launcher == "command" else "train.py",
            "environment": "pytorch-horovod",
            "min_gpus": least,
            "max_gpus": most,
            "tier": tier,
            "priority": chance.choice((0, 0, 0, 1, -1)),
            "resumable": chance.random() < 0.6,
            "opportunistic": tier != "premium" and chance.random() < 0.12,
            "retries": asked.retries,
            "time_limit_seconds": SHORT_LIMIT_SECONDS if overruns else TIME_LIMIT_SECONDS,
            "env_vars": {
                "FAKE_RUN_SECONDS": "never" if overruns else f"{seconds:.1f}",
                "FAKE_EXIT_CODE": str(asked.exit_code),
            },
        }
        return spec, asked

    def _any_job(self, *states: str) -> int | None:
        poll = self.last_poll()
        jobs = sorted(id for id, job in poll.jobs.items() if job.state in states) if poll else []
        return self.chance.choice(jobs) if jobs else None

    def cancel(self) -> None:
        if (job := self._any_job("QUEUED", "RUNNING", "HELD")) in self.owners and job is not None:
            self.note("cancel", lambda: self.owners[job].rest.call("POST", f"jobs/{job}/cancel/"), job=job)
            self.held.discard(job)

    def hold(self) -> None:
        if (job := self._any_job("QUEUED", "RUNNING")) in self.owners and job is not None:
            self.note("hold", lambda: self.owners[job].rest.call("POST", f"jobs/{job}/hold/"), job=job)
            self.held.add(job)

    def release(self) -> None:
        if self.held:
            job = self.chance.choice(sorted(self.held))
            self.held.discard(job)
            self.note("release", lambda: self.owners[job].rest.call("POST", f"jobs/{job}/release/"), job=job)

    # --- admins ---------------------------------------------------------------------------------------------------

    def switch_policy(self) -> None:
        """All policies in a random order, then all in another one."""
        if not self._shuffled:
            self._shuffled = list(range(len(self.policies)))
            self.chance.shuffle(self._shuffled)
        key, params = self.policies[self._shuffled.pop()]
        switches = [row for row in params if row["kind"] == "yes or no" and self.chance.random() < 0.3]
        self._switch(key, {row["name"]: not row["default"] for row in switches})

    def _switch(self, key: str, params: Mapping[str, Any]) -> None:
        began = time.time()
        row = self.admin.call("PUT", "policy/", json={"policy": key, "params": dict(params)})
        text = f"{row['policy']} {json.dumps(row['params'], sort_keys=True)}"
        self.acts.append(Act("policy", began, time.time(), text=text))

    def change_limit(self) -> None:
        if self.chance.random() < 0.3:
            self._limit("group", self.chance.choice(sorted(self.groups)), self.chance.choice((None, 8, 12, 14)))
        else:
            person = self.chance.choice(self.people)
            self._limit("user", person.name, self.chance.choice((None, 4, 6, 8, 10)), premium=person.premium)

    def _limit(self, kind: str, name: str, gpus: int | None, premium: bool = False) -> None:
        who = f"group {name}" if kind == "group" else name
        body = {"max_gpus": gpus, "premium": premium}
        self.note("limit", lambda: self.admin.call("PUT", f"limits/{kind}s/{name}/", json=body), who=who, value=gpus)

    def reserve(self) -> None:
        node = self._any_node()
        if node is None:
            return
        starts = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(2, 8))
        ends = starts + timedelta(seconds=self.chance.uniform(8, 30))
        body = {
            "name": f"Course {self.chance.randrange(1000)}",
            "node": node[1],
            "gpus": self.chance.randint(1, 3),
            "start": starts.isoformat(),
            "end": ends.isoformat(),
            "users": [self.chance.choice(self.people).name],
        }
        self.note("reserve", lambda: self.admin.call("POST", "reservations/", json=body), node=node[1])

    def end_reservation(self) -> None:
        rows = self.admin.get("reservations/")
        if rows:
            row = self.chance.choice(rows)
            self.note("unreserve", lambda: self.admin.call("DELETE", f"reservations/{row['id']}/"), node=row["node"])

    def _any_node(self) -> tuple[int, str] | None:
        poll = self.last_poll()
        nodes = [(node.id, node.name) for node in poll.nodes if node.open] if poll else []
        return self.chance.choice(nodes) if len(nodes) > 2 else None

    def drain(self) -> None:
        if (node := self._any_node()) is not None and not self.drained:
            self.note("drain", lambda: self.admin.call("POST", f"nodes/{node[0]}/drain/"), node=node[1])
            self.drained[node[0]] = time.monotonic() + self.chance.uniform(*DRAIN_SECONDS)

    def resume_nodes(self, all_of_them: bool = False) -> None:
        for node, due in list(self.drained.items()):
            if all_of_them or time.monotonic() > due:
                del self.drained[node]
                self.note("resume", partial(self.admin.call, "POST", f"nodes/{node}/resume/"))

    def delete_node(self) -> None:
        """Drain one, and remove it as soon as it is empty."""
        node = self._any_node()
        if node is None or self.drained:
            return
        self.gone.add(node[0])
        self.note("drain", lambda: self.admin.call("POST", f"nodes/{node[0]}/drain/"), node=node[1])
        until = time.monotonic() + EMPTY_SECONDS
        while time.monotonic() < until:
            try:
                self.note("delete", lambda: self.admin.call("DELETE", f"nodes/{node[0]}/"), node=node[1])
                return
            except RefusedError:
                self.act()
                time.sleep(0.3)
        self.drained[node[0]] = 0.0  # it takes work again

    def restart_scheduler(self) -> None:
        self.note("kill", self.scheduler.kill)
        time.sleep(self.chance.uniform(*SCHEDULER_AWAY_SECONDS))
        self.note("restart", self.scheduler.start)
