"""A lab's last month, made up: people, groups, projects and some thousand jobs with their attempts.

    from tests import month
    made = month.make()                  # a month that ends now; the same for the same ``now`` and ``seed``
    made = month.make(live=False)        # without what still waits or runs, so that no scheduler has work
    made = month.make(rolled=False)      # without the daily sums of portal.usage: a second faster

A small simulation (first come, first served, with skipping; priorities preempt; elastic jobs grow and give back; a node
is lost for some hours and one joins late) decides what ran when, so no GPU is held twice and waiting times follow from
load. Rows are written with ``bulk_create``: about 1,200 jobs in two seconds. Everybody's password is ``PASSWORD`` of
tests.seed; alice is an admin. Names that exist already are used, so it can follow ``tests.seed.main()``.

Jobs that run at ``now`` have no agent behind them: start a scheduler only after the nodes' ``last_seen_at`` is cared for.
"""

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any

PEOPLE = {
    # name: (group, projects, how busy, usual sizes)
    "alice": ("vision", (0, 1), 3.0, (1, 2, 4)),
    "bob": ("vision", (0,), 2.0, (1, 1, 2)),
    "dana": ("vision", (1,), 4.0, (2, 4, 8)),
    "emil": ("vision", (0, 1), 0.7, (1,)),
    "carol": ("speech", (2,), 3.0, (1, 2, 4)),
    "frank": ("speech", (2, 3), 1.5, (1, 4)),
    "grace": ("speech", (3,), 2.5, (1, 2, 8)),
    "heidi": ("theory", (4,), 1.2, (1, 1, 1, 2)),
    "ivan": ("theory", (4,), 0.4, (1,)),
    "charlie": ("", (5,), 0.8, (1, 2)),
}
PROJECTS = ("Digits from pictures", "Street scenes", "Speech commands", "Dialects", "Sparse optimisers", "Thesis")
NODES = (("gpu-alpha", 8, 0.0), ("gpu-beta", 8, 0.0), ("gpu-gamma", 4, 0.0), ("gpu-delta", 4, 9.4))
"""Name, GPUs, and the day it joined."""
LOST_NODE, LOST_DAY, LOST_HOURS = 2, 17.6, 5.0
HOUR, DAY = 3600.0, 86_400.0
STOPPING_SECONDS = 15.0
PATIENCE_SECONDS = 4 * HOUR
"""A job that has waited so long is not overtaken any more."""


@dataclass
class Month:
    """What was made."""

    start: datetime
    now: datetime
    users: dict[str, Any]
    groups: dict[str, Any]
    projects: list[Any]
    nodes: list[Any]
    jobs: list[Any]
    """Oldest first."""
    running: list[Any]
    queued: list[Any]


# --- what ran when: seconds since the start ------------------------------------------------------------------------


@dataclass
class Part:
    """A container with its GPUs."""

    node: int
    gpus: list[int]
    since: float
    asked_back: float | None = None
    until: float | None = None


@dataclass
class Try:
    """An attempt."""

    placed: float
    started: float
    parts: list[Part]
    ends_as: str = ""
    stop: str = ""
    stop_at: float | None = None
    ended: float | None = None
    version: int = 0
    counted: float = 0.0
    """Until when its work is counted."""
    resizes: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def live(self) -> list[Part]:
        return [part for part in self.parts if part.until is None and part.asked_back is None]

    @property
    def gpus(self) -> int:
        return sum(len(part.gpus) for part in self.live)


@dataclass
class Ask:
    """A job."""

    number: int
    owner: str
    project: int
    submitted: float
    least: int
    most: int
    work: float
    """GPU-seconds."""
    priority: int
    fails: tuple[float, ...]
    """At which part of the work each attempt fails; 1 if it does not."""
    retries: int
    cancel_at: float | None
    hold: tuple[float, float] | None
    done: float = 0.0
    tries: list[Try] = field(default_factory=list)
    finished: float | None = None
    state: str = "QUEUED"
    held: list[tuple[float, str]] = field(default_factory=list)
    """When it was put on hold, and released."""

    @property
    def elastic(self) -> bool:
        return self.most > self.least


