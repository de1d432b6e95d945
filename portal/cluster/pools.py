"""The nodes that policies know: a machine, or its GPUs of one model where it has several.

The id of a machine with one model is its key, ``7``; others are ``7:NVIDIA A100`` for each model.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from portal.cluster.models import GPU_OF_LAB, Gpu, Reservation

PoolId = str
SEPARATOR = ":"
MIG_MARK = " MIG "
"""In the model of a MIG instance, a part of a GPU: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``."""


def is_part_of_gpu(model: str) -> bool:
    return MIG_MARK in model


class GpuCount(NamedTuple):
    """The usable GPUs of one model on a machine; ``gpus`` may be 0 where it has only others now."""

    node: int
    model: str
    gpus: int
    memory_mib: int
    """Of the smallest."""


class Pool(NamedTuple):
    """The GPUs of a machine that policies see as one node."""

    id: PoolId
    node: int
    model: str
    gpus: int
    memory_mib: int
    is_part: bool
    """The machine has other models, too."""

    @classmethod
    def without_gpus(cls, node: int) -> Self:
        return cls(str(node), node, "", 0, 0, is_part=False)


def pools_of(counts: Iterable[GpuCount]) -> dict[int, list[Pool]]:
    """Return the pools of machines, by key; within one, sorted by model."""
    by_node: dict[int, list[GpuCount]] = defaultdict(list)
    for count in counts:
        by_node[count.node].append(count)
    return {
        node: [
            Pool(part_id(node, each.model) if len(found) > 1 else str(node), *each, is_part=len(found) > 1)
            for each in sorted(found, key=lambda each: each.model)
        ]
        for node, found in by_node.items()
    }


def part_id(node: int, model: str) -> PoolId:
    return f"{node}{SEPARATOR}{model}"


def pool_id(node: int, model: str, known: Collection[PoolId]) -> PoolId:
    """Return the id of the pool that has a GPU; ``known`` has the ids of the snapshot in question."""
    return whole if (whole := str(node)) in known else part_id(node, model)


def node_of(pool: PoolId) -> int:
    """Return the key of the machine."""
    return int(pool.partition(SEPARATOR)[0])


def model_of(pool: PoolId) -> str:
    """Return the model of a part of a machine; empty for a whole one, whatever its model."""
    return pool.partition(SEPARATOR)[2]


def pools_on(nodes: Iterable[int], pools: Mapping[int, Iterable[Pool]]) -> frozenset[PoolId]:
    """Return the ids of all pools of some machines."""
    return frozenset(pool.id for node in nodes for pool in pools.get(node, (Pool.without_gpus(node),)))


def models_of_mixed_nodes() -> list[str]:
    """Return the models of nodes of the lab that have several."""
    models: dict[int, set[str]] = defaultdict(set)
    for node, model in Gpu.objects.filter(GPU_OF_LAB).order_by().values_list("node", "model").distinct():
        models[node].add(model)
    return sorted({model for found in models.values() if len(found) > 1 for model in found})


class ReservedGpus(NamedTuple):
    """The GPUs of one pool that a reservation has."""

    reservation: Reservation
    pool: PoolId
    gpus: int


def reserved_by_pool(rows: Iterable[Reservation], pools: Mapping[int, Sequence[Pool]]) -> Iterator[ReservedGpus]:
    """Yield the GPUs of each reservation by pool.

    One of any GPUs of a machine with several models gets those of the model with the most that are left beside the
    reservations of certain models at that time.
    """
    taken: list[ReservedGpus] = []
    for row in sorted(rows, key=lambda row: (not row.gpu_model, row.start, row.pk)):
        there = pools.get(row.node_id, ())
        if len(there) < 2:
            if not (there and row.gpu_model) or row.gpu_model == there[0].model:  # else the GPUs of this model are gone
                yield ReservedGpus(row, there[0].id if there else str(row.node_id), row.gpus)
            continue
        at_once = [each for each in taken if each.reservation.start < row.end and row.start < each.reservation.end]
        left = {pool.id: pool.gpus - sum(each.gpus for each in at_once if each.pool == pool.id) for pool in there}
        missing = row.gpus
        for pool in sorted(there, key=lambda pool: (-left[pool.id], -pool.memory_mib, pool.id)):
            gpus = min(missing, max(0, left[pool.id]))
            if gpus and row.gpu_model in ("", pool.model):
                taken.append(ReservedGpus(row, pool.id, gpus))
                yield taken[-1]
                missing -= gpus
