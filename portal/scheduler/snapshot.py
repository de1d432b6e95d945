"""Rows to ``Snapshot``: what a policy may know, read in a handful of queries whatever the number of jobs."""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, Self, cast

from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import Q
from django.utils import timezone

from portal.accounts.limits import LimitInForce, limits_in_force
from portal.accounts.models import User
from portal.cluster import reservations
from portal.cluster.models import Environment
from portal.jobs.metrics import seconds_left
from portal.jobs.models import Job, Progress
from portal.scheduler.availability import Availability, availability_of, largest_node, read_nodes, why_nowhere
from portal.scheduler.holdings import Holding, PastUse, active_jobs, read_holdings, read_past
from portal.scheduler.job_history import USAGE_DAYS, HeldGpus, History, RuntimeSample, Script, speed_on
from portal.scheduler.throughput import Speeds
from scheduling import types


def take(
    now: datetime | None = None, state: Mapping[str, Any] | None = None, history: History | None = None
) -> types.Snapshot:
    """The world at ``now``. ``state`` is what the policy kept of its last plan.

    ``history`` is one that was used before: with it, only what came since is read.
    """
    now = now or timezone.now()
    history = history or History()
    history.refresh(now)
    nodes = read_nodes(now)
    rows = [Row.of(values) for values in active_jobs().values_list(*Row._fields)]
    holdings, held, leaving = read_holdings({row.id: row.intent for row in rows})
    past = read_past(now)
    names = _Names.read(rows)
    available = {key: availability_of(nodes, key) for key in {row.environment_id for row in rows}}
    titles = dict(Environment.objects.filter(pk__in=available).values_list("pk", "title"))
    limits = limits_in_force()
    programs = _ProgramCatalogue(history, max(nodes.gpus.values(), default=1))
    goals = _read_goals({*holdings, *past})
    blocked = {
        (size, key): why_nowhere(size, key, titles.get(key, "?"), nodes, available[key].ready)
        for size, key in {(row.min_gpus, row.environment_id) for row in rows}
    }
    free = {str(pk): nodes.gpus.get(pk, 0) - held[pk] for pk in nodes.open}
    jobs, new_jobs = [], dict[int, tuple[Hashable, types.Job]]()
    for row in rows:
        holding, had = holdings.get(row.id), past.get(row.id)
        reach = _reach(row, holding, available[row.environment_id], free)
        why = blocked[row.min_gpus, row.environment_id]
        facts = JobFacts(row, reach, why, names.group_of(row), programs.program(row))
        if holding is None and had is None:
            before = history.new_jobs.get(row.id)
            new_jobs[row.id] = before if before and before[0] == facts else (facts, _job(facts))
            jobs.append(new_jobs[row.id][1])
        else:
            jobs.append(_job(facts, holding, had or PastUse(), goals.get(row.id)))
    history.new_jobs = new_jobs
    return types.Snapshot(
        now=now.timestamp(),
        nodes=tuple(
            types.Node(
                id=str(node.pk),
                name=node.name,
                total=nodes.gpus.get(node.pk, 0),
                free=nodes.gpus.get(node.pk, 0) - held[node.pk],
                leaving=leaving[node.pk],
                open=node.pk in nodes.open,
                kind=nodes.kinds.get(node.pk, ""),
            )
            for node in nodes.rows
        ),
        jobs=tuple(jobs),
        limits=tuple(_limits(rows, holdings, limits)),
        accounts=tuple(_accounts(rows, holdings, limits, names, history, now.timestamp())),
        state=state or {},
        reservations=tuple(_reservations(now)),
        patience_seconds=settings.PATIENCE_HOURS * 3600.0,
        damping_seconds=float(settings.DAMPING_SECONDS),
    )