def asks(rng: random.Random, days: int, count: int) -> list[Ask]:
    """What people submit: by day at work, less on weekends and at night, some in bursts."""
    names = list(PEOPLE)
    busy = [PEOPLE[name][2] for name in names]
    hours = [0.3] * 7 + [0.6, 1.5, 2.5, 2.5, 2.0, 1.5, 2.0, 2.5, 2.5, 2.5, 3.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4]
    made: list[Ask] = []
    while len(made) < count:
        owner = rng.choices(names, busy)[0]
        _, projects, _, sizes = PEOPLE[owner]
        day = rng.randrange(days + 1)
        if day % 7 in (5, 6) and rng.random() < 0.6:
            continue
        at = day * DAY + rng.choices(range(24), hours)[0] * HOUR + rng.random() * HOUR
        burst = rng.randint(4, 9) if rng.random() < 0.06 else 1
        size = rng.choice(sizes)
        for _ in range(burst):
            at += rng.random() * 120
            elastic = size >= 2 and rng.random() < 0.35
            seconds = min(30 * HOUR, max(90.0, rng.lognormvariate(8.6, 1.25)))
            fate = rng.random()
            fails = (
                (rng.uniform(0.02, 0.9), 1.0 if rng.random() < 0.4 else rng.uniform(0.02, 0.9)) if fate < 0.14 else ()
            )
            made.append(
                Ask(
                    number=len(made),
                    owner=owner,
                    project=rng.choice(projects),
                    submitted=at,
                    least=max(1, size // 2) if elastic else size,
                    most=size * 2 if elastic and size < 8 else size,
                    work=seconds * size,
                    priority=5 if rng.random() < 0.04 else 0,
                    fails=fails,
                    retries=1 if fate < 0.05 else 0,
                    cancel_at=at + rng.expovariate(1 / (2 * HOUR)) if rng.random() < 0.06 else None,
                    hold=(at + 60, at + rng.uniform(1, 8) * HOUR) if rng.random() < 0.03 else None,
                )
            )
    return sorted(made[:count], key=lambda ask: ask.submitted)


class Lab:
    """Plays the month until ``end``."""

    def __init__(self, jobs: list[Ask], end: float, rng: random.Random) -> None:
        self.end, self.rng, self.now = end, rng, 0.0
        self.free: list[set[int]] = [set(range(gpus)) if joined == 0 else set() for _, gpus, joined in NODES]
        self.up = [joined == 0 for _, _, joined in NODES]
        self.waiting: list[Ask] = []
        self.running: list[Ask] = []
        self._ties = itertools.count()
        self._events: list[tuple[float, int, str, Any]] = []
        for job in jobs:
            self._at(job.submitted, "submit", job)
            if job.cancel_at:
                self._at(job.cancel_at, "cancel", job)
            if job.hold:
                self._at(job.hold[0], "hold", job)
                self._at(job.hold[1], "release", job)
        for node, (_, _, joined) in enumerate(NODES):
            if joined:
                self._at(joined * DAY, "join", node)
        self._at(LOST_DAY * DAY, "lose", LOST_NODE)
        self._at(LOST_DAY * DAY + LOST_HOURS * HOUR, "join", LOST_NODE)

    def _at(self, when: float, what: str, about: Any) -> None:
        if when <= self.end:
            heapq.heappush(self._events, (when, next(self._ties), what, about))

    def play(self) -> None:
        while self._events:
            self.now, _, what, about = heapq.heappop(self._events)
            getattr(self, f"on_{what}")(about)
            self.schedule()

    def on_submit(self, job: Ask) -> None:
        self.waiting.append(job)

    def on_cancel(self, job: Ask) -> None:
        if job.state == "RUNNING":
            self.stop(job, "cancelled", "cancelled")
        elif job.state in ("QUEUED", "HELD"):
            self.waiting = [other for other in self.waiting if other is not job]
            job.state, job.finished = "CANCELLED", self.now

    def on_hold(self, job: Ask) -> None:
        if job.state == "QUEUED" and not job.tries:
            self.waiting.remove(job)
            job.state = "HELD"
            job.held.append((self.now, "held"))

    def on_release(self, job: Ask) -> None:
        if job.state == "HELD":
            job.state = "QUEUED"
            job.held.append((self.now, "released"))
            self.waiting.append(job)

    def on_join(self, node: int) -> None:
        self.up[node] = True
        self.free[node] = set(range(NODES[node][1]))

    def on_lose(self, node: int) -> None:
        self.up[node] = False
        for job in list(self.running):
            if any(part.node == node and part.until is None for part in job.tries[-1].parts):
                self.end_try(job, "lost")
        self.free[node] = set()

    def on_ends(self, about: tuple[Ask, int]) -> None:
        job, version = about
        if job.state == "RUNNING" and job.tries[-1].version == version and not job.tries[-1].stop:
            self.end_try(job, job.tries[-1].ends_as)

    def on_stopped(self, about: tuple[Ask, Try]) -> None:
        job, attempt = about
        if attempt.ended is None:
            self.end_try(job, attempt.ends_as)

    def on_given_back(self, about: tuple[Ask, Part]) -> None:
        part = about[1]
        if part.until is None:
            self.close(part)

    # --- what the scheduler would do

    def schedule(self) -> None:
        self.waiting.sort(key=lambda job: (-job.priority, job.submitted, job.number))
        for job in list(self.waiting):
            if self.place(job):
                continue
            if job.priority and self.make_room(job):
                break
            if self.now - job.submitted > PATIENCE_SECONDS:
                break
        if self.waiting:
            self.shrink()
        else:
            self.grow()

    def place(self, job: Ask) -> bool:
        fitting = [node for node, free in enumerate(self.free) if self.up[node] and len(free) >= job.least]
        if not fitting:
            return False
        node = min(fitting, key=lambda node: (len(self.free[node]) - job.least, node))
        self.waiting.remove(job)
        self.running.append(job)
        job.state = "RUNNING"
        started = self.now + self.rng.uniform(15, 90)
        attempt = Try(self.now, started, [self.open(node, job.least)], counted=started)
        job.tries.append(attempt)
        for _ in range(min(job.most - job.least, len(self.free[node])) if not self.waiting else 0):
            attempt.parts.append(self.open(node, 1))
        self.plan_end(job)
        return True

    def make_room(self, job: Ask) -> bool:
        """Stops what started last on the node where that is enough."""
        for node, free in enumerate(self.free):
            victims = [
                other
                for other in self.running
                if other.priority < job.priority
                and not other.tries[-1].stop
                and {part.node for part in other.tries[-1].live} == {node}
            ]
            victims.sort(key=lambda other: -other.tries[-1].placed)
            chosen, room = [], len(free)
            while victims and room < job.least:
                chosen.append(victims.pop(0))
                room += chosen[-1].tries[-1].gpus
            if chosen and room >= job.least and self.up[node]:
                for other in chosen:
                    self.stop(other, "preempted", "preempted")
                return True
        return False

    def shrink(self) -> None:
        """Takes back what elastic jobs have beyond their least, one GPU a turn."""
        for job in self.running:
            attempt = job.tries[-1]
            if job.elastic and attempt.gpus > job.least and not attempt.stop:
                self.count(job)
                part = attempt.live[-1]
                part.asked_back = self.now
                attempt.resizes.append((self.now, attempt.gpus + 1, attempt.gpus))
                self._at(self.now + STOPPING_SECONDS, "given_back", (job, part))
                self.plan_end(job)
                return

    def grow(self) -> None:
        for job in self.running:
            attempt = job.tries[-1]
            if not job.elastic or attempt.gpus >= job.most or attempt.stop or self.now < attempt.started + 600:
                continue
            node = attempt.parts[0].node
            if self.free[node]:
                self.count(job)
                before = attempt.gpus
                for _ in range(min(job.most - before, len(self.free[node]))):
                    attempt.parts.append(self.open(node, 1))
                attempt.resizes.append((self.now, before, attempt.gpus))
                self.plan_end(job)

    # --- what follows

    def open(self, node: int, count: int) -> Part:
        gpus = sorted(self.free[node])[:count]
        self.free[node] -= set(gpus)
        return Part(node, gpus, self.now)

    def close(self, part: Part) -> None:
        part.until = self.now
        if self.up[part.node]:
            self.free[part.node] |= set(part.gpus)

    def count(self, job: Ask) -> None:
        """Adds the work done since last time."""
        attempt = job.tries[-1]
        if self.now > attempt.counted:
            job.done += (self.now - attempt.counted) * attempt.gpus
            attempt.counted = self.now

    def plan_end(self, job: Ask) -> None:
        attempt = job.tries[-1]
        number = sum(try_.ends_as == "failed" for try_ in job.tries[:-1])
        until = job.fails[number] if number < len(job.fails) else 1.0
        attempt.ends_as = "failed" if until < 1 else "succeeded"
        attempt.version += 1
        left = max(1.0, until * job.work - job.done) / max(1, attempt.gpus)
        self._at(max(self.now, attempt.counted) + left, "ends", (job, attempt.version))

    def stop(self, job: Ask, reason: str, outcome: str) -> None:
        attempt = job.tries[-1]
        if attempt.stop:
            return
        self.count(job)
        attempt.stop, attempt.stop_at, attempt.ends_as = reason, self.now, outcome
        self._at(self.now + STOPPING_SECONDS, "stopped", (job, attempt))

    def end_try(self, job: Ask, outcome: str) -> None:
        self.count(job)
        attempt = job.tries[-1]
        attempt.ended, attempt.ends_as = self.now, outcome
        for part in attempt.parts:
            if part.until is None:
                self.close(part)
        self.running.remove(job)
        failures = sum(try_.ends_as == "failed" for try_ in job.tries)
        if outcome == "succeeded":
            job.state, job.finished = "SUCCEEDED", self.now
        elif outcome == "cancelled":
            job.state, job.finished = "CANCELLED", self.now
        elif outcome == "failed" and failures > job.retries:
            job.state, job.finished = "FAILED", self.now
        else:
            job.state = "QUEUED"
            job.done *= 0.6 if outcome == "preempted" else 0.0
            self.waiting.append(job)


# --- rows ----------------------------------------------------------------------------------------------------------


def make(
    now: datetime | None = None,
    *,
    days: int = 30,
    seed: int = 3,
    count: int = 1200,
    live: bool = True,
    rolled: bool = True,
) -> Month:
    from django.utils import timezone

    from portal.cluster.models import Gpu
    from portal.jobs.models import Job

    now = now or timezone.now()
    start = (now - timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0)
    rng = random.Random(seed)
    jobs = asks(rng, days, count)
    end = (now - start).total_seconds()
    jobs = [job for job in jobs if job.submitted < end]
    Lab(jobs, end, rng).play()
    if not live:
        jobs = [job for job in jobs if job.finished is not None]

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=round(seconds, 3))

    users, groups = _people(at(-10 * DAY))
    projects, codes = _projects(users, at(-9 * DAY))
    nodes = _nodes(now, at)
    gpus = {(gpu.node_id, gpu.index): gpu for gpu in Gpu.objects.filter(node__in=nodes)}
    environment = _environment(nodes)
    config = _config(at(-1 * DAY))
    rows = Job.objects.bulk_create([_job(job, users, groups, projects, codes, environment, at) for job in jobs])
    _attempts(jobs, rows, nodes, gpus, f"{config.policy} v{config.pk}", at)
    _events(jobs, rows, f"{config.policy} v{config.pk}", at)
    _offers(nodes, gpus, at, now)
    if rolled:
        from portal.usage.rollups import roll_up

        roll_up(now)
    running = [row for row, job in zip(rows, jobs, strict=True) if job.state == "RUNNING"]
    queued = [row for row, job in zip(rows, jobs, strict=True) if job.state == "QUEUED"]
    return Month(start, now, users, groups, projects, nodes, rows, running, queued)


