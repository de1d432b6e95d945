"""Rows to ``Snapshot``: what a policy may know, read in a handful of queries whatever the number of jobs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Q, Sum
from django.db.models.functions import Coalesce
from django.db.models.query import QuerySet
from django.utils import timezone

from portal.accounts.limits import limits_in_force
from portal.cluster.models import LIVE_NODE, Environment, Gpu, Node, NodeEnvironment
from portal.cluster.services import is_online
from portal.jobs.models import Allocation, Attempt, Container, Job, JobState
from scheduling import types


@dataclass
class Nodes:
    """The lab's machines, with what they can run."""

    rows: list[Node]
    gpus: Mapping[int, int]
    """Healthy and present ones, by node."""
    environments: Mapping[int, Mapping[int, NodeEnvironment]]
    """By environment, then node."""
    open: frozenset[int]
    names: Mapping[int, str]
    closed: Mapping[int, str]
    """Why not, by node: name and clause."""


@dataclass
class Holding:
    """What a job's live attempt holds."""

    attempt: int
    stopping: bool
    kept: Counter[str] = field(default_factory=Counter)
    base: Counter[str] = field(default_factory=Counter)
    leaving: int = 0
    placed_at: datetime | None = None


def take(now: datetime | None = None, state: Mapping[str, Any] | None = None) -> types.Snapshot:
    """The world at ``now``. ``state`` is what the policy kept of its last plan."""
    now = now or timezone.now()
    nodes = _nodes(now)
    rows = list(active_jobs().only(*JOB_FIELDS))
    holdings, held, leaving = _holdings(rows)
    served = _served(rows, now)
    ready = {key: _ready(nodes, key) for key in {job.environment_id for job in rows}}
    titles = dict(Environment.objects.filter(pk__in=ready).values_list("pk", "title"))
    jobs = []
    for row in rows:
        holding = holdings.get(row.pk)
        here = ready[row.environment_id]
        jobs.append(_job(row, holding, nodes, here, served.get(row.pk, (0, 0.0)), _blocked(row, nodes, here, titles)))
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
            )
            for node in nodes.rows
        ),
        jobs=tuple(jobs),
        limits=tuple(_limits(rows, holdings)),
        state=state or {},
    )


JOB_FIELDS = (
    "environment_id",
    "submitted_by_id",
    "submitted_at",
    "launcher",
    "elastic",
    "min_gpus",
    "max_gpus",
    "priority",
    "intent",
    "state",
)


def active_jobs() -> QuerySet[Job]:
    """Jobs that want or hold GPUs: those waiting to run, and those with a live attempt."""
    live = Attempt.objects.filter(ended_at__isnull=True).values("job")
    return Job.objects.filter(Q(state=JobState.QUEUED, intent=Job.Intent.RUN) | Q(pk__in=live)).order_by("pk")


def is_open(node: Node, now: datetime) -> bool:
    """May it be given new work."""
    return not why_closed(node, now)


def why_closed(node: Node, now: datetime) -> str:
    """What keeps new work from it, after its name in a sentence; empty when nothing does."""
    if node.removed_at is not None or node.approved_at is None:
        return "is not part of the lab"
    if node.draining:
        return "is being drained"
    if node.cordoned:
        return "takes no new work by an admin's decision"
    if not is_online(node, now):
        return "has not been heard of for a while"
    if not node.ready:
        return "is still starting"
    return next((f"is unfit: {problem.get('text')}" for problem in node.problems if problem.get("blocking")), "")


# --- nodes -------------------------------------------------------------------------------------------------------


def _nodes(now: datetime) -> Nodes:
    rows = list(Node.objects.filter(LIVE_NODE, approved_at__isnull=False).order_by("name"))
    usable = Gpu.objects.filter(USABLE_GPU, node__in=rows).values_list("node").annotate(n=Count("pk"))
    environments: dict[int, dict[int, NodeEnvironment]] = defaultdict(dict)
    for row in NodeEnvironment.objects.filter(node__in=rows):
        environments[row.environment_id][row.node_id] = row
    closed = {node.pk: f"{node.name} {why}" for node in rows if (why := why_closed(node, now))}
    return Nodes(
        rows=rows,
        gpus=dict(usable.order_by("node")),
        environments=environments,
        open=frozenset(node.pk for node in rows if node.pk not in closed),
        names={node.pk: node.name for node in rows},
        closed=closed,
    )


