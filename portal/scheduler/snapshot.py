"""Makes a ``Snapshot`` from the database: what a policy may know, in a constant number of queries."""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, Self, cast

from django.conf import settings
from django.contrib.auth.models import Group
from django.utils import timezone

from portal.accounts.limits import LimitInForce, limits_in_force
from portal.accounts.models import User
from portal.cluster import reservations
from portal.cluster.pools import Pool, is_part_of_gpu, reserved_by_pool
from portal.environments.hosts import PlacesWithHosts
from portal.environments.models import Environment
from portal.jobs import retries
from portal.jobs.models import Job
from portal.scheduler.availability import (
    Availability,
    availability_of,
    gpus_of_largest_node,
    needs_of,
    read_nodes,
    why_blocked,
    why_no_such_gpus,
)
from portal.scheduler.dataset_places import DatasetReads
from portal.scheduler.holdings import Holding, PastUsage, active_jobs, read_holdings, read_past_usage
from portal.scheduler.job_history import USAGE_DAYS, HeldGpus, History, RuntimeSample, Script, speed_on
from portal.scheduler.reported_progress import ReportedProgress, read_progress
from portal.scheduler.resource_use import with_resources
from portal.scheduler.throughput import Speeds
from scheduling import types
from scheduling.messages import Message


def take(
    now: datetime | None = None, state: Mapping[str, Any] | None = None, history: History | None = None
) -> types.Snapshot:
    """Return the snapshot of the lab at ``now``. ``state`` is what the policy stored with its last plan.

    With a ``history`` that was used before, only what is new is read.
    """
    now = now or timezone.now()
    history = history or History()
    history.refresh(now)
    nodes = read_nodes(now)
    rows = [Row.of(values) for values in active_jobs().values_list(*Row._fields)]
    pools = [(pool, node) for node in nodes.rows for pool in nodes.pools[node.pk]]
    holdings, held, leaving = read_holdings({row.id: row.intent for row in rows}, {pool.id for pool, _ in pools})
    past = read_past_usage(now)
    names = _Names.read(rows)
    environments = Environment.objects.only("title", "recipe", "image").in_bulk({row.environment_id for row in rows})
    with_hosts, reads = PlacesWithHosts.read(), DatasetReads.read()
    places = {row.id: _place_of(row, environments, with_hosts, has_datasets=row.id in reads.by_job) for row in rows}
    available = {place: availability_of(nodes, *place) for place in places.values()}
    limits = limits_in_force()
    programs = _ProgramCatalogue(history, max(nodes.gpus.values(), default=1))
    progress_by_job = read_progress({*holdings, *past})
    blocked = {
        (size, place): why_blocked(
            size, place.environment, environments[place.environment].title, nodes, available[place].ready, place.needs
        )
        for size, place in {(row.min_gpus, places[row.id]) for row in rows}
    }
    lacking = {
        (row.min_gpus, row.gpu_request): why_no_such_gpus(row.min_gpus, row.gpu_request, nodes)
        for row in rows
        if row.gpu_request is not types.ANY_GPU
    }
    has_failed = any(row.id in past and row.id not in holdings for row in rows)
    pauses = retries.pauses(now) if has_failed else {}
    free = {pool.id: pool.gpus - held[pool.id] for pool, node in pools if node.pk in nodes.open}
    jobs, new_jobs = [], dict[int, tuple[Hashable, types.Job]]()
    for row in rows:
        holding, had = holdings.get(row.id), past.get(row.id)
        reach = _reachability(row, holding, available[places[row.id]], free)
        why = blocked[row.min_gpus, places[row.id]] or lacking.get((row.min_gpus, row.gpu_request))
        why = why or pauses.get(row.id)
        cached = reads.cached_bytes(row.id, nodes.pools)
        facts = JobFacts(row, reach, why, names.group_of(row), programs.program(row), cached)
        if holding is None and had is None:
            before = history.new_jobs.get(row.id)
            new_jobs[row.id] = before if before and before[0] == facts else (facts, _job(facts))
            jobs.append(new_jobs[row.id][1])
        else:
            jobs.append(_job(facts, holding, had or PastUsage(), progress_by_job.get(row.id)))
    history.new_jobs = new_jobs
    seen = types.Snapshot(
        now=now.timestamp(),
        nodes=tuple(
            types.Node(
                id=pool.id,
                name=f"{node.name} ({pool.model})" if pool.is_part else node.name,
                total=pool.gpus,
                free=pool.gpus - held[pool.id],
                leaving=leaving[pool.id],
                open=node.pk in nodes.open,
                kind=pool.model,
                gpu_memory_mib=pool.memory_mib,
                parts_of_gpus=is_part_of_gpu(pool.model),
                part_of=str(node.pk) if pool.is_part else "",
            )
            for pool, node in pools
        ),
        jobs=tuple(jobs),
        limits=tuple(_limits(rows, holdings, limits)),
        accounts=tuple(_accounts(rows, holdings, limits, names, history, now.timestamp())),
        state=state or {},
        reservations=tuple(_reservations(now, nodes.pools)),
        patience_seconds=settings.PATIENCE_HOURS * 3600.0,
        damping_seconds=float(settings.DAMPING_SECONDS),
    )
    return with_resources(seen)