@cache
def _password() -> str:
    from django.contrib.auth.hashers import make_password

    from tests.seed import PASSWORD

    return make_password(PASSWORD)


def _people(since: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    from django.contrib.auth.models import Group

    from portal.accounts.models import User

    groups = {name: Group.objects.get_or_create(name=name)[0] for name in ("vision", "speech", "theory")}
    users = {}
    for name, (group, *_) in PEOPLE.items():
        fields = {"email": f"{name}@lab.example", "password": _password(), "is_staff": name == "alice"}
        users[name], _ = User.objects.get_or_create(username=name, defaults={**fields, "date_joined": since})
        if group:
            users[name].groups.add(groups[group])
    return users, groups


def _projects(users: dict[str, Any], since: datetime) -> tuple[list[Any], list[Any]]:
    from portal.projects.models import CodeVersion, Membership, Project

    projects, codes = [], []
    for number, name in enumerate(PROJECTS):
        members = [users[who] for who, (_, theirs, *_) in PEOPLE.items() if number in theirs]
        project = Project.objects.create(name=name, created_by=members[0], created_at=since)
        Membership.objects.bulk_create(
            Membership(project=project, user=user, role="owner" if user is members[0] else "member", since=since)
            for user in members
        )
        projects.append(project)
        codes.append(
            CodeVersion.objects.create(
                project=project,
                number=1,
                sha256=f"{number:064x}",
                size=10,
                files=[{"path": "train.py", "size": 10, "sha256": "f" * 64}],
                upload_name="train.zip",
                created_by=members[0],
                created_at=since,
            )
        )
    return projects, codes


def _nodes(now: datetime, at: Any) -> list[Any]:
    from portal.cluster.models import Gpu, Node

    nodes = []
    for name, gpus, joined in NODES:
        since = at(joined * DAY)
        node, new = Node.objects.get_or_create(
            name=name,
            defaults={
                "runtime": "docker",
                "token_digest": f"month-{name}",
                "created_at": since,
                "approved_at": since,
                "last_seen_at": now,
                "ready": True,
                "facts": {"cpus": 32, "memory_mib": 262_144},
            },
        )
        if not new:
            Node.objects.filter(pk=node.pk).update(approved_at=since)
        Gpu.objects.bulk_create(
            Gpu(node=node, uuid=f"{name}-gpu{index}", index=index, kind="cuda", model="NVIDIA A40", memory_mib=46_068)
            for index in range(node.gpus.count(), gpus)
        )
        nodes.append(node)
    return nodes


def _offers(nodes: list[Any], gpus: dict[Any, Any], at: Any, now: datetime) -> None:
    """When each node offered its GPUs."""
    from portal.usage.models import CapacitySpell

    gone, back = at(LOST_DAY * DAY), at(LOST_DAY * DAY + LOST_HOURS * HOUR)
    for number, node in enumerate(nodes):
        since = at(NODES[number][2] * DAY)
        spans = [(since, gone), (back, None)] if number == LOST_NODE and gone < now else [(since, None)]
        CapacitySpell.objects.bulk_create(
            CapacitySpell(gpu=gpus[node.pk, index], since=first, until=last)
            for index in range(NODES[number][1])
            for first, last in spans
            if first < now
        )


def _environment(nodes: list[Any]) -> Any:
    from portal.cluster.models import Environment, NodeEnvironment

    environment, _ = Environment.objects.get_or_create(
        key="pytorch-horovod", defaults={"title": "PyTorch with Horovod", "packages": ["torch", "horovod", "numpy"]}
    )
    for node in nodes:
        NodeEnvironment.objects.get_or_create(node=node, environment=environment, defaults={"state": "ready"})
    return environment


def _config(since: datetime) -> Any:
    from portal.control.models import SchedulerConfig
    from scheduling import registry

    return SchedulerConfig.objects.create(policy="fifo", params=registry.complete("fifo", {}), created_at=since)


def _job(
    job: Ask,
    users: dict[str, Any],
    groups: dict[str, Any],
    projects: list[Any],
    codes: list[Any],
    environment: Any,
    at: Any,
) -> Any:
    from portal.jobs.models import Job

    started = [attempt.started for attempt in job.tries if _has_run(attempt)]
    waits = job.state == "QUEUED"
    return Job(
        project=projects[job.project],
        code=codes[job.project],
        environment=environment,
        submitted_by=users[job.owner],
        group=groups.get(PEOPLE[job.owner][0]),
        submitted_at=at(job.submitted),
        name=f"run {job.number + 1}",
        launcher="horovod" if job.elastic else "torchrun" if job.most > 1 else "command",
        elastic=job.elastic,
        entry="train.py" if job.most > 1 else "python train.py",
        min_gpus=job.least,
        max_gpus=job.most,
        time_limit_seconds=48 * 3600,
        retries=job.retries,
        resumable=job.elastic,
        priority=job.priority,
        intent={"CANCELLED": "cancel", "HELD": "hold"}.get(job.state, "run"),
        state=job.state,
        started_at=at(min(started)) if started else None,
        finished_at=at(job.finished) if job.finished is not None else None,
        waiting_reason=f"It needs {job.least} GPUs at once; jobs ahead of it hold them." if waits else "",
    )


def _has_run(attempt: Try) -> bool:
    ends = [moment for moment in (attempt.stop_at, attempt.ended) if moment is not None]
    return attempt.started < min(ends, default=float("inf"))


CAUSES = {
    "failed": ("out_of_memory", "The GPU's memory was full", "Take a smaller batch, or more GPUs."),
    "lost": ("node_lost", "Its node was lost", "Nothing to do: it was started again elsewhere."),
}
EXITS = {
    "succeeded": (0, "exited"),
    "failed": (1, "exited"),
    "lost": (None, "lost"),
    "preempted": (0, "stopped"),
    "cancelled": (0, "stopped"),
}


def _attempts(jobs: list[Ask], rows: list[Any], nodes: list[Any], gpus: dict[Any, Any], policy: str, at: Any) -> None:
    from portal.jobs.models import Allocation, Attempt, Container

    tries = [
        (row, number, attempt)
        for row, job in zip(rows, jobs, strict=True)
        for number, attempt in enumerate(job.tries, 1)
    ]
    made = Attempt.objects.bulk_create(
        Attempt(
            job=row,
            number=number,
            created_at=at(attempt.placed),
            started_at=at(attempt.started) if _has_run(attempt) else None,
            ended_at=at(attempt.ended) if attempt.ended is not None else None,
            wanted="stop" if attempt.stop else "run",
            stop_reason=attempt.stop,
            outcome=attempt.ends_as if attempt.ended is not None else "",
            cause=_cause(attempt),
            secret="s" * 64,
            policy=policy,
        )
        for row, number, attempt in tries
    )
    parts = [
        (row, number, attempt, index, part, made[place])
        for place, (row, number, attempt) in enumerate(tries)
        for index, part in enumerate(attempt.parts, 1 if row.elastic else 0)
    ]
    drivers = [
        _container(row, number, attempt, 0, None, made[place], nodes, at)
        for place, (row, number, attempt) in enumerate(tries)
        if row.elastic
    ]
    Container.objects.bulk_create(drivers)
    hosts = Container.objects.bulk_create(
        _container(row, number, attempt, index, part, mine, nodes, at)
        for row, number, attempt, index, part, mine in parts
    )
    Allocation.objects.bulk_create(
        Allocation(
            gpu=gpus[nodes[part.node].pk, index],
            attempt=mine,
            container=host,
            allocated_at=at(part.since),
            requested_back_at=at(part.asked_back) if part.asked_back is not None else None,
            released_at=at(part.until) if part.until is not None else None,
        )
        for (_, _, _, _, part, mine), host in zip(parts, hosts, strict=True)
        for index in part.gpus
    )


def _cause(attempt: Try) -> dict[str, str]:
    if attempt.ended is None or attempt.ends_as not in CAUSES:
        return {}
    code, title, advice = CAUSES[attempt.ends_as]
    return {"code": code, "title": title, "detail": "", "advice": advice}


def _container(
    row: Any, number: int, attempt: Try, index: int, part: Part | None, mine: Any, nodes: list[Any], at: Any
) -> Any:
    from portal.jobs.models import Container

    where = part or attempt.parts[0]
    since = where.since if part else attempt.placed
    until = where.until if part else attempt.ended
    running = attempt.started if since == attempt.placed else since + 20
    stop_at = attempt.stop_at if where.asked_back is None or part is None else where.asked_back
    runs = running < min(x for x in (until, stop_at, float("inf")) if x is not None)
    code, reason = EXITS[attempt.ends_as] if part is None or part.asked_back is None else (0, "stopped")
    state = "EXITED" if until is not None else "RUNNING" if runs else "STOPPING" if stop_at else "ASSIGNED"
    name = f"sl-{row.pk}-a{number}-{index}"
    return Container(
        attempt=mine,
        node=nodes[where.node],
        index=index,
        role="host" if part else "driver",
        name=name,
        spec={"name": name, "job": row.pk, "number": number, "slots": len(part.gpus) if part else 0},
        assigned_at=at(since),
        wanted="stop" if stop_at is not None else "run",
        stop_reason=(attempt.stop or "preempted") if stop_at is not None else "",
        stop_requested_at=at(stop_at) if stop_at is not None else None,
        state=state,
        state_since=at(until if until is not None else running if runs else since),
        running_at=at(running) if runs else None,
        exited_at=at(until) if until is not None else None,
        exit_code=code if until is not None else None,
        exit_reason=reason if until is not None else "",
        collected_at=at(until + 5) if until is not None else None,
    )


def _events(jobs: list[Ask], rows: list[Any], policy: str, at: Any) -> None:
    from portal.jobs.models import JobEvent

    JobEvent.objects.bulk_create(
        JobEvent(
            job=row, seq=seq, at=at(when), kind=kind, text=text, actor=row.submitted_by if own else None, data=data
        )
        for row, job in zip(rows, jobs, strict=True)
        for seq, (when, kind, text, own, data) in enumerate(sorted(_story(job, policy), key=lambda line: line[0]), 1)
    )


def _story(job: Ask, policy: str) -> Iterator[tuple[float, str, str, bool, dict[str, Any]]]:
    yield job.submitted, "submitted", f"Submitted by {job.owner}.", True, {}
    for when, kind in job.held:
        said = "Put on hold" if kind == "held" else "Released"
        yield when, kind, f"{said} by {job.owner}.", True, {}
    for number, attempt in enumerate(job.tries, 1):
        where = NODES[attempt.parts[0].node][0]
        yield (
            attempt.placed,
            "placed",
            f"Attempt {number} was placed on {where} by {policy}.",
            False,
            {"attempt": number},
        )
        if _has_run(attempt):
            yield attempt.started, "started", f"Attempt {number} started.", False, {}
        for when, before, after in attempt.resizes:
            yield when, "resized", f"{before} -> {after} GPUs", False, {"before": before, "after": after}
        if attempt.stop_at is not None:
            data = {"attempt": number, "reason": attempt.stop}
            yield attempt.stop_at, "stopping", f"Attempt {number} is told to stop.", False, data
        if attempt.ended is not None:
            data = {"attempt": number, "outcome": attempt.ends_as}
            yield attempt.ended, "ended", f"Attempt {number} ended: {attempt.ends_as}.", False, data
    if job.finished is not None:
        yield job.finished, "state", f"The job {job.state.lower()}.", False, {"state": job.state}