USABLE_GPU = Q(healthy=True, present=True)


def _ready(nodes: Nodes, environment: int) -> frozenset[int]:
    """Open nodes on which the environment is ready."""
    prepared = nodes.environments.get(environment, {})
    return frozenset(
        node for node, row in prepared.items() if node in nodes.open and row.state == NodeEnvironment.State.READY
    )


# --- what is held ------------------------------------------------------------------------------------------------


def _holdings(rows: Iterable[Job]) -> tuple[dict[int, Holding], Counter[int], Counter[int]]:
    """By job what its live attempt holds; by node how many usable GPUs are held, and how many of those are leaving."""
    holdings = {
        attempt.job_id: Holding(attempt.pk, attempt.wanted == Attempt.Wanted.STOP, placed_at=attempt.created_at)
        for attempt in Attempt.objects.filter(ended_at__isnull=True).only("job_id", "wanted", "created_at")
    }
    intents = {row.pk: row.intent for row in rows}
    bases = _bases()
    held: Counter[int] = Counter()
    leaving: Counter[int] = Counter()
    for line in Allocation.objects.filter(released_at__isnull=True).values(
        "container", "requested_back_at", "attempt__job", "gpu__node", "gpu__healthy", "gpu__present"
    ):
        node, holding = line["gpu__node"], holdings.get(line["attempt__job"])
        usable = line["gpu__healthy"] and line["gpu__present"]
        held[node] += usable
        if holding is None or holding.stopping or line["requested_back_at"]:
            leaving[node] += usable
            if holding is not None:
                holding.leaving += 1
            continue
        holding.kept[str(node)] += 1
        if line["container"] == bases.get(holding.attempt):
            holding.base[str(node)] += 1
    for job, holding in holdings.items():
        if not holding.stopping and (not holding.kept or intents.get(job) != Job.Intent.RUN):
            _give_up(holding, leaving)
    return holdings, held, leaving


def _give_up(holding: Holding, leaving: Counter[int]) -> None:
    """It ends without having been told to: its last part has exited, or a person wants it stopped."""
    holding.stopping = True
    for node, gpus in holding.kept.items():
        leaving[int(node)] += gpus
        holding.leaving += gpus
    holding.kept.clear()
    holding.base.clear()


def _bases() -> dict[int, int]:
    """The first host of each live attempt; its GPUs are the ones it cannot give back without a restart."""
    hosts = Container.objects.filter(attempt__ended_at__isnull=True, role=Container.Role.HOST)
    first: dict[int, int] = {}
    for pk, attempt in hosts.order_by("attempt", "index").values_list("pk", "attempt"):
        first.setdefault(attempt, pk)
    return first


def _served(rows: Iterable[Job], now: datetime) -> dict[int, tuple[int, float]]:
    """By job: how many attempts it has had, and GPU seconds given to it."""
    jobs = [row.pk for row in rows]
    attempts = dict(
        Attempt.objects.filter(job__in=active_jobs().values("pk")).values_list("job").annotate(Max("number")).order_by()
    )
    lasted = ExpressionWrapper(Coalesce(F("released_at"), now) - F("allocated_at"), output_field=DurationField())
    seconds = dict(
        Allocation.objects.filter(attempt__job__in=active_jobs().values("pk"))
        .values_list("attempt__job")
        .annotate(total=Sum(lasted))
        .order_by()
    )
    return {
        job: (attempts.get(job, 0), max(0.0, seconds.get(job, timedelta()).total_seconds()))
        for job in jobs
        if job in attempts
    }


# --- jobs --------------------------------------------------------------------------------------------------------