def past_snapshot(
    rows: list["Row"], since: datetime, history: History, pools: Mapping[int, Sequence[Pool]]
) -> types.Snapshot:
    """Return a snapshot for simulations: past jobs as a policy sees them when they are submitted, before any has run.

    Limits, weights and the knowledge of programs are those of now; reservations are all since ``since``; the use of
    accounts is as of then. There are no nodes, and no job is tied to any. Reservations are of these ``pools``, by node.
    """
    history.refresh(since)
    names, limits, programs = _Names.read(rows), limits_in_force(), _ProgramCatalogue(history, gpus_of_largest_node())
    return types.Snapshot(
        now=since.timestamp(),
        nodes=(),
        jobs=tuple(
            _job(
                JobFacts(
                    row, NodeReachability(None, _has_rank_group(row)), None, names.group_of(row), programs.program(row)
                )
            )
            for row in rows
        ),
        limits=tuple(_limits(rows, {}, limits)),
        accounts=tuple(_accounts(rows, {}, limits, names, history, since.timestamp())),
        reservations=tuple(_reservations(since, pools)),
    )


class Row(NamedTuple):
    """The columns of a job that are read. Model instances of a thousand jobs would take longer than all the queries."""

    id: int
    arguments: tuple[str, ...]
    gpu_models: tuple[str, ...]
    secrets: tuple[str, ...]
    cpus_per_gpu: int | None
    deadline: datetime | None
    elastic: bool
    entry: str
    environment_id: int
    gpu_memory_mib: int | None
    group_id: int | None
    intent: str
    launcher: str
    max_gpus: int
    memory_mib_per_gpu: int | None
    min_gpus: int
    opportunistic: bool
    priority: int
    project_id: int
    ready_at: datetime | None
    resumable: bool
    same_gpu_model: bool
    submitted_at: datetime
    submitted_by_id: int
    tier: str
    time_limit_seconds: int
    use_outputs: bool

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        return cls(values[0], tuple(values[1]), tuple(values[2]), tuple(values[3]), *values[4:])

    @property
    def gpu_request(self) -> types.GpuRequest:
        """Which GPUs the job accepts, for policies."""
        if not (self.gpu_memory_mib or self.gpu_models or self.same_gpu_model):
            return types.ANY_GPU
        return types.GpuRequest(self.gpu_memory_mib or 0, self.gpu_models, self.same_gpu_model)


class Place(NamedTuple):
    """What decides on which nodes a job can run."""

    environment: int
    needs: frozenset[str]
    """Of their agents: ``availability.NEEDS``."""


def _place_of(
    row: Row, environments: Mapping[int, Environment], with_hosts: PlacesWithHosts, *, has_datasets: bool
) -> Place:
    environment = environments[row.environment_id]
    return Place(
        environment.pk,
        needs_of(
            has_recipe=bool(environment.recipe),
            has_hosts=with_hosts.include(row.project_id, environment.pk),
            is_image=bool(environment.image),
            has_inputs=row.use_outputs,
            has_secrets=bool(row.secrets),
            has_datasets=has_datasets,
        ),
    )


class NodeReachability(NamedTuple):
    """The nodes on which a job may get GPUs (None: all), and whether on several of them at once."""

    nodes: frozenset[str] | None
    spread: bool


class Program(NamedTuple):
    """What is known about a job's program."""

    name: str
    """A name for policies: the same for the same program."""
    speeds: Speeds
    similar_runs: RuntimeSample
    restart_seconds: float
    resize_seconds: float


class JobFacts(NamedTuple):
    """The facts about a job; they determine all that a policy knows about one that never had a GPU."""

    row: Row
    reach: NodeReachability
    blocked: Message | None
    group: str
    program: Program
    cached_bytes: Mapping[str, int] = {}  # never changed


# --- jobs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Names:
    people: Mapping[int, str]
    groups: Mapping[int, str]
    """The names as limits show them: ``group vision``."""

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
"""Assumed until it was measured; Pollux and Sia assume the same."""
RESIZE_SECONDS = 10.0
MIN_RESIZE_SECONDS = 1.0
"""The minimum, however short the pause of the ranks: new ranks hold their GPUs while they load their libraries."""