def of_the_past(rows: list["Row"], since: datetime, history: History) -> types.Snapshot:
    """Jobs of any time as a policy sees them when they come, before anything of them has run: for simulations.

    Limits, weights and what is known of programs are those of now, reservations all that were on since ``since``,
    what accounts have used is as of then. There are no nodes, and no job is tied to any.
    """
    history.refresh(since)
    names, limits, programs = _Names.read(rows), limits_in_force(), _ProgramCatalogue(history, largest_node())
    return types.Snapshot(
        now=since.timestamp(),
        nodes=(),
        jobs=tuple(
            _job(JobFacts(row, NodeReachability(None, _is_ring(row)), "", names.group_of(row), programs.program(row)))
            for row in rows
        ),
        limits=tuple(_limits(rows, {}, limits)),
        accounts=tuple(_accounts(rows, {}, limits, names, history, since.timestamp())),
        reservations=tuple(_reservations(since)),
    )


class Row(NamedTuple):
    """What is read of a job. Model instances of a thousand jobs would take longer than all the queries."""

    id: int
    arguments: tuple[str, ...]
    deadline: datetime | None
    elastic: bool
    entry: str
    environment_id: int
    group_id: int | None
    intent: str
    launcher: str
    max_gpus: int
    min_gpus: int
    opportunistic: bool
    priority: int
    project_id: int
    resumable: bool
    submitted_at: datetime
    submitted_by_id: int
    tier: str
    time_limit_seconds: int

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        return cls(values[0], tuple(values[1]), *values[2:])


class NodeReachability(NamedTuple):
    """Where a job may get GPUs: of these nodes (None: of all), and whether of several at once."""

    nodes: frozenset[str] | None
    spread: bool


class Program(NamedTuple):
    """What is facts of a job's program."""

    name: str
    """For policies: equal for equal ones."""
    speeds: Speeds
    like: RuntimeSample
    restart_seconds: float
    resize_seconds: float


class JobFacts(NamedTuple):
    """What a policy knows of a job that never had a GPU follows from this alone."""

    row: Row
    reach: NodeReachability
    blocked: str
    group: str
    program: Program


# --- jobs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Names:
    people: Mapping[int, str]
    groups: Mapping[int, str]
    """As a limit's name has it: ``group vision``."""

    @classmethod
    def read(cls, rows: Iterable[Row]) -> Self:
        people = User.objects.filter(pk__in={row.submitted_by_id for row in rows})
        groups = Group.objects.filter(pk__in={row.group_id for row in rows if row.group_id})
        return cls(
            dict(people.values_list("pk", "username")),
            {pk: f"group {name}" for pk, name in groups.values_list("pk", "name")},
        )

    def group_of(self, row: Row) -> str:
        return self.groups.get(row.group_id or 0, "")


RESTART_SECONDS = 30.0
"""Until anything was measured; Pollux and Sia suppose so too."""
RESIZE_SECONDS = 10.0
MIN_RESIZE_SECONDS = 1.0
"""However little the ranks stand still: those that come hold their GPUs while they load their libraries."""
MIN_GOAL_ERROR, EARLY_ERROR = 0.05, 0.01
"""Relative, of what is left by a training's own account: in its first hundredth nobody knows."""


class _ProgramCatalogue:
    """What history says of a program, looked up once for all its jobs."""

    def __init__(self, history: History, gpus_per_node: int) -> None:
        self.history, self.gpus_per_node = history, gpus_per_node
        self._programs: dict[tuple[Script, tuple[str, ...], int, int], Program] = {}

    def program(self, row: Row) -> Program:
        script, people = script_of(row), (row.submitted_by_id, row.project_id)
        key = (script, row.arguments, row.submitted_by_id, row.max_gpus)
        if key not in self._programs:
            speeds = self.history.speeds(script, row.max_gpus, self.gpus_per_node)
            of_runs = self.history.speeds(script, self.history.max_gpus_used(script), self.gpus_per_node)
            begins = self.history.begin_seconds(script)
            restart_seconds = RESTART_SECONDS if begins is None else begins
            self._programs[key] = Program(
                sha256(repr(script).encode()).hexdigest()[:16],
                speeds,
                self.history.like(script, json.dumps(row.arguments), people, of_runs.fixed),
                restart_seconds,
                _resize_seconds(row.launcher, self.history.change_seconds(script), restart_seconds),
            )
        return self._programs[key]


