"""Migration of elastic jobs off nodes that are being drained, without a restart, if there is room elsewhere.

A job that could not continue without the nodes it has to leave gets as many GPUs on other nodes as its minimum requires,
and those it has to leave are requested back. The drain leaves it alone while the new hosts join its rank group; then its
old hosts are stopped one by one, as in any drain (``lifecycle.sweep``). For a moment the job may have more GPUs than its
maximum, but never more than its owner's limits allow. Without room under these it restarts from its checkpoint.
"""

from collections import Counter
from collections.abc import Sequence, Set
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Min
from django.utils import timezone

from portal.accounts.limits import limits_for
from portal.cluster import reservations
from portal.cluster.models import Gpu
from portal.cluster.pools import node_of, pool_id
from portal.environments.hosts import PlacesWithHosts
from portal.jobs import gpu_choice, lifecycle
from portal.jobs.models import Allocation, Attempt, Container, ContainerState, Job, StopReason
from portal.jobs.resize_timeline.models import RankGroup
from portal.scheduler import apply as applying
from portal.scheduler.availability import USABLE_GPU, Nodes, availability_of, needs_of, read_nodes
from portal.scheduler.events import Moving
from portal.scheduler.resource_use import fitting_gpus
from scheduling.toolkit.placement import place
from scheduling.types import Placement

JOIN_TIMEOUT = timedelta(minutes=3)
"""The time that new containers have to start, import what they need, and join; then the job restarts."""
RESERVATION_LOOKAHEAD = timedelta(hours=1)
"""No job moves to a node that others have reserved within this time."""


def migrate(now: datetime | None = None) -> frozenset[int]:
    """Begin and continue migrations; return the attempts that a drain must leave alone until the next cycle.

    Takes two queries when no node is being drained.
    """
    now = now or timezone.now()
    _cancel_migrations()
    draining = Container.objects.filter(node__draining=True).exclude(state=ContainerState.EXITED)
    leaving = Attempt.objects.filter(
        ended_at__isnull=True,
        wanted=Attempt.Wanted.RUN,
        overlay_network__isnull=False,
        job__elastic=True,
        job__intent=Job.Intent.RUN,
        pk__in=draining.values("attempt"),
    )
    return frozenset(pk for pk in leaving.order_by("job_id").values_list("pk", flat=True) if _migrate(pk, now))


def _cancel_migrations() -> None:
    """Cancel the migrations off nodes that are no longer drained: the jobs keep their GPUs there, and only these."""
    asked = Allocation.objects.filter(
        released_at__isnull=True,
        requested_back_at__isnull=False,
        container__wanted=Container.Wanted.RUN,
        container__node__draining=False,
    )
    for pk, since in asked.order_by("attempt__job").values_list("attempt").annotate(Min("requested_back_at")):
        with transaction.atomic():
            attempt = Attempt.objects.get(pk=pk)
            lifecycle.get_locked(attempt.job_id)
            lifecycle.withdraw_gpu_request(attempt)
            for part in attempt.containers.filter(role=Container.Role.HOST, assigned_at__gte=since):
                lifecycle.stop_container(part, StopReason.PREEMPTED)


@transaction.atomic
def _migrate(pk: int, now: datetime) -> bool:
    """Begin or continue the migration of an attempt; return whether a drain must leave it alone."""
    job = lifecycle.get_locked(Attempt.objects.values_list("job", flat=True).get(pk=pk))
    attempt = Attempt.objects.select_related("job").get(pk=pk)
    if attempt.ended_at or attempt.wanted != Attempt.Wanted.RUN or job.intent != Job.Intent.RUN:
        return False
    parts = attempt.containers.filter(role=Container.Role.HOST).select_related("node").order_by("index")
    live = [part for part in parts if part.state != ContainerState.EXITED and part.wanted == Container.Wanted.RUN]
    staying = [part for part in live if not part.node.draining]
    began = Allocation.objects.filter(container__in=live, released_at__isnull=True).aggregate(
        at=Min("requested_back_at")
    )["at"]
    ranks = _ranks_on(attempt, staying)
    lacking = job.min_gpus - sum(len(part.spec["gpus"]) for part in staying)
    if began is None:
        if len(staying) == len(live) or (lacking <= 0 and (ranks is None or ranks >= job.min_gpus)):
            return False
        return _begin_migration(job, attempt, live, max(0, lacking), now)
    if lacking > 0 or (ranks is not None and ranks >= job.min_gpus):
        return False  # it can no longer move, or it has moved: the drain may stop its old hosts
    if now - began > JOIN_TIMEOUT:
        lifecycle.stop_attempt(attempt, StopReason.DRAINED)
    return True


