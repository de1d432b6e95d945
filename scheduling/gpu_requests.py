"""Which GPUs jobs accept, around any policy.

A policy knows only on which nodes a job can run. A job that accepts GPUs of some models, or of at least some memory, can
run on the nodes that have those. One whose GPUs must all be of one kind gets the nodes of one kind: the kind that it
holds, or while it waits the one on which it can start soonest, chosen again in each cycle. Where the GPUs of that kind go
to others, and enough of another kind are left, the policy is asked again with the other one.

A machine with several kinds of GPUs is a node for each. A job that stays on one machine, and needs more GPUs than any of
them has of one kind, is therefore started here, on several of its nodes, when the policy has left enough of them free.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from scheduling.messages import Message
from scheduling.toolkit.capacity import Capacity, in_queue_order
from scheduling.toolkit.reasons import limited
from scheduling.toolkit.resources import demand_of, gpus_when_empty
from scheduling.types import ANY_GPU, Job, Node, NodeId, Placement, Plan, Snapshot

MAX_OTHER_KINDS = 2
"""How often a cycle is decided again because jobs can start on GPUs of another kind than the one chosen for them."""


def accepts(job: Job, node: Node) -> bool:
    """Return whether the job can use the GPUs of the node, as far as these are concerned."""
    fits = not node.parts_of_gpus or job.max_gpus == 1
    return fits and job.gpu_request.accepts(node.gpu_memory_mib, node.kind)


def with_accepted_nodes(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which each job can run only on nodes whose GPUs it accepts."""
    has_parts = any(node.parts_of_gpus for node in snapshot.nodes)
    if not has_parts and all(job.gpu_request is ANY_GPU for job in snapshot.jobs):
        return snapshot
    known: dict[Hashable, frozenset[NodeId]] = {}

    def restricted(job: Job) -> Job:
        request = job.gpu_request
        if not (has_parts or request.memory_mib or request.kinds):
            return job
        key = job.nodes, request.memory_mib, request.kinds, job.max_gpus == 1
        if key not in known:
            known[key] = frozenset(node.id for node in _nodes_of(job, snapshot.nodes) if accepts(job, node))
        return replace(job, nodes=known[key])

    return replace(snapshot, jobs=tuple(map(restricted, snapshot.jobs)))