def with_at_most(job: types.Job, gpus: int) -> types.Job:
    """As a snapshot sees the same job when its owner asks for so many GPUs at most, and fewer than now.

    Only ``Curve.apart`` stays what it is on average over the more GPUs of before.
    """
    speed, free = (
        curve and replace(curve, speeds=curve.speeds[:gpus], batches=curve.batches[:gpus])
        for curve in (job.speed, job.free_speed)
    )
    return replace(
        job,
        min_gpus=min(job.min_gpus, gpus),
        max_gpus=gpus,
        asked_gpus=min(job.asked_gpus, gpus),
        speed=speed,
        free_speed=free,
    )


def script_of(row: Row) -> Script:
    return (row.project_id, row.launcher, row.entry)


def _job(
    facts: JobFacts,
    holding: Holding | None = None,
    past: PastUse = PastUse(),  # noqa: B008 - never changed
    goal: "Goal | None" = None,
) -> types.Job:
    row, reach, blocked, group, program = facts
    stopping = holding is not None and holding.stopping
    now_on = _sorted(holding.kept) if holding and not stopping else {}
    elastic = row.elastic and row.launcher != Job.Launcher.COMMAND
    speed = program.speeds.fixed
    batch = holding.batch if holding and now_on else 0
    in_force = (program.speeds.free if batch else None) or speed
    done = sum(seconds * speed_on(gpus, speed) for gpus, seconds in past.done)
    return types.Job(
        id=str(row.id),
        owner=str(row.submitted_by_id),
        submitted_at=row.submitted_at.timestamp(),
        min_gpus=row.min_gpus,
        max_gpus=row.max_gpus,
        priority=row.priority,
        elastic=elastic,
        now_on=now_on,
        base=_sorted(holding.base) if holding and elastic else now_on,
        stopping=stopping,
        nodes=reach.nodes,
        blocked=blocked,
        spread=reach.spread,
        preemptible=row.resumable or row.opportunistic,
        started_at=holding.placed_at.timestamp() if holding and holding.placed_at else None,
        served_gpu_seconds=round(past.gpu_seconds, 1),
        restarts=max(0, past.attempts - 1),
        group=group,
        tier=cast(types.Tier, row.tier),
        opportunistic=row.opportunistic,
        first_started_at=past.first_started_at,
        since=past.since,
        run_seconds=round(past.run_seconds, 1),
        lost_gpu_seconds_if_stopped=round(past.unsaved_gpu_seconds, 1) if now_on else 0.0,
        restart_seconds=program.restart_seconds,
        resize_seconds=program.resize_seconds,
        script=program.name,
        batch=batch,
        speed=speed,
        free_speed=program.speeds.free,
        work=goal.remaining(in_force) if goal else program.like.remaining(done),
        deadline=row.deadline.timestamp() if row.deadline else None,
        longest_seconds=float(max(0, row.time_limit_seconds - past.counted_seconds)),
    )


class Goal(NamedTuple):
    """What a training told of how far it is."""

    done: float
    step: int
    step_seconds: float
    ranks: int
    batch: int
    total: int | None

    def remaining(self, speed: types.Curve | None) -> types.Estimate:
        """At its pace, were it on one GPU; ``speed`` is with the batch it has. Beginnings tell less than ends."""
        seconds = seconds_left(self.done, self.step, self.batch, self.total, self.step_seconds)
        error = min(1.0, MIN_GOAL_ERROR + EARLY_ERROR / self.done)
        return types.Estimate(round(seconds * speed_on(self.ranks, speed), 1), "measured", round(error, 3))


def _read_goals(begun: Set[int]) -> dict[int, Goal]:
    """By job, as its last attempt told that counts: the present one, or one that the next goes on from."""
    goes_on = Q(attempt__ended_at__isnull=True) | Q(attempt__job__resumable=True)
    told = Progress.objects.filter(goes_on, attempt__job__in=begun, done__gt=0, step_seconds__gt=0, ranks__gt=0)
    facts = "done", "step", "step_seconds", "ranks", "batch", "total"
    return {job: Goal(*goal) for job, *goal in told.order_by("attempt__number").values_list("attempt__job", *facts)}


