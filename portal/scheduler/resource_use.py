"""The processors and memory of nodes, for snapshots in which some job asks for other amounts than the shares of its GPUs.

In any other snapshot they play no part, and nothing is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from django.db.models import Count

from portal.cluster.models import usable_gpu
from portal.cluster.shares import read_machines
from portal.jobs.models import Allocation
from scheduling import types
from scheduling.toolkit.resources import NOTHING, beyond_share, with_more


def with_resources(snapshot: types.Snapshot) -> types.Snapshot:
    """Return the snapshot with the shares of the nodes' GPUs, and with what jobs hold in addition to theirs."""
    demanding = {job.id: job for job in snapshot.jobs if job.has_demands}
    if not demanding:
        return snapshot
    held = _read_gpus(demanding)
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
    machines = read_machines({int(node.id): node.total for node in nodes})
    return tuple(
        replace(
            node,
            millicpus_per_gpu=machines[int(node.id)].millicpus_per_gpu(node.total),
            memory_mib_per_gpu=machines[int(node.id)].memory_mib_per_gpu(node.total),
        )
        if int(node.id) in machines
        else node
        for node in nodes
    )


def _read_gpus(jobs: Mapping[str, types.Job]) -> dict[tuple[str, str], int]:
    """Return the GPUs that each of these jobs holds, kept or leaving, by job and node."""
    rows = (
        Allocation.objects.filter(usable_gpu("gpu__"), released_at__isnull=True, attempt__job__in=list(map(int, jobs)))
        .values_list("attempt__job", "gpu__node")
        .annotate(count=Count("pk"))
    )
    return {(str(job), str(node)): count for job, node, count in rows.order_by()}
