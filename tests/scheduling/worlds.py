"""Small clusters as literals, and a world that carries out plans like nodes do: releasing GPUs takes time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from scheduling.decide import decide
from scheduling.toolkit import resources
from scheduling.toolkit.placement import plus
from scheduling.types import Job, JobId, Limit, Node, NodeId, Placement, Plan, Policy, Reservation, Snapshot

NOW = 1000.0


def waiting(id: str, minimum: int = 1, maximum: int | None = None, **facts: Any) -> Job:
    facts.setdefault("submitted_at", 0.0)
    return Job(id=id, owner=facts.pop("owner", "alice"), min_gpus=minimum, max_gpus=maximum or minimum, **facts)


def running(id: str, on: Placement, minimum: int | None = None, maximum: int | None = None, **facts: Any) -> Job:
    """Return a running job; its base is its minimum on the node where it has the most GPUs, as after a start."""
    count = sum(on.values())
    elastic = facts.setdefault("elastic", minimum is not None and (minimum, maximum) != (count, count))
    minimum, maximum = minimum or count, maximum or count
    home = min(on, key=lambda node: (-on[node], node))
    base = {home: min(on[home], minimum)} if elastic else on
    return waiting(id, minimum, maximum, now_on=on, base=facts.pop("base", base), **facts)


def draw(
    nodes: Mapping[str, int],
    *jobs: Job,
    leaving: Mapping[str, int] | None = None,
    closed: tuple[str, ...] = (),
    limits: tuple[Limit, ...] = (),
    state: Mapping[str, Any] | None = None,
    now: float = NOW,
) -> Snapshot:
    """Return a snapshot. ``nodes`` maps names to GPUs. Jobs without ``submitted_at`` come in the order of the list."""
    jobs = tuple(replace(job, submitted_at=job.submitted_at or position + 1.0) for position, job in enumerate(jobs))
    views = []
    for name, total in nodes.items():
        on_their_way = (leaving or {}).get(name, 0)
        held = sum(job.now_on.get(name, 0) for job in jobs)
        views.append(Node(name, name, total, total - held - on_their_way, on_their_way, name not in closed))
    return Snapshot(now, tuple(views), jobs, limits, state or {})


@dataclass
class World:
    """Carries out plans. GPUs that are asked back are leaving until ``release``; jobs end with ``end``."""

    nodes: dict[NodeId, Node]
    jobs: dict[JobId, Job]
    limits: tuple[Limit, ...] = ()
    now: float = NOW
    damping_seconds: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    going: list[tuple[JobId, NodeId]] = field(default_factory=list)
    started: list[JobId] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot) -> "World":
        return cls(
            {node.id: node for node in snapshot.nodes},
            {job.id: job for job in snapshot.jobs},
            snapshot.limits,
            snapshot.now,
            snapshot.damping_seconds,
            snapshot.state,
            [("", node.id) for node in snapshot.nodes for _ in range(node.leaving)],
        )

    def snapshot(self) -> Snapshot:
        nodes = []
        for node in self.nodes.values():
            leaving = sum(where == node.id for _, where in self.going)
            held = sum(job.now_on.get(node.id, 0) for job in self.jobs.values())
            nodes.append(self._with_resources(replace(node, free=node.total - held - leaving, leaving=leaving)))
        limits = tuple(replace(limit, leaving=sum(job in limit.jobs for job, _ in self.going)) for limit in self.limits)
        return Snapshot(
            self.now, tuple(nodes), tuple(self.jobs.values()), limits, self.state, damping_seconds=self.damping_seconds
        )

    def _with_resources(self, node: Node) -> Node:
        """Count what jobs take in addition to the shares of their GPUs."""
        taken = leaving = resources.NOTHING
        for job in self.jobs.values():
            taken = taken.plus(resources.beyond_share(job, node), job.now_on.get(node.id, 0))
        for id, where in self.going:
            if where == node.id and id in self.jobs:
                leaving = leaving.plus(resources.beyond_share(self.jobs[id], node))
        extra = resources.NOTHING.plus(taken, -1).plus(leaving, -1)
        return resources.with_more(resources.with_extra(node, extra), leaving=leaving)

    def carry_out(self, plan: Plan) -> bool:
        """Carry out a plan; return whether something changed."""
        changed = False
        for job in list(self.jobs.values()):
            target = {node: gpus for node, gpus in plan.target.get(job.id, {}).items() if gpus}
            if target == dict(job.now_on):
                continue
            changed = True
            if not job.now_on:
                home = min(target, key=lambda node: (-target[node], node))
                base = {home: min(target[home], job.min_gpus)} if job.elastic else target
                self.jobs[job.id] = replace(job, now_on=target, base=base, started_at=self.now, since=self.now)
                self.started.append(job.id)
                continue
            for node, gpus in job.now_on.items():
                self.going += [(job.id, node)] * max(0, gpus - target.get(node, 0))
            self.jobs[job.id] = replace(job, now_on=target, since=self.now)
        self.state = plan.state
        return changed

    def release(self, count: int | None = None) -> None:
        del self.going[: len(self.going) if count is None else count]

    def end(self, job: JobId) -> None:
        del self.jobs[job]

    def submit(self, job: Job) -> None:
        self.jobs[job.id] = replace(job, submitted_at=job.submitted_at or self.now)

    def run_cycle(self, policy: Policy, seconds: float = 3.0) -> bool:
        changed = self.carry_out(policy.plan(self.snapshot()))
        self.now += seconds
        return changed


@dataclass(frozen=True)
class DecidedPolicy:
    """A policy as the product asks it: with tiers and reservations, and without needless changes."""

    policy: Policy
    reservations: tuple[Reservation, ...] = ()
    title: ClassVar[str] = ""
    explanation: ClassVar[str] = ""

    def plan(self, snapshot: Snapshot) -> Plan:
        return decide(self.policy, replace(snapshot, reservations=self.reservations))


def reaches_stable_plan(world: World, policy: Policy, cycles: int = 40) -> bool:
    """Return whether nothing changes any more within ``cycles``, with a fixed clock and GPUs released at once."""
    for _ in range(cycles):
        changed = world.run_cycle(policy, seconds=0)
        world.release()
        if not changed and not world.run_cycle(policy, seconds=0):
            return True
    return False


def sizes(plan: Plan) -> dict[JobId, int]:
    """Return the number of GPUs of each job, without those that have none."""
    return {job: sum(where.values()) for job, where in plan.target.items() if sum(where.values())}


__all__ = ["NOW", "DecidedPolicy", "World", "reaches_stable_plan", "draw", "plus", "running", "sizes", "waiting"]