def plan_with_gpu_requests(plan: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """Return the decision of ``plan``, in which jobs get GPUs of one kind where they must, with reasons that name the kinds.

    The snapshot is one of ``with_accepted_nodes``. Without requests and machines of several kinds, the decision is
    unchanged.
    """
    view = _with_one_kind(snapshot)
    done = plan(view)
    for _ in range(MAX_OTHER_KINDS):
        if (other := _with_other_kinds(snapshot, view, done)) is None:
            break
        then = plan(other)
        if not any(then.target.get(new.id) for new, old in zip(other.jobs, view.jobs, strict=True) if new is not old):
            break  # something else keeps them waiting
        view, done = other, then
    if any(node.part_of for node in snapshot.nodes):
        done = _start_on_whole_machines(view, done)
    if not snapshot.explain or not done.reasons:
        return done
    choosy = {job.id: job for job in snapshot.jobs if job.gpu_request != ANY_GPU and not job.blocked}
    reasons = {
        id: _with_request(choosy[id], why, snapshot) if id in choosy else why for id, why in done.reasons.items()
    }
    return replace(done, reasons=reasons)


@dataclass(frozen=True)
class OfRequestedGpus(Message):
    """Why a job waits that does not accept every GPU."""

    code: ClassVar[str] = "of_requested_gpus"
    reason: Message
    memory_mib: int
    kinds: list[str]
    same_kind: bool
    accepted: int
    """The GPUs of open nodes that it accepts, and on which its environment is ready."""


@dataclass(frozen=True)
class NoWholeMachine(Message):
    """It needs GPUs of several kinds, all on one machine, and too few of any machine are free."""

    code: ClassVar[str] = "no_whole_machine"
    needed: int
    free: int
    """The most that are free on one machine."""


def _with_request(job: Job, reason: Message, snapshot: Snapshot) -> Message:
    request = job.gpu_request
    accepted = sum(node.total for node in _nodes_of(job, snapshot.nodes) if node.open)
    return OfRequestedGpus(reason, request.memory_mib, list(request.kinds), request.same_kind, accepted)


def _nodes_of(job: Job, nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if job.nodes is None or node.id in job.nodes]


# --- one kind ----------------------------------------------------------------------------------------------------


def _with_one_kind(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which jobs whose GPUs must be of one kind can run only on nodes of one."""
    if not any(job.gpu_request.same_kind for job in snapshot.jobs) or len({node.kind for node in snapshot.nodes}) < 2:
        return snapshot
    known: dict[Hashable, frozenset[NodeId]] = {}
    capacity = Capacity(snapshot)

    def restricted(job: Job) -> Job:
        if not job.gpu_request.same_kind or job.stopping:
            return job
        held = tuple(sorted(job.now_on))
        factors = tuple(sorted(job.speed.kinds.items())) if job.speed else ()
        key = job.nodes, held, job.min_gpus, job.max_gpus, job.spread, factors, demand_of(job)
        if key not in known:
            known[key] = _nodes_of_one_kind(job, snapshot.nodes, capacity)
        return replace(job, nodes=known[key])

    return replace(snapshot, jobs=tuple(map(restricted, snapshot.jobs)))


def _with_other_kinds(snapshot: Snapshot, view: Snapshot, done: Plan) -> Snapshot | None:
    """Return ``view`` with another kind for waiting jobs that could start on what ``done`` leaves of it; None if none could."""
    waiting = [
        (place, job)
        for place, job in enumerate(snapshot.jobs)
        if job.gpu_request.same_kind and job.waiting and not job.blocked and not done.target.get(job.id)
    ]
    if not waiting or len({node.kind for node in snapshot.nodes}) < 2:
        return None
    left = _capacity_after(view, done)
    jobs = list(view.jobs)
    for place, job in sorted(waiting, key=lambda each: each[1].queue_key):
        free = left.free_for(job)
        tried = jobs[place].nodes or frozenset()
        kinds = _by_kind(node for node in left.nodes_of(job) if node.id not in tried)
        able = [kind for kind, nodes in kinds.items() if _together(job, nodes, free) >= job.min_gpus]
        if able and left.room(job) >= job.min_gpus:
            best = min(able, key=lambda kind: _rank_of_kind(job, kind, kinds[kind], free))
            jobs[place] = replace(job, nodes=frozenset(node.id for node in kinds[best]))
            if where := left.best_fit(jobs[place], job.min_gpus):
                left.give(job, where)
    return (
        replace(view, jobs=tuple(jobs))
        if any(new is not old for new, old in zip(jobs, view.jobs, strict=True))
        else None
    )


def _nodes_of_one_kind(job: Job, nodes: Sequence[Node], capacity: Capacity) -> frozenset[NodeId]:
    by_kind = _by_kind(_nodes_of(job, nodes))
    held = {node.kind for node in nodes if node.id in job.now_on}
    if held:
        return frozenset(node.id for kind in held for node in by_kind[kind])
    kinds = _by_kind(node for nodes in by_kind.values() for node in nodes if node.open)
    if not kinds:
        return frozenset()
    free = capacity.free_for(job)
    best = min(kinds, key=lambda kind: _rank_of_kind(job, kind, kinds[kind], free))
    return frozenset(node.id for node in by_kind[best])


def _by_kind(nodes: Iterable[Node]) -> Mapping[str, list[Node]]:
    found: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        found[node.kind].append(node)
    return found


def _rank_of_kind(job: Job, kind: str, nodes: Sequence[Node], free: Mapping[NodeId, int]) -> tuple[object, ...]:
    """Return the key of the best kind for a waiting job; ``free`` has the GPUs of each node that it could take now.

    It is one on which the job can start now, with more GPUs if possible. Otherwise it is the kind with the most GPUs, and
    not the one with the most free: GPUs that are kept for the job in this cycle must still be kept in the next. Among
    equals it is the fastest, then the one with the least memory, which leaves larger GPUs to those who need them.
    """
    now = _together(job, nodes, free)
    starts = now >= job.min_gpus
    factor = job.speed.kinds.get(kind, 1.0) if job.speed else 1.0
    gpus = (
        min(now, job.max_gpus)
        if starts
        else _together(job, nodes, {each.id: gpus_when_empty(each, job) for each in nodes})
    )
    return not starts, -gpus, -factor, min(node.gpu_memory_mib for node in nodes), kind


def _together(job: Job, nodes: Iterable[Node], gpus: Mapping[NodeId, int]) -> int:
    """Return how many of these GPUs, by node, the job could use at once."""
    counts = [max(0, gpus[node.id]) for node in nodes]
    return sum(counts) if job.spread else max(counts, default=0)


# --- whole machines ----------------------------------------------------------------------------------------------


def may_use_whole_machine(job: Job, snapshot: Snapshot) -> bool:
    """Return whether a waiting job is one that starts on several nodes of one machine, as its policy would not do."""
    if job.spread or job.gpu_request.same_kind or job.blocked:
        return False
    return _needs_several_kinds(job, snapshot.nodes, machines_of_several_kinds(snapshot))


def _start_on_whole_machines(snapshot: Snapshot, done: Plan) -> Plan:
    """Start jobs that need more GPUs of one machine than it has of any kind, on what the plan has left free."""
    jobs = [job for job in snapshot.jobs if job.waiting and not job.blocked and not job.spread]
    jobs = [job for job in jobs if not done.target.get(job.id) and not job.gpu_request.same_kind]
    machines = machines_of_several_kinds(snapshot)
    jobs = [job for job in in_queue_order(jobs) if _needs_several_kinds(job, snapshot.nodes, machines)]
    if not jobs:
        return done
    left = _capacity_after(snapshot, done)
    target, reasons = dict(done.target), dict(done.reasons)
    for job in jobs:
        if where := fit_on_machine(job, left, machines):
            target[job.id] = where
            left.give(job, where)
            reasons.pop(job.id, None)
        else:
            free = left.free_for(job)
            most = max(sum(free.get(node.id, 0) for node in nodes) for nodes in machines)
            reasons[job.id] = limited(job, left) or NoWholeMachine(job.min_gpus, most)
    return replace(done, target=target, reasons=reasons)


def fit_on_machine(job: Job, left: Capacity, machines: Sequence[Sequence[Node]]) -> Placement | None:
    """Return where a job that stays on one machine could start on several nodes of one of these, or None."""
    free = left.free_for(job)
    machine = max(machines, key=lambda nodes: sum(free.get(node.id, 0) for node in nodes))
    there = {node.id: free.get(node.id, 0) for node in machine}
    count = min(job.asked, sum(there.values()), left.room(job))
    return _fill(there, count) if count >= job.min_gpus else None


def machines_of_several_kinds(snapshot: Snapshot) -> list[list[Node]]:
    """Return the nodes of each machine that has several."""
    machines: dict[NodeId, list[Node]] = defaultdict(list)
    for node in sorted(snapshot.nodes, key=lambda node: node.id):
        if node.part_of:
            machines[node.part_of].append(node)
    return [nodes for nodes in machines.values() if len(nodes) > 1]


def _needs_several_kinds(job: Job, nodes: Sequence[Node], machines: Sequence[Sequence[Node]]) -> bool:
    """Return whether no single node has enough GPUs for the job, and some machine has."""
    if any(gpus_when_empty(node, job) >= job.min_gpus for node in _nodes_of(job, nodes) if node.open):
        return False
    totals = (sum(gpus_when_empty(node, job) for node in _nodes_of(job, parts) if node.open) for parts in machines)
    return any(total >= job.min_gpus for total in totals)


def _capacity_after(snapshot: Snapshot, done: Plan) -> Capacity:
    """Return what is left when the plan is carried out, without the GPUs that it keeps for waiting jobs."""
    left = Capacity(snapshot)
    for job in snapshot.jobs:
        held: Placement = {} if job.stopping else job.now_on
        more = {node: gpus - held.get(node, 0) for node, gpus in done.target.get(job.id, {}).items()}
        if added := {node: gpus for node, gpus in more.items() if gpus > 0 and node in left.nodes}:
            left.give(job, added)
    left.reserve({node: min(gpus, left.free[node]) for node, gpus in done.kept.items() if node in left.nodes})
    return left


def _fill(free: dict[NodeId, int], count: int) -> dict[NodeId, int]:
    """Return ``count`` of these GPUs, from the fullest nodes first."""
    chosen: dict[NodeId, int] = {}
    for node in sorted(free, key=lambda node: (-free[node], node)):
        if gpus := min(free[node], count - sum(chosen.values())):
            chosen[node] = gpus
    return chosen
