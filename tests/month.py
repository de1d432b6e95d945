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

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from tests import servers
from tests.month_play import DAY, HOUR, LOST_DAY, LOST_HOURS, LOST_NODE, NODES, PEOPLE, Ask, Lab, Part, Try, asks

PROJECTS = ("Digits from pictures", "Street scenes", "Speech commands", "Dialects", "Sparse optimisers", "Thesis")


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
    servers.analyse()
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
    from portal.environments.models import Environment, NodeEnvironment

    environment, _ = Environment.objects.get_or_create(
        key="pytorch-horovod", defaults={"title": "PyTorch with Horovod", "packages": ["torch", "horovod", "numpy"]}
    )
    for node in nodes:
        NodeEnvironment.objects.get_or_create(node=node, environment=environment, defaults={"state": "ready"})
    return environment


def _config(since: datetime) -> Any:
    from portal.scheduler.models import SchedulerConfig
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
    "lost": ("node_lost", "Its node was lost", "Nothing: it was started again elsewhere."),
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
        action = "Put on hold" if kind == "held" else "Released"
        yield when, kind, f"{action} by {job.owner}.", True, {}
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
            yield attempt.stop_at, "stopping", f"Attempt {number} was asked to stop.", False, data
        if attempt.ended is not None:
            data = {"attempt": number, "outcome": attempt.ends_as}
            yield attempt.ended, "ended", f"Attempt {number} ended: {attempt.ends_as}.", False, data
    if job.finished is not None:
        yield job.finished, "state", f"The job {job.state.lower()}.", False, {"state": job.state}