def _resize_seconds(launcher: str, measured: float | None, restart_seconds: float) -> float:
    """Never longer than beginning anew, which is what the ranks of torchrun do."""
    if measured is not None:
        return min(max(MIN_RESIZE_SECONDS, measured), restart_seconds)
    return min(RESIZE_SECONDS, restart_seconds) if launcher == Job.Launcher.HOROVOD else restart_seconds


def _sorted(placement: Mapping[str, int]) -> dict[str, int]:
    """As recordings keep it: what is decided again sees the same, to the order of nodes."""
    return dict(sorted(placement.items()))


def _is_ring(row: Row) -> bool:
    return row.launcher != Job.Launcher.COMMAND


def _reach(row: Row, holding: Holding | None, available: Availability, free: Mapping[str, int]) -> NodeReachability:
    """Only rings spread, and only over nodes that say where containers of other nodes reach theirs.

    What runs needs to have begun in a network over several nodes. What waits gives up the nodes that nobody reaches,
    unless one of them has room for it and the others together do not.
    """
    alone, linked = NodeReachability(available.ids, spread=False), NodeReachability(available.linked, spread=True)
    now_on = holding.kept if holding is not None and not holding.stopping else {}
    if holding is not None and now_on:
        return linked if holding.joined else alone
    if not _is_ring(row) or len(available.linked) < min(2, len(available.ids)):
        return alone
    if available.linked == available.ids:
        return linked
    room = sum(free.get(node, 0) for node in available.linked)
    elsewhere = max(free.get(node, 0) for node in available.ids - available.linked)
    return alone if elsewhere >= row.min_gpus > room else linked


def _limits(
    rows: Iterable[Row], holdings: Mapping[int, Holding], limits: Iterable[LimitInForce]
) -> Iterable[types.Limit]:
    by_user: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_user[row.submitted_by_id].append(row.id)
    for limit in limits:
        jobs = [job for user in limit.user_ids for job in by_user.get(user, [])]
        if limit.max_gpus is not None and jobs:
            leaving = sum(holdings[job].leaving for job in jobs if job in holdings)
            yield types.Limit(limit.name, limit.max_gpus, frozenset(map(str, jobs)), leaving, soft=limit.soft)


def _reservations(now: datetime) -> Iterator[types.Reservation]:
    for row in reservations.in_force(now):
        yield types.Reservation(
            row.name,
            str(row.node_id),
            row.gpus,
            row.start.timestamp(),
            row.end.timestamp(),
            frozenset(map(str, reservations.owners(row))),
        )


def _accounts(
    rows: Iterable[Row],
    holdings: Mapping[int, Holding],
    limits: Iterable[LimitInForce],
    names: _Names,
    history: History,
    now: float,
) -> Iterator[types.Account]:
    """Those with jobs now: people, within the groups that their jobs count for, and these groups."""
    jobs: dict[tuple[int, int], list[str]] = defaultdict(list)
    live = []
    for row in rows:
        jobs[row.submitted_by_id, row.group_id or 0].append(str(row.id))
        if row.id in holdings:
            live += [HeldGpus(row.submitted_by_id, row.group_id or 0, *each) for each in holdings[row.id].since]
    weights = {("user", limit.user_id): limit.weight for limit in limits}
    weights |= {("group", limit.group_id): limit.weight for limit in limits}
    used = history.used(live, now)
    nothing = (0.0,) * USAGE_DAYS
    for group in sorted({group for _, group in jobs} - {0}):
        members = [days for (_, each), days in used.items() if each == group]
        yield types.Account(
            name=names.groups.get(group, ""),
            weight=weights.get(("group", group), 1.0),
            jobs=frozenset(job for (_, each), ids in jobs.items() if each == group for job in ids),
            used=tuple(round(sum(days), 1) for days in zip(*members, strict=True)) or nothing,
        )
    for (user, group), ids in sorted(jobs.items()):
        yield types.Account(
            name=names.people.get(user, str(user)),
            weight=weights.get(("user", user), 1.0),
            jobs=frozenset(ids),
            used=used.get((user, group), nothing),
            parent=names.groups.get(group, ""),
        )
