"""The rules that every plan must keep, under any policy: the last check before a plan is applied."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from scheduling.failures import (
    GpusNotWhole,
    GpusOfClosedNode,
    GpusOfExcludedNode,
    GpusOfSeveralKinds,
    GpusOfSeveralNodes,
    GpusOfUnknownNodes,
    GpusOutOfRange,
    GpusWhileBlocked,
    GpusWhileStopping,
    JobNotInSnapshot,
    LimitExceeded,
    LossOfBase,
    MoreGpusThanFree,
    MoreThanFree,
    ReasonMissing,
    ResizeOfInelastic,
    StopOfUnstoppable,
)
from scheduling.gpu_requests import accepts
from scheduling.messages import Message, Text
from scheduling.toolkit import resources
from scheduling.types import GpuRequest, Job, Node, Placement, Plan, Snapshot


def violations(snapshot: Snapshot, plan: Plan) -> list[Message]:
    """Return one message for each rule that the plan breaks; none for a valid plan."""
    known = {job.id: job for job in snapshot.jobs}
    nodes = {node.id for node in snapshot.nodes}
    found: list[Message] = [JobNotInSnapshot(str(job)) for job in plan.target if job not in known]
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        if (target or job.now_on) and not (target is job.now_on and _may_keep_gpus(job, nodes)):
            found += _job_violations(job, target, nodes)
    found += _node_violations(snapshot, plan)
    found += _machine_violations(snapshot, plan)
    found += _limit_violations(snapshot, plan)
    found += [ReasonMissing(str(job)) for job, reason in plan.reasons.items() if not _is_reason(reason)]
    return found


def _is_reason(reason: Any) -> bool:
    """Whether this is a reason: a lab's own policy may return anything."""
    if isinstance(reason, Text):
        return isinstance(reason.text, str) and reason.text.strip() != ""
    return isinstance(reason, Message)


def _json_number(count: Any) -> float:
    """Return a number that JSON can represent: policies may give GPUs as NumPy numbers, or as fractions."""
    number = float(count)
    return int(number) if number.is_integer() else number


def _may_keep_gpus(job: Job, nodes: set[str]) -> bool:
    """Whether the job may keep what it has, which is what most plans do to most jobs."""
    return not job.stopping and job.min_gpus <= job.gpus <= job.max_gpus and job.now_on.keys() <= nodes


def _job_violations(job: Job, target: Placement, nodes: set[str]) -> Iterator[Message]:
    count = sum(target.values())
    if any(gpus < 0 or type(gpus) is not int for gpus in target.values()):
        yield GpusNotWhole(job.id)
    # Some of its GPUs may be lost, or some of its ranks ended: it may stay below its minimum, but not lose more.
    minimum = min(job.min_gpus, job.gpus) if job.running else job.min_gpus
    if count and not minimum <= count <= job.max_gpus:
        yield GpusOutOfRange(job.id, _json_number(count), job.min_gpus, job.max_gpus)
    if unknown := set(target) - nodes:
        yield GpusOfUnknownNodes(job.id, sorted(map(str, unknown)))
    if job.stopping:
        if count:
            yield GpusWhileStopping(job.id)
        return
    if job.running:
        yield from _running_job_violations(job, target)
    elif count and job.blocked:
        yield GpusWhileBlocked(job.id)


def _running_job_violations(job: Job, target: Placement) -> Iterator[Message]:
    count = sum(target.values())
    if not count:
        if not job.preemptible:
            yield StopOfUnstoppable(job.id)
        return
    changed = any(target.get(node, 0) != job.now_on.get(node, 0) for node in {*target, *job.now_on})
    if changed and not job.elastic:
        yield ResizeOfInelastic(job.id)
    if any(target.get(node, 0) < gpus for node, gpus in job.base.items()):
        yield LossOfBase(job.id)


