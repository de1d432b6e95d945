"""The processors and memory of nodes, for snapshots in which some job asks for other amounts than the shares of its GPUs.

In any other snapshot they play no part, and nothing is read.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from django.db.models import Count, Q

from portal.cluster.models import Gpu, usable_gpu
from portal.cluster.pools import PoolId, pool_id
from portal.cluster.shares import read_machines
from portal.jobs.models import Allocation, Job
from portal.scheduler.availability import USABLE_GPU
from scheduling import types
from scheduling.toolkit.resources import NOTHING, Demand, beyond_share, gpus_that_fit, with_more


def with_resources(snapshot: types.Snapshot) -> types.Snapshot:
    """Return the snapshot with the shares of the nodes' GPUs, and with what jobs hold in addition to theirs."""
    demanding = {job.id: job for job in snapshot.jobs if job.has_demands}
    if not demanding:
        return snapshot
    held = _read_gpus(demanding, {node.id for node in snapshot.nodes})
    nodes = []
    for node in with_shares(snapshot.nodes):
        taken = leaving = NOTHING
        for id, job in demanding.items():
            gpus, beyond = held.get((id, node.id), 0), beyond_share(job, node)
            kept = 0 if job.stopping else job.now_on.get(node.id, 0)
            taken = taken.plus(beyond, gpus)
            leaving = leaving.plus(beyond, max(0, gpus - kept))
        nodes.append(with_more(node, NOTHING.plus(taken, -1), leaving))
    return replace(snapshot, nodes=tuple(nodes))


def with_shares(nodes: Sequence[types.Node]) -> tuple[types.Node, ...]:
    """Return the nodes with the processors and the memory of each of their GPUs. One query."""
    gpus: Counter[int] = Counter()
    for node in nodes:
        gpus[int(node.machine)] += node.total
    machines = read_machines(gpus)
    return tuple(
        replace(
            node,
            millicpus_per_gpu=machines[key].millicpus_per_gpu(gpus[key]),
            memory_mib_per_gpu=machines[key].memory_mib_per_gpu(gpus[key]),
        )
        if (key := int(node.machine)) in machines
        else node
        for node in nodes
    )


def _read_gpus(jobs: Mapping[str, types.Job], pools: Collection[PoolId]) -> dict[tuple[str, PoolId], int]:
    """Return the GPUs that each of these jobs holds, kept or leaving, by job and pool; ``pools`` has the ids of all."""
    rows = (
        Allocation.objects.filter(usable_gpu("gpu__"), released_at__isnull=True, attempt__job__in=list(map(int, jobs)))
        .values_list("attempt__job", "gpu__node", "gpu__model")
        .annotate(count=Count("pk"))
    )
    found: Counter[tuple[str, PoolId]] = Counter()
    for job, node, model, count in rows.order_by():
        found[str(job), pool_id(node, model, pools)] += count
    return found


def fitting_gpus(job: Job, free: Mapping[int, int]) -> dict[int, int]:
    """Return how many of the ``free`` GPUs of each node the job can take, with the processors and memory that others left.

    ``free`` maps keys of nodes to numbers of GPUs. For jobs that are placed without a snapshot, or some time after it.
    """
    has_demands = Q(attempt__job__cpus_per_gpu__isnull=False) | Q(attempt__job__memory_mib_per_gpu__isnull=False)
    held = list(
        Allocation.objects.filter(has_demands, usable_gpu("gpu__"), released_at__isnull=True, gpu__node__in=list(free))
        .values_list("gpu__node", "attempt__job__cpus_per_gpu", "attempt__job__memory_mib_per_gpu")
        .annotate(count=Count("pk"))
        .order_by()
    )
    demand = _demand(job.cpus_per_gpu, job.memory_mib_per_gpu)
    if demand == Demand() and not held:
        return dict(free)
    usable = Gpu.objects.filter(USABLE_GPU, node__in=list(free)).values_list("node").annotate(count=Count("pk"))
    totals = dict(usable.order_by())
    found = {}
    for node in with_shares([types.Node(str(pk), "", totals.get(pk, 0), gpus) for pk, gpus in free.items()]):
        extra = NOTHING
        for pk, cpus, memory, count in held:
            if str(pk) == node.id:
                extra = extra.plus(beyond_share(_demand(cpus, memory), node), -count)
        found[int(node.id)] = gpus_that_fit(node, node.free, extra, demand)
    return found


def _demand(cpus: int | None, memory_mib: int | None) -> Demand:
    return Demand(None if cpus is None else 1000 * cpus, memory_mib)
