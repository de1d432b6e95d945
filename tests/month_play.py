"""What people asked for in the month of tests/month.py, and what ran when: seconds since its start, without a database."""

import heapq
import itertools
import random
from dataclasses import dataclass, field
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
NODES = (("gpu-alpha", 8, 0.0), ("gpu-beta", 8, 0.0), ("gpu-gamma", 4, 0.0), ("gpu-delta", 4, 9.4))
"""Name, GPUs, and the day it joined."""
LOST_NODE, LOST_DAY, LOST_HOURS = 2, 17.6, 5.0
HOUR, DAY = 3600.0, 86_400.0
STOPPING_SECONDS = 15.0
PATIENCE_SECONDS = 4 * HOUR
"""A job that has waited so long is not overtaken any more."""


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