def _added_gpus(job: Job, target: Placement) -> dict[str, int]:
    """Return the GPUs that the job does not hold already. Those of a stopping job do not count as held."""
    mine = {} if job.stopping else job.now_on
    more = {node: gpus - mine.get(node, 0) for node, gpus in target.items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0}


def _node_violations(snapshot: Snapshot, plan: Plan) -> Iterator[Message]:
    names = {node.id: node.name for node in snapshot.nodes}
    extra = resources.extra_after(snapshot, plan.target) if resources.matter(snapshot) else {}
    given: Counter[str] = Counter()
    unwanted = _UnwantedNodes(snapshot)
    for job in snapshot.jobs:
        target = plan.target.get(job.id)
        if not target or target is job.now_on:
            continue
        more = _added_gpus(job, target)
        given.update(more)
        for node in more:
            if (job.nodes is not None and node not in job.nodes) or node in unwanted.of(job):
                yield GpusOfExcludedNode(job.id, names.get(node, node))
    for view in snapshot.nodes:
        if given[view.id] and not view.open:
            yield GpusOfClosedNode(view.name, _json_number(given[view.id]))
        if given[view.id] > view.free:
            yield MoreGpusThanFree(view.name, view.free, _json_number(given[view.id]))
        elif given[view.id] and view.id in extra:
            yield from _resource_violations(view, given[view.id], extra[view.id])


class _UnwantedNodes:
    """The nodes whose GPUs jobs do not accept, looked up once for all jobs with the same request."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.nodes
        self._known: dict[tuple[GpuRequest, bool], frozenset[str]] = {}

    def of(self, job: Job) -> frozenset[str]:
        key = job.gpu_request, job.max_gpus == 1
        if key not in self._known:
            self._known[key] = frozenset(node.id for node in self.nodes if not accepts(job, node))
        return self._known[key]


def _machine_violations(snapshot: Snapshot, plan: Plan) -> Iterator[Message]:
    """Check that jobs which must not are not on several machines, and not on several kinds of GPUs."""
    nodes = {node.id: node for node in snapshot.nodes}
    for job in snapshot.jobs:
        target = plan.target.get(job.id)
        if not target or target is job.now_on or (job.spread and not job.gpu_request.same_kind):
            continue
        added = _added_gpus(job, target)
        held = job.now_on if job.running else {}  # also what it is to release: until then it is in both places
        there = [nodes[node] for node in {*added, *held} if added and node in nodes]
        if not job.spread and len({node.machine for node in there}) > 1:
            yield GpusOfSeveralNodes(job.id)
        if job.gpu_request.same_kind and len({node.kind for node in there}) > 1:
            yield GpusOfSeveralKinds(job.id)


def _resource_violations(node: Node, given: int, extra: resources.Amount) -> Iterator[Message]:
    """Check that processors and memory suffice when ``given`` GPUs are taken and ``extra`` remains beside their shares."""
    before = resources.extra_of(node)
    for index, share in enumerate(resources.share_of(node)):
        free, taken = node.free * share + before[index], given * share + before[index] - extra[index]
        if share and taken > max(free, 0):
            yield MoreThanFree(node.name, resources.RESOURCES[index], max(free, 0), _json_number(taken))


def _limit_violations(snapshot: Snapshot, plan: Plan) -> Iterator[Message]:
    """Check the limits, except soft ones. One that is exceeded already (lowered, or GPUs not yet released) forbids more."""
    hard = [limit for limit in snapshot.limits if not limit.soft]
    known = {job.id: job for job in snapshot.jobs} if hard else {}
    for limit in hard:
        members = [known[job] for job in limit.jobs if job in known]
        added = sum(sum(_added_gpus(job, plan.target.get(job.id, {})).values()) for job in members)
        held = limit.leaving + sum(job.gpus for job in members if not job.stopping)
        if added and held + added > limit.max_gpus:
            yield LimitExceeded(limit.max_gpus, limit.name, held, _json_number(added))
