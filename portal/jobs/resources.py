"""The processors, memory and space that a job asks for: what no node can give it is refused at once."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portal.cluster.models import Node
from portal.cluster.shares import read_machines
from portal.cluster.slots import lab_noun
from portal.jobs import gpu_choice
from portal.jobs.models import Attempt, Container, Job
from portal.jobs.spec import MIN_SCRATCH_MIB, Submission
from portal.refused import Refused
from portal.sentences.words import amount, gibibytes

Rooms = Sequence[tuple[int, int]]
"""The GPUs of each node, and how much it has of a resource."""


def check(asked: Submission) -> None:
    """Raise Refused for amounts that no nodes of the lab have, with the largest possible ones."""
    memory = asked.memory_mib_per_gpu
    if (memory, asked.cpus_per_gpu, asked.shm_mib, asked.scratch_mib) == (None, None, None, None):
        return
    totals, together = _gpus_of_nodes(asked)
    machines = read_machines(totals)
    if memory is not None:
        largest = _largest(largest_possible, together, {pk: each.memory_mib for pk, each in machines.items()}, asked)
        if largest is not None and memory > largest:
            raise Refused(
                f"No node has {gibibytes(memory)} of memory for each {_place(asked)}. "
                f"Ask for at most {largest} MiB ({gibibytes(largest)}).",
                field="memory_mib_per_gpu",
            )
    if asked.cpus_per_gpu is not None:
        largest = _largest(largest_possible, together, {pk: int(each.cpus) for pk, each in machines.items()}, asked)
        if largest is not None and asked.cpus_per_gpu > largest:
            instead = f"Ask for at most {largest}, or leave it empty." if largest else "Leave it empty."
            raise Refused(
                f"No node has {asked.cpus_per_gpu} processors for each {_place(asked)}. {instead}", field="cpus_per_gpu"
            )
    if asked.shm_mib is not None:
        shares = {pk: each.memory_mib_per_gpu(totals[pk]) for pk, each in machines.items()}
        rooms = [(gpus, shares[pk]) for counts in together for pk, gpus in counts.items() if pk in shares]
        _check_shm(asked, asked.shm_mib, rooms)
    if asked.scratch_mib is not None:
        largest = _largest(largest_per_container, together, _free_disk(totals), asked)
        _check_scratch(asked.scratch_mib, largest)


def _check_shm(asked: Submission, shm_mib: int, shares: Rooms) -> None:
    """``shares``: the GPUs of each node, and the memory that goes with each."""
    gpus = asked.min_gpus if asked.elastic else asked.max_gpus  # of the largest container
    memory = asked.memory_mib_per_gpu
    if memory is not None:
        largest = memory * min(gpus, max((count for count, _ in shares), default=gpus))
    else:
        largest = max((share * min(gpus, count) for count, share in shares), default=shm_mib)
    if shm_mib > largest:
        raise Refused(
            f"Its memory includes /dev/shm: ask for at most {largest} MiB ({gibibytes(largest)}), or for more memory.",
            field="shm_mib",
        )


def _check_scratch(scratch_mib: int, largest: int | None) -> None:
    if largest is not None and scratch_mib > largest:
        at_most = f"Ask for at most {largest} MiB ({gibibytes(largest)}), or leave it empty."
        instead = at_most if largest >= MIN_SCRATCH_MIB else "Leave it empty."
        raise Refused(
            f"No node has {gibibytes(scratch_mib)} of disk free for such a job. {instead}", field="scratch_mib"
        )


def _free_disk(nodes: Collection[int]) -> dict[int, int]:
    """Return the MiB that are free on the disk of each node's agent; one that does not report it may have any amount."""
    rows = Node.objects.filter(pk__in=list(nodes)).values_list("pk", "facts__disk_free_mib")
    return {pk: free if isinstance(free, int) else sys.maxsize for pk, free in rows}


