"""Round robin: each job goes to the next node in cyclic order; or all jobs take turns on the GPUs."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

from scheduling.messages import Message
from scheduling.params import param
from scheduling.toolkit import reasons
from scheduling.toolkit.capacity import Capacity, queue
from scheduling.toolkit.plan_builder import admit_in_order, build_plan
from scheduling.types import Job, JobId, Knows, NodeId, Placement, Plan, Snapshot

CLOCK_TOLERANCE_SECONDS = 0.001
"""Seconds of tolerance, so that rounding does not hide the end of a slice."""
MIN_SLICE_RESTARTS = 10
"""A slice is at least this many times as long as a restart, so that less than a tenth is lost."""


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Round robin over nodes or time. ``state`` is {"last": the last node}, so nodes may join or leave.

    The cyclic order of nodes is that of the Schedulearn prototype (confirmed in its code; the neighbours for a job larger
    than any node are ours). Time slices are those of Gandiva (confirmed in a secondary source only), by checkpoint and
    restart.
    """

    title: ClassVar[str] = "Round robin over nodes"
    explanation: ClassVar[str] = (
        "Each job, in the order of submission, goes to the next node in turn that has room, so that work spreads evenly. "
        "A job larger than any node is spread over neighbouring nodes; no job moves later."
    )
    good_for: ClassVar[str] = "even load on all machines"
    needs: ClassVar[str] = "nothing"
    knows: ClassVar[Knows] = "nothing"

    size: str = param(
        "most",
        "GPUs at the start",
        "How many GPUs a job that asked for a range gets when it starts.",
        choices=[("most", "as many as are free on the node, up to its maximum"), ("least", "its minimum")],
    )
    rotate: str = param(
        "nodes",
        "What rotates",
        "Nodes: each job goes to the next node and stays there until it ends. Time: jobs take turns; one that has a "
        "checkpoint is stopped after its slice when others wait, and gets as many GPUs as it asked for.",
        choices=[("nodes", "nodes"), ("time", "time slices")],
    )
    slice_seconds: int = param(
        600,
        "Length of a slice in seconds",
        "With time slices, how long a job runs before it must make room; at least ten times as long as its restart.",
        minimum=30,
        maximum=86_400,
    )

    def plan(self, snapshot: Snapshot) -> Plan:
        return self._take_turns(snapshot) if self.rotate == "time" else self._cycle_nodes(snapshot)

    def _cycle_nodes(self, snapshot: Snapshot) -> Plan:
        capacity = Capacity(snapshot)
        why: dict[JobId, Message] = {}
        unfit: set[Hashable] = set()
        last = snapshot.state.get("last", "")
        ahead = 0
        for job in queue(snapshot):
            if alone := reasons.impossible(job, capacity) or reasons.limited(job, capacity):
                why[job.id] = alone
                continue
            key = capacity.fit_key(job)
            found = None if key in unfit else self._next_placement(job, capacity, last)
            if found:
                where, last = found
                capacity.give(job, where)
            else:
                unfit.add(key)
                may_spread = job.spread and _is_larger_than_any_node(job, capacity)
                asks = job if may_spread == job.spread else replace(job, spread=may_spread)
                why[job.id] = reasons.shortage(asks, capacity, ahead)
                ahead += 1
        return Plan(capacity.held, why, {"last": last})

    def _next_placement(self, job: Job, capacity: Capacity, last: NodeId) -> tuple[Placement, NodeId] | None:
        """Return the placement on the next node with room and the last node tried, or None."""
        wanted = min(capacity.room(job), job.max_gpus if self.size == "most" else job.min_gpus)
        levels = capacity.levels(job)
        node = levels.first_after(last, job.min_gpus, capacity.scope(job).allowed)
        if node is not None:
            return {node: min(levels[node], wanted)}, node
        return _spread_over_nodes(job, capacity, wanted, last) if _is_larger_than_any_node(job, capacity) else None

    def _take_turns(self, snapshot: Snapshot) -> Plan:
        """Order jobs by their time in the queue; a running job goes to the end of the queue after each slice."""
        now = snapshot.now
        slices = {job.id: self._current_slice(job, now) for job in snapshot.jobs if job.running and job.preemptible}

        def place(job: Job) -> tuple[float, ...]:
            since, had = slices.get(job.id, (job.submitted_at, 0))
            if job.waiting:
                return -job.priority, 1, job.submitted_at if job.since is None else job.since, job.submitted_at
            return -job.priority, int(had > 0), since, job.submitted_at

        order = sorted((job for job in snapshot.jobs if not job.stopping), key=lambda job: (*place(job), job.id))
        wanted, _ = admit_in_order(snapshot, order, self._size)
        for job in order:
            if job.waiting and not job.elastic:
                wanted.setdefault(job.id, self._size(job))  # a job that fits into a gap of the packing may start
        ends = [slices[job.id][0] + self._slice_seconds(job) for job in order if job.id in slices]
        waits = any(job.waiting for job in snapshot.jobs)
        return build_plan(
            snapshot,
            order,
            wanted,
            short=self._shortage_reason if slices else reasons.shortage,
            again_at=min(ends) if ends and waits else None,
        )

    def _current_slice(self, job: Job, now: float) -> tuple[float, int]:
        """Return when the current slice of a job began, and how many it has had before."""
        started = now if job.started_at is None else job.started_at
        had = max(0, int((now - started + CLOCK_TOLERANCE_SECONDS) // self._slice_seconds(job)))
        return started + had * self._slice_seconds(job), had

    def _slice_seconds(self, job: Job) -> float:
        return max(self.slice_seconds, MIN_SLICE_RESTARTS * job.restart_seconds)

    def _size(self, job: Job) -> int:
        if job.running:
            return job.gpus
        return min(max(job.asked, job.min_gpus), job.max_gpus) if self.size == "most" else job.min_gpus

    def _shortage_reason(self, job: Job, capacity: Capacity, ahead: int) -> Message:
        return reasons.in_turns(reasons.shortage(job, capacity, ahead), self.slice_seconds)


def _is_larger_than_any_node(job: Job, capacity: Capacity) -> bool:
    return capacity.scope(job).largest < job.min_gpus


def _spread_over_nodes(job: Job, capacity: Capacity, wanted: int, last: NodeId) -> tuple[Placement, NodeId] | None:
    """Return neighbouring nodes, in cyclic order, for a job that is larger than any node."""
    if not job.spread or capacity.left(job) < job.min_gpus:
        return None
    where: dict[NodeId, int] = {}
    levels = capacity.levels(job)
    nodes = sorted(node.id for node in capacity.nodes_of(job) if levels[node.id] > 0)
    for node in (*(node for node in nodes if node > last), *(node for node in nodes if node <= last)):
        where[node] = min(levels[node], wanted)
        wanted -= where[node]
        last = node
        if not wanted:
            break
    return where, last