def _job(
    row: Job, holding: Holding | None, nodes: Nodes, ready: frozenset[int], served: tuple[int, float], blocked: str
) -> types.Job:
    attempts, gpu_seconds = served
    stopping = holding is not None and holding.stopping
    now_on = _sorted(holding.kept) if holding and not stopping else {}
    elastic = row.elastic and row.launcher == Job.Launcher.HOROVOD
    return types.Job(
        id=str(row.pk),
        owner=str(row.submitted_by_id),
        submitted_at=row.submitted_at.timestamp(),
        min_gpus=row.min_gpus,
        max_gpus=row.max_gpus,
        priority=row.priority,
        elastic=elastic,
        now_on=now_on,
        base=_sorted(holding.base) if holding and elastic else now_on,
        stopping=stopping,
        nodes=frozenset(str(node) for node in ready),
        blocked=blocked,
        spread=_may_spread(row, nodes, {*ready, *map(int, now_on)}),
        started_at=holding.placed_at.timestamp() if holding and holding.placed_at else None,
        served_gpu_seconds=round(gpu_seconds, 1),
        restarts=max(0, attempts - 1),
    )


def _sorted(placement: Mapping[str, int]) -> dict[str, int]:
    """As recordings keep it: what is decided again sees the same, to the order of nodes."""
    return dict(sorted(placement.items()))


def _may_spread(row: Job, nodes: Nodes, among: set[int]) -> bool:
    """Only rings of Horovod, and only between nodes that say where containers of other nodes reach theirs."""
    if row.launcher != Job.Launcher.HOROVOD:
        return False
    return all(node.facts.get("ring_address") for node in nodes.rows if node.pk in among)


def _blocked(row: Job, nodes: Nodes, ready: frozenset[int], titles: Mapping[int, str]) -> str:
    """Why it can start nowhere now, whatever the policy; empty when it can."""
    if not nodes.rows:
        return "No node has joined the lab yet. An admin can add one under Nodes."
    lab = sum(nodes.gpus.values())
    if row.min_gpus > lab:
        return f"It needs {row.min_gpus} GPUs at once, but the lab has {lab}. Submit it with fewer, or ask an admin."
    if not nodes.open:
        return f"No node takes new work now: {'; '.join(list(nodes.closed.values())[:3]).rstrip('.')}."
    if not ready:
        return _not_ready(nodes, row.environment_id, titles.get(row.environment_id, "?"))
    return ""


def _not_ready(nodes: Nodes, environment: int, title: str) -> str:
    """How far the node is that will have the environment first."""
    State = NodeEnvironment.State  # noqa: N806
    here = [row for node, row in nodes.environments.get(environment, {}).items() if node in nodes.open]
    preparing = max(
        (row for row in here if row.state == State.PREPARING), key=lambda row: row.progress_percent, default=None
    )
    if preparing is not None:
        doing = f" ({preparing.detail})" if preparing.detail else ""
        name = nodes.names[preparing.node_id]
        return f"Its environment {title} is being prepared on node {name}: {preparing.progress_percent} %{doing}."
    waiting = next((row for row in here if row.state == State.WAITING), None)
    if waiting is not None or len(here) < len(nodes.open):
        return f"Its environment {title} will be prepared on a node first."
    failed = here[0]
    why = f": {failed.detail}" if failed.detail else "."
    return f"Its environment {title} could not be prepared on node {nodes.names[failed.node_id]}{why}"


def _limits(rows: Iterable[Job], holdings: Mapping[int, Holding]) -> Iterable[types.Limit]:
    by_user: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        by_user[row.submitted_by_id].append(row.pk)
    for limit in limits_in_force():
        jobs = [job for user in limit.user_ids for job in by_user.get(user, [])]
        if limit.max_gpus is not None and jobs:
            leaving = sum(holdings[job].leaving for job in jobs if job in holdings)
            yield types.Limit(limit.name, limit.max_gpus, frozenset(map(str, jobs)), leaving)