def _largest(
    of: Callable[[Rooms, Submission], int | None],
    together: Sequence[Mapping[int, int]],
    room: Mapping[int, int],
    asked: Submission,
) -> int | None:
    """Return the most that ``of`` finds for any of the sets of GPUs that the job could have; None if it fits nowhere.

    ``room`` is how much each node has of a resource.
    """
    found = [of([(gpus, room[pk]) for pk, gpus in counts.items() if pk in room], asked) for counts in together]
    return max((each for each in found if each is not None), default=None)


def largest_per_container(rooms: Rooms, asked: Submission) -> int | None:
    """Return the most of a resource that each container of the job could have, at its minimum of GPUs; None as
    ``largest_possible`` does."""
    spreads = asked.launcher != Job.Launcher.COMMAND
    gpus = 0
    for count, room in sorted(rooms, key=lambda each: -each[1]):
        gpus = gpus + count if spreads else count
        if gpus >= asked.min_gpus:
            return room
    return None


def largest_possible(rooms: Rooms, asked: Submission) -> int | None:
    """Return the most of a resource that the job could have for each of its GPUs, at its minimum of GPUs.

    None when it would not even fit with none, which is for others to refuse: too few GPUs, or no nodes at all.
    """
    spreads = asked.launcher != Job.Launcher.COMMAND
    for each in sorted({total // count for gpus, total in rooms for count in range(1, gpus + 1)}, reverse=True):
        counts = [min(gpus, total // each) if each else gpus for gpus, total in rooms]
        if (sum(counts) if spreads else max(counts)) >= asked.min_gpus:
            return each
    return None


def asked_in_words(job: Job) -> str:
    """Return which GPUs a job asks for, and what in addition to them; empty where it takes what is usual."""
    each = f"per {lab_noun()}"
    parts = [
        gpu_choice.in_words(job),
        job.cpus_per_gpu and f"{amount('processors', 1000 * job.cpus_per_gpu)} {each}",
        job.memory_mib_per_gpu and f"{amount('memory', job.memory_mib_per_gpu)} {each}",
        job.shm_mib and f"{gibibytes(job.shm_mib)} for /dev/shm",
        job.scratch_mib and f"{gibibytes(job.scratch_mib)} for files",
    ]
    return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Grant:
    """What containers of an attempt have got on a node."""

    node: str
    containers: int
    text: str

    @property
    def where(self) -> str:
        return self.node if self.containers == 1 else f"{self.node}, {self.containers} of them"


def grants(attempt: Attempt | None) -> list[Grant]:
    """Return what the hosts of an attempt have got, those with the same on one node together."""
    found: Counter[tuple[str, str]] = Counter()
    hosts = attempt.containers.filter(role=Container.Role.HOST).select_related("node") if attempt else ()
    for host in hosts:
        if given := host.spec.get("resources"):
            found[host.node.name, _in_words(given)] += 1
    return [Grant(node, count, text) for (node, text), count in sorted(found.items())]


def _in_words(given: Mapping[str, Any]) -> str:
    parts = [amount("processors", round(1000 * given["cpus"])), amount("memory", given["memory_mib"])]
    space = gibibytes(given["disk_mib"] + given["tmp_mib"])
    return f"{', '.join(parts)}, {gibibytes(given['shm_mib'])} of it for /dev/shm; {space} for files"


def _gpus_of_nodes(asked: Submission) -> tuple[dict[int, int], list[Counter[int]]]:
    """Return the number of GPUs of each node of the lab, also of those that are closed now; and of those that the job
    accepts: for each model if all must be of one, else of all together."""
    totals = Counter[int]()
    together: dict[str, Counter[int]] = defaultdict(Counter)
    for gpus in gpu_choice.read_lab_gpus():
        totals[gpus.node] += gpus.total
        if gpu_choice.accepts(asked, gpus):
            together[gpus.model if asked.same_gpu_model else ""][gpus.node] += gpus.total
    return totals, list(together.values())


def _place(asked: Submission) -> str:
    return f"{lab_noun()} of such a job" if asked.min_gpus == 1 else f"of the {asked.min_gpus} {lab_noun()}s"