def _ranks_on(attempt: Attempt, hosts: Sequence[Container]) -> int | None:
    """Return how many ranks the latest rank group had on these hosts; None when no rank group was reported."""
    last = RankGroup.objects.filter(driver__attempt=attempt).order_by("driver__index", "number").last()
    names = {part.spec["hostname"] for part in hosts}
    return None if last is None else sum(host in names for host in last.hosts)


def _begin_migration(job: Job, attempt: Attempt, live: Sequence[Container], lacking: int, now: datetime) -> bool:
    """Give the job GPUs elsewhere and request back those that it has to leave; return False when there is no room."""
    held = attempt.allocations.filter(released_at__isnull=True, requested_back_at__isnull=True)
    try:
        with transaction.atomic():
            if lacking:
                _check_limits(job, lacking)
                nodes = read_nodes(now)
                pools = {pool.id for found in nodes.pools.values() for pool in found}
                before = Counter(pool_id(*gpu, pools) for gpu in held.values_list("gpu__node", "gpu__model"))
                models = {model for _, model in held.values_list("gpu__node", "gpu__model")}
                applying.grow(job, before, _choose_free_gpus(job, lacking, nodes, models, now), now)
    except (applying.PlanStaleError, lifecycle.JobChangedError, IntegrityError):
        return False
    lifecycle.request_gpus_back(attempt, now)
    lifecycle.record(job, Moving(sorted({part.node.name for part in live if part.node.draining})))
    return True


def _check_limits(job: Job, count: int) -> None:
    """Raise PlanStaleError when ``count`` more GPUs, in addition to those it has yet to leave, exceed an owner's limit."""
    for limit in limits_for(job.submitted_by):
        if limit.max_gpus is None or limit.soft:
            continue
        held = Allocation.objects.filter(
            released_at__isnull=True, attempt__job__submitted_by__in=limit.user_ids
        ).count()
        if held + count > limit.max_gpus:
            raise applying.PlanStaleError(f"the limit of {limit.name} is reached")


def _choose_free_gpus(job: Job, count: int, nodes: Nodes, models: Set[str], now: datetime) -> Placement:
    """Choose free GPUs that the job accepts on nodes that others can reach; it holds GPUs of these models.

    Raises PlanStaleError when there are too few.
    """
    pools = {pool.id: pool for found in nodes.pools.values() for pool in found}
    taken = Allocation.objects.filter(released_at__isnull=True).values("gpu")
    usable = Gpu.objects.filter(USABLE_GPU, node__in=nodes.open - nodes.out_of_reach).exclude(pk__in=taken)
    free = Counter(pool_id(*gpu, pools) for gpu in usable.values_list("node", "model"))
    reserved = {
        row.node_id
        for row in reservations.active_or_upcoming(now)
        if row.start <= now + RESERVATION_LOOKAHEAD and job.submitted_by_id not in reservations.owner_ids(row)
    }
    has_hosts = PlacesWithHosts.read().include(job.project_id, job.environment_id)
    needs = needs_of(
        has_recipe=False,
        has_hosts=has_hosts,
        has_inputs=job.use_outputs,
        has_secrets=bool(job.secrets),
        has_datasets=job.datasets.exists(),
    )
    ready = availability_of(nodes, job.environment_id, needs).ready - reserved
    allowed = {
        pool.id
        for pool in pools.values()
        if pool.node in ready and gpu_choice.accepts(job, pool) and (not job.same_gpu_model or models <= {pool.model})
    }
    by_node: Counter[int] = Counter()
    for pool, gpus in free.items():
        by_node[pools[pool].node] += gpus
    fitting = fitting_gpus(job, by_node)
    found = place(
        {pool: min(free[pool], fitting[node_of(pool)]) for pool in sorted(free)}, count, spread=True, allowed=allowed
    )
    if found is None:
        raise applying.PlanStaleError("there is no room elsewhere")
    return found