class _ProgramCatalogue:
    """What the history shows about each program, looked up once for all its jobs."""

    def __init__(self, history: History, gpus_per_node: int) -> None:
        self.history, self.gpus_per_node = history, gpus_per_node
        self._programs: dict[tuple[Script, tuple[str, ...], int, int], Program] = {}

    def program(self, row: Row) -> Program:
        script, people = script_of(row), (row.submitted_by_id, row.project_id)
        key = (script, row.arguments, row.submitted_by_id, row.max_gpus)
        if key not in self._programs:
            speeds = self.history.speeds(script, row.max_gpus, self.gpus_per_node)
            of_runs = self.history.speeds(script, self.history.max_gpus_used(script), self.gpus_per_node)
            begins = self.history.startup_seconds(script)
            restart_seconds = RESTART_SECONDS if begins is None else begins
            self._programs[key] = Program(
                sha256(repr(script).encode()).hexdigest()[:16],
                speeds,
                self.history.similar_runs(script, json.dumps(row.arguments), people, of_runs.fixed),
                restart_seconds,
                _resize_seconds(row.launcher, self.history.measured_resize_seconds(script), restart_seconds),
            )
        return self._programs[key]


def with_max_gpus(job: types.Job, gpus: int) -> types.Job:
    """Return the job as a snapshot would show it if its owner asked for at most ``gpus`` GPUs, fewer than now.

    Only ``Curve.apart`` keeps its value, a mean over the larger number of GPUs.
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
    past: PastUsage = PastUsage(),  # noqa: B008 - never changed
    progress: ReportedProgress | None = None,
) -> types.Job:
    row, reach, blocked, group, program, cached_bytes = facts
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
        submitted_at=(row.ready_at or row.submitted_at).timestamp(),
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
        work=progress.remaining(in_force) if progress else program.similar_runs.remaining(done),
        deadline=row.deadline.timestamp() if row.deadline else None,
        longest_seconds=float(max(0, row.time_limit_seconds - past.counted_seconds)),
        millicpus_per_gpu=None if row.cpus_per_gpu is None else 1000 * row.cpus_per_gpu,
        memory_mib_per_gpu=row.memory_mib_per_gpu,
        gpu_request=row.gpu_request,
        cached_bytes=cached_bytes,
    )


def _resize_seconds(launcher: str, measured: float | None, restart_seconds: float) -> float:
    """Return the seconds that a resize takes: at most those of a restart, which is what the ranks of torchrun do."""
    if measured is not None:
        return min(max(MIN_RESIZE_SECONDS, measured), restart_seconds)
    return min(RESIZE_SECONDS, restart_seconds) if launcher == Job.Launcher.HOROVOD else restart_seconds


def _sorted(placement: Mapping[str, int]) -> dict[str, int]:
    """Sort a placement by node, as recordings do, so that a replay sees the same order of nodes."""
    return dict(sorted(placement.items()))


def _has_rank_group(row: Row) -> bool:
    return row.launcher != Job.Launcher.COMMAND


def _reachability(
    row: Row, holding: Holding | None, available: Availability, free: Mapping[str, int]
) -> NodeReachability:
    """Return where a job may get GPUs. Only ranks that train together spread, and only over nodes that others can reach.

    A running job spreads only if it started in an overlay network. A waiting job forgoes the nodes that others cannot
    reach, unless one of them has room for it and the others together do not.
    """
    alone, linked = NodeReachability(available.ids, spread=False), NodeReachability(available.reachable, spread=True)
    now_on = holding.kept if holding is not None and not holding.stopping else {}
    if holding is not None and now_on:
        return linked if holding.has_overlay_network else alone
    if not _has_rank_group(row) or len(available.reachable_nodes) < min(2, len(available.ready)):
        return alone
    if available.reachable == available.ids:
        return linked
    room = sum(free.get(node, 0) for node in available.reachable)
    elsewhere = max(free.get(node, 0) for node in available.ids - available.reachable)
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


def _reservations(now: datetime, pools: Mapping[int, Sequence[Pool]]) -> Iterator[types.Reservation]:
    for row, pool, gpus in reserved_by_pool(reservations.active_or_upcoming(now), pools):
        yield types.Reservation(
            row.name,
            pool,
            gpus,
            row.start.timestamp(),
            row.end.timestamp(),
            frozenset(map(str, reservations.owner_ids(row))),
        )


def _accounts(
    rows: Iterable[Row],
    holdings: Mapping[int, Holding],
    limits: Iterable[LimitInForce],
    names: _Names,
    history: History,
    now: float,
) -> Iterator[types.Account]:
    """Yield the accounts with jobs now: users, within the groups that their jobs count for, and these groups."""
    jobs: dict[tuple[int, int], list[str]] = defaultdict(list)
    live = []
    for row in rows:
        jobs[row.submitted_by_id, row.group_id or 0].append(str(row.id))
        if row.id in holdings:
            counted = holdings[row.id].counted_since
            live += [HeldGpus(row.submitted_by_id, row.group_id or 0, *each) for each in counted]
    weights = {("user", limit.user_id): limit.weight for limit in limits}
    weights |= {("group", limit.group_id): limit.weight for limit in limits}
    used = history.gpu_seconds_by_day(live, now)
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
