"""No job gets more processors or memory than are left, whatever a policy plans.

The policies of the registry ask ``Capacity`` what fits. A lab's own policy, or a search that counts GPUs alone, may not:
its plan is decided again without the nodes on which too little is left, and a job that still finds no place waits.
"""

from collections.abc import Callable, Set
from dataclasses import replace

from scheduling.toolkit import reasons, resources
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.types import Job, JobId, NodeId, Plan, Snapshot

MAX_ATTEMPTS = 3
"""How often a plan is decided again; each time costs as much as the first decision."""


def plan_what_is_affordable(plan: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """Return the decision of ``plan``, within the processors and memory that are left; unchanged where GPUs alone count."""
    done = plan(snapshot)
    if not resources.matter(snapshot):
        return done
    view = snapshot
    for _ in range(MAX_ATTEMPTS):
        unaffordable = _unaffordable_nodes(snapshot, done)
        if not unaffordable:
            return _with_reasons(snapshot, view, done)
        view = replace(
            view, jobs=tuple(_without_nodes(job, view, unaffordable.get(job.id, set())) for job in view.jobs)
        )
        done = plan(view)
    target = dict(done.target)
    known = {job.id: job for job in snapshot.jobs}
    for id in _unaffordable_nodes(snapshot, done):
        target[id] = known[id].now_on if known[id].running else {}
    return _with_reasons(snapshot, view, replace(done, target={id: where for id, where in target.items() if where}))


def _added(job: Job, plan: Plan, left: Capacity) -> dict[NodeId, int]:
    """Return the GPUs of open nodes that a plan adds to those that the job holds."""
    mine = {} if job.stopping else job.now_on
    more = {node: gpus - mine.get(node, 0) for node, gpus in plan.target.get(job.id, {}).items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0 and node in left.nodes}


def _unaffordable_nodes(snapshot: Snapshot, plan: Plan) -> dict[JobId, set[NodeId]]:
    """Return for each job the nodes on which too little is left for it, after the jobs before it in the queue."""
    left = Capacity(snapshot)
    found: dict[JobId, set[NodeId]] = {}
    for job in in_queue_order(snapshot.jobs):
        more = _added(job, plan, left)
        levels = left.levels(job)
        if lacking := {node for node, gpus in more.items() if levels[node] < gpus <= left.free[node]}:
            found[job.id] = lacking
        else:
            left.reserve(more, job)
    return found


def _without_nodes(job: Job, snapshot: Snapshot, nodes: Set[NodeId]) -> Job:
    if not nodes:
        return job
    usual = frozenset(node.id for node in snapshot.nodes) if job.nodes is None else job.nodes
    return replace(job, nodes=usual - nodes)


def _with_reasons(snapshot: Snapshot, view: Snapshot, plan: Plan) -> Plan:
    """Return the plan with reasons for the jobs that wait because nodes were excluded for them."""
    if view is snapshot:
        return plan
    left = Capacity(snapshot)
    for job in snapshot.jobs:
        left.reserve(_added(job, plan, left), job)
    restricted = {job.id for job, seen in zip(snapshot.jobs, view.jobs, strict=True) if job.nodes != seen.nodes}
    why = dict(plan.reasons)
    for job in snapshot.jobs:
        if job.id in restricted and job.waiting and not plan.target.get(job.id):
            why[job.id] = reasons.shortage(job, left, reasons.ahead_of(why[job.id]) if job.id in why else 0)
    return replace(plan, reasons=why)
