"""Helpers for policies that share GPUs in counts, giving the next GPU to the most deserving job.

They decide here how many GPUs each job should have; ``plan_builder`` decides on which nodes.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

from scheduling.messages import Message
from scheduling.renamed import renamed
from scheduling.toolkit import reasons
from scheduling.toolkit.capacity import Capacity
from scheduling.toolkit.growth import growth_pays_off
from scheduling.toolkit.growth import max_size as max_size
from scheduling.toolkit.growth import next_size as next_size
from scheduling.types import Job, JobId, Snapshot

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__, {"fitted": "plan_until_placed", "most": "max_size", "settle": "skip_unprofitable_resizes"}
    )

Decision = TypeVar("Decision")
TRIES = 4
"""How often to decide again without the jobs that found no place; each time costs as much as the first decision."""


class Pool:
    """The number of GPUs that can be shared, and what limits leave of it.

    It starts with all GPUs on open nodes that are free, being released, or held by a job that can release them.
    Each running job starts with the GPUs that it cannot lose.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        resize: bool = True,
        preempt: bool = False,
        kept: AbstractSet[JobId] = frozenset(),
        excluded: AbstractSet[JobId] = frozenset(),
    ) -> None:
        """Count the GPUs. ``kept`` are running jobs that must not be stopped in this cycle, ``excluded`` get nothing."""
        self._excluded = excluded
        self._capacity = capacity = Capacity(snapshot, coming=True)
        self.free = sum(capacity.free.values())
        self.count: dict[JobId, int] = {}
        self.min_gpus: dict[JobId, int] = {}
        """The GPUs that a running job must keep if it continues."""
        self.impossible: dict[JobId, Message] = {}
        self._room = [limit.max_gpus - limit.elsewhere for limit in snapshot.limits]
        self._limits: dict[JobId, list[int]] = {}
        for index, limit in enumerate(snapshot.limits):
            for id in limit.jobs:
                self._limits.setdefault(id, []).append(index)
        known: dict[object, Message | None] = {}
        nodes = capacity.nodes.keys()
        for job in snapshot.jobs:
            if job.stopping:
                continue
            if job.now_on:
                # Other jobs cannot use its GPUs on closed nodes.
                here, gpus = nodes >= job.now_on.keys(), job.gpus
                minimum = gpus - (capacity.spare(job) if here and resize and job.elastic else 0)
                self.min_gpus[job.id] = minimum
                self.count[job.id] = 0
                if not (here and preempt and job.preemptible and job.id not in kept):
                    self.count[job.id] = minimum
                    self.free += gpus - minimum if here else 0
                    self._use(job.id, minimum)
                else:
                    self.free += gpus
            else:
                key = capacity.fit_key(job)
                if not job.blocked and key not in known:
                    known[key] = reasons.impossible(job, capacity)
                if why := job.blocked or known[key]:
                    self.impossible[job.id] = why

    def take(self, job: Job, gpus: int) -> bool:
        """Give the job ``gpus`` more GPUs, all or none; return whether it got them."""
        if gpus > self.free or job.id in self._excluded:
            return False
        if not job.elastic and self.count.get(job.id, 0) + gpus > self._capacity.scope(job).max_gpus(job):
            return False
        if any(gpus > self._room[index] for index in self._limits.get(job.id, ())):
            return False
        self.free -= gpus
        self.count[job.id] = self.count.get(job.id, 0) + gpus
        self._use(job.id, gpus)
        return True

    def _use(self, job: JobId, gpus: int) -> None:
        for index in self._limits.get(job, ()):
            self._room[index] -= gpus


def plan_until_placed(decide: Callable[[AbstractSet[JobId]], tuple[Decision, set[JobId]]]) -> Decision:
    """Return a decision, such as a plan, in which no GPUs stay idle for jobs that find no place.

    ``decide`` gets the jobs to exclude, and returns a decision and the jobs that should have GPUs but found no place.
    These are excluded from the next try, so that other jobs may use the GPUs.
    """
    decision, more = decide(frozenset())
    excluded: AbstractSet[JobId] = frozenset()
    for _ in range(TRIES):
        if more <= excluded:
            break
        excluded |= more
        decision, more = decide(excluded)
    return decision


def skip_unprofitable_resizes(snapshot: Snapshot, wanted: Mapping[JobId, int], within: float) -> dict[JobId, int]:
    """Return ``wanted`` without the changes of running jobs that are not worth an interruption.

    A running job grows only if that pays off ``within`` seconds. Jobs shrink only as far as others lack GPUs, those
    furthest above their wanted size first. (Ignoring all differences of one GPU would freeze jobs at one GPU.)
    """
    kept = dict(wanted)
    missing = -sum(node.free + node.leaving for node in snapshot.nodes if node.open)
    above: list[tuple[float, tuple[int, float, JobId], Job]] = []
    for job in snapshot.jobs:
        wish, gpus = wanted.get(job.id, 0), job.gpus
        if wish == gpus:
            continue
        if not wish or not job.running or gpus < job.min_gpus or (wish > gpus and growth_pays_off(job, wish, within)):
            missing += wish - gpus
        else:
            kept[job.id] = gpus
            if wish < gpus:
                above.append((-gpus / wish, job.queue_key, job))
    for _, _, job in sorted(above):
        given = max(0, min(missing, job.gpus - wanted[job.id]))
        kept[job.id] -= given
        missing -= given
    return kept
