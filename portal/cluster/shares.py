"""The processors and the memory that go with each GPU of a node."""

from typing import Any, NamedTuple

from portal.cluster.models import Node

SYSTEM_MEMORY_MIB = 1024
"""Memory that a node keeps for itself: engine, agent, kernel."""
USUAL_CPUS, USUAL_MEMORY_MIB = 1.0, 4096
"""For each GPU of a node that does not report what it has."""


class Machine(NamedTuple):
    """The processors and memory of a node that jobs may use."""

    cpus: float
    memory_mib: int

    def millicpus_per_gpu(self, gpus: int) -> int:
        """Return the share of each of its GPUs, in thousandths of a processor."""
        return int(1000 * self.cpus) // max(1, gpus)

    def memory_mib_per_gpu(self, gpus: int) -> int:
        return self.memory_mib // max(1, gpus)


def machine_of(cpus: Any, memory_mib: Any, gpus: int) -> Machine:
    """Return what jobs may use of a node with these facts, as its agent reported them, and this number of GPUs."""
    if not (isinstance(cpus, int | float) and isinstance(memory_mib, int) and cpus > 0 and memory_mib > 0):
        return Machine(USUAL_CPUS * gpus, USUAL_MEMORY_MIB * gpus)
    return Machine(cpus, max(memory_mib - SYSTEM_MEMORY_MIB, memory_mib // 2))


def read_machines(gpus: dict[int, int]) -> dict[int, Machine]:
    """Return what jobs may use of these nodes, by key; ``gpus`` has the number of usable GPUs of each. One query."""
    rows = Node.objects.filter(pk__in=list(gpus)).values_list("pk", "facts__cpus", "facts__memory_mib")
    return {pk: machine_of(cpus, memory, gpus[pk]) for pk, cpus, memory in rows}
