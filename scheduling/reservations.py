"""Reservations around any policy.

For the policy, each reservation splits its node in two: a part for all jobs, and a part that only some jobs may use.
During the reservation, these are the jobs of its owners. Before it begins, they are also the jobs that will be gone in
time: those that can restart from a checkpoint, and those whose time limit ends before. When it begins, other jobs that
still hold its GPUs and can release them are asked to. Jobs of its owners may not run into the next reservation of
others, either.

Only this module knows on which part a job is. The state of the plan contains it, so that a policy finds its jobs in the
next cycle where it put them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from scheduling import tiers
from scheduling.messages import Message
from scheduling.toolkit import resources
from scheduling.toolkit.placement import without_empty_nodes
from scheduling.types import Job, JobId, NodeId, Placement, Plan, Reservation, Snapshot

LOOK_AHEAD_SECONDS = 30 * 86400.0
"""How far ahead reservations count: a job without a known end does not use GPUs that are reserved within this time."""
RESERVED_PARTS_KEY = "reserved parts"
"""The key in the state of a plan for the number of GPUs by job and part."""


@dataclass(frozen=True, slots=True)
class ReservedPart:
    """The reserved part of a node, as a separate node."""

    id: NodeId
    reservation: Reservation
    free: int
    leaving: int
    followers: tuple[Reservation, ...] = ()
    """Later reservations that need these GPUs."""

    def admits(self, job: Job, now: float) -> bool:
        return _may_use(job, self.reservation, self.followers, now)


def plan_with_reservations(plan: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """Return the decision of ``plan`` with reserved GPUs kept for their owners; unchanged without reservations."""
    ahead = [
        item
        for item in sorted(snapshot.reservations, key=lambda item: (item.start, item.name, item.node))
        if item.end > snapshot.now and item.start < snapshot.now + LOOK_AHEAD_SECONDS
    ]
    put = snapshot.state.get(RESERVED_PARTS_KEY, {})
    if RESERVED_PARTS_KEY in snapshot.state:
        snapshot = replace(
            snapshot, state={key: value for key, value in snapshot.state.items() if key != RESERVED_PARTS_KEY}
        )
    if not ahead:
        return plan(snapshot)
    cleared, asked = _reclaim_reserved_gpus(snapshot, [item for item in ahead if item.start <= snapshot.now])
    view, parts = _split_nodes(cleared, ahead, put)
    done = plan(view)
    real = {part.id: part.reservation.node for part in parts}
    target = {job: _merge_parts(where, real) for job, where in {**asked, **done.target}.items()}
    why = {job: _mention_reserved_gpus(job, reason, view, parts) for job, reason in done.reasons.items()}
    target = {job: where for job, where in target.items() if where}
    whole = _start_on_whole_nodes(plan, cleared, parts, target)
    return replace(
        done,
        target={**target, **whole},
        reasons={job: reason for job, reason in why.items() if job not in whole},
        state={**done.state, RESERVED_PARTS_KEY: _gpus_by_part(done.target, parts)},
    )


def _gpus_by_part(target: Mapping[JobId, Placement], parts: list[ReservedPart]) -> dict[JobId, dict[NodeId, int]]:
    """Return, for jobs on nodes with a reserved part, the number of GPUs on each part, zero or more."""
    homes = {part.reservation.node for part in parts}
    return {
        job: {part.id: where.get(part.id, 0) for part in parts}
        for job, where in target.items()
        if any(node in homes for node in where) or any(part.id in where for part in parts)
    }


def _start_on_whole_nodes(
    plan: Callable[[Snapshot], Plan], snapshot: Snapshot, parts: list[ReservedPart], target: Mapping[JobId, Placement]
) -> dict[JobId, Placement]:
    """Start jobs that fit on neither part of a node but may use both: a plain command needs all GPUs on one node."""
    left = {node.id: node.free for node in snapshot.nodes}
    for job in snapshot.jobs:
        for node, gpus in target.get(job.id, {}).items():
            if node in left and not job.stopping:
                left[node] -= max(0, gpus - job.now_on.get(node, 0))
    jobs = []
    for job in snapshot.jobs:
        theirs = {part.reservation.node for part in parts if part.admits(job, snapshot.now)}
        closed = {part.reservation.node for part in parts if not part.admits(job, snapshot.now)}
        both = theirs - closed if job.nodes is None else (theirs - closed) & job.nodes
        if job.waiting and not job.spread and both and not target.get(job.id):
            jobs.append(replace(job, nodes=frozenset(both)))
    if not jobs:
        return {}
    known = {job.id: job for job in snapshot.jobs}
    held = {id: max(job.gpus if job.running else 0, sum(target.get(id, {}).values())) for id, job in known.items()}
    limits = tuple(
        replace(limit, elsewhere=limit.elsewhere + sum(held.get(id, 0) for id in limit.jobs))
        for limit in snapshot.limits
    )
    extra = resources.extra_after(snapshot, target)
    nodes = tuple(
        resources.with_extra(replace(node, free=max(0, left[node.id]), leaving=0), extra[node.id])
        for node in snapshot.nodes
    )
    done = plan(replace(snapshot, nodes=nodes, jobs=tuple(jobs), limits=limits, state={}))
    return {job: where for job, where in done.target.items() if where}


def _reclaim_reserved_gpus(snapshot: Snapshot, active: list[Reservation]) -> tuple[Snapshot, dict[JobId, Placement]]:
    """Ask other jobs for the reserved GPUs that are not available otherwise; what they release is leaving."""
    layer_of = tiers.layer_by_job(snapshot)
    jobs = {job.id: job for job in snapshot.jobs}
    nodes = {node.id: node for node in snapshot.nodes}
    unclaimed = {node.id: node.free + node.leaving for node in snapshot.nodes}
    asked: dict[JobId, Placement] = {}
    for item in active:
        node = nodes.get(item.node)
        if node is None:
            continue
        ours = sum(job.now_on.get(item.node, 0) for job in jobs.values() if job.owner in item.owners and job.running)
        lacking = max(0, min(item.gpus, node.total) - ours)
        there = min(lacking, unclaimed[item.node])
        unclaimed[item.node] -= there
        lacking -= there
        others = [
            job for job in jobs.values() if job.running and job.owner not in item.owners and item.node in job.now_on
        ]
        others.sort(key=lambda job: (-tiers.LAYERS.index(layer_of[job.id]), job.lost_gpu_seconds_if_stopped, job.id))
        for id, give in _choose_releases(others, item.node, lacking).items():
            job = jobs[id]
            asked[id] = {where: left for where, gpus in job.now_on.items() if (left := gpus - give.get(where, 0))}
            jobs[id] = replace(job, now_on=asked[id], stopping=not asked[id])
            for where, gpus in give.items():
                if where in nodes:
                    more = resources.NOTHING.plus(resources.beyond_share(job, nodes[where]), gpus)
                    released = replace(nodes[where], leaving=nodes[where].leaving + gpus)
                    nodes[where] = resources.with_more(released, leaving=more)
    if not asked:
        return snapshot, asked
    before = {job.id: job.gpus for job in snapshot.jobs}
    limits = tuple(
        replace(limit, leaving=limit.leaving + sum(before[id] - jobs[id].gpus for id in limit.jobs & asked.keys()))
        for limit in snapshot.limits
    )
    return replace(snapshot, nodes=tuple(nodes.values()), jobs=tuple(jobs.values()), limits=limits), asked


def _choose_releases(others: Iterable[Job], node: NodeId, lacking: int) -> dict[JobId, Placement]:
    """Choose what each job releases so that ``lacking`` GPUs of ``node`` become free; ``others`` has the lowest layer first.

    As for tiers: first all that elastic jobs can spare, then whole jobs that can restart from a checkpoint.
    """
    give: dict[JobId, Placement] = {}
    for job in others:
        outside = min(job.gpus - job.min_gpus, job.now_on[node] - job.base.get(node, 0)) if job.elastic else 0
        if (spare := min(lacking, outside)) > 0:
            give[job.id] = {node: spare}
            lacking -= spare
    for job in others:
        if lacking > 0 and job.preemptible:
            lacking -= job.now_on[node] - give.get(job.id, {}).get(node, 0)
            give[job.id] = job.now_on
    return give


def _split_nodes(
    snapshot: Snapshot, ahead: list[Reservation], put: Mapping[JobId, Mapping[NodeId, int]]
) -> tuple[Snapshot, list[ReservedPart]]:
    """Return the snapshot with reserved parts as separate nodes; jobs that may use a part hold their GPUs there.

    The part for all jobs has the GPUs of jobs that may not use the other, then what was ``put`` there, then free GPUs,
    then the rest, up to its size.
    """
    nodes = {node.id: node for node in snapshot.nodes}
    totals = {node.id: node.total for node in snapshot.nodes}
    jobs = {job.id: job for job in snapshot.jobs}
    parts: list[ReservedPart] = []
    for number, item in enumerate(ahead):
        node = nodes.get(item.node)
        if node is None:
            continue
        here = sorted((job for job in jobs.values() if node.id in job.now_on), key=lambda job: job.queue_key)
        followers = _followers(item, ahead, totals[item.node])
        theirs = {job.id: job.now_on[node.id] for job in here if _may_use(job, item, followers, snapshot.now)}
        stay = sum(job.now_on[node.id] for job in here) - sum(theirs.values())
        room = max(0, node.total - item.gpus - stay)
        id = f"{node.id}/{number}"
        kept = dict.fromkeys(theirs, 0)
        for job, gpus in theirs.items():
            if id in put.get(job, ()):
                kept[job] = min(room, max(0, gpus - put[job][id]))
                room -= kept[job]
        free = min(node.free, room)
        leaving = min(node.leaving, room - free)
        room -= free + leaving
        for job, gpus in theirs.items():
            more = min(room, gpus - kept[job])
            kept[job] += more
            room -= more
        part = ReservedPart(id, item, node.free - free, node.leaving - leaving, followers)
        moved = 0
        for job, gpus in theirs.items():
            moved += gpus - kept[job]
            jobs[job] = _move_to_part(jobs[job], node.id, id, gpus - kept[job])
        size = part.free + part.leaving + moved
        nodes[node.id] = replace(node, total=node.total - size, free=free, leaving=leaving)
        of_part = replace(node, id=part.id, total=size, free=part.free, leaving=part.leaving)
        nodes[part.id] = resources.with_extra(of_part, resources.NOTHING)
        parts.append(part)
    return replace(
        snapshot, nodes=tuple(nodes.values()), jobs=_add_allowed_parts(snapshot, jobs.values(), parts)
    ), parts


def _move_to_part(job: Job, node: NodeId, part: NodeId, gpus: int) -> Job:
    if not gpus:
        return job
    left = job.now_on[node] - gpus
    base = job.base.get(node, 0)
    now_on = {**job.now_on, node: left, part: gpus}
    of_base = {**job.base, node: min(base, left), part: max(0, base - left)}
    return replace(job, now_on=without_empty_nodes(now_on), base=without_empty_nodes(of_base))


def _add_allowed_parts(snapshot: Snapshot, jobs: Iterable[Job], parts: list[ReservedPart]) -> tuple[Job, ...]:
    """Return the jobs with the parts that each may use added to its nodes."""
    usual = frozenset(node.id for node in snapshot.nodes)
    known: dict[tuple[frozenset[NodeId] | None, tuple[ReservedPart, ...]], frozenset[NodeId]] = {}

    def nodes_of(job: Job) -> frozenset[NodeId]:
        mine = tuple(part for part in parts if part.admits(job, snapshot.now))
        if (job.nodes, mine) not in known:
            here = usual if job.nodes is None else job.nodes
            known[job.nodes, mine] = here | {part.id for part in mine if part.reservation.node in here}
        return known[job.nodes, mine]

    return tuple(replace(job, nodes=nodes_of(job)) for job in jobs)


def _followers(item: Reservation, ahead: list[Reservation], total: int) -> tuple[Reservation, ...]:
    """Return the later reservations of the same node, of ``total`` GPUs, that have too few without the GPUs of ``item``."""
    here = [each for each in ahead if each.node == item.node and each is not item]

    def needs_them(later: Reservation) -> bool:
        at_once = sum(each.gpus for each in here if each.start <= later.start < each.end)
        return later.start >= item.end and at_once + item.gpus > total

    return tuple(filter(needs_them, here))


def _may_use(job: Job, item: Reservation, followers: tuple[Reservation, ...], now: float) -> bool:
    if job.owner in item.owners:
        return all(job.owner in each.owners or _is_gone_by(each.start, job, now) for each in followers)
    return item.start > now and _is_gone_by(item.start, job, now)


def _is_gone_by(moment: float, job: Job, now: float) -> bool:
    if job.preemptible:
        return True
    began = job.started_at if job.running and job.started_at is not None else now
    return job.longest_seconds is not None and began + job.longest_seconds <= moment


@dataclass(frozen=True)
class BesideReserved(Message):
    """A reason, and the free GPUs that the job may not use: its reservation has ``begun``, or begins before it would end."""

    code: ClassVar[str] = "beside_reserved"
    reason: Message
    count: int
    node: str
    name: str
    minutes: int
    """Until the reservation ends or, if it has not begun, until it begins."""
    begun: bool


def _merge_parts(where: Placement, real: Mapping[NodeId, NodeId]) -> Placement:
    together: dict[NodeId, int] = {}
    for node, gpus in where.items():
        home = real.get(node, node)
        together[home] = together.get(home, 0) + gpus
    return without_empty_nodes(together)


def _mention_reserved_gpus(id: JobId, reason: Message, view: Snapshot, parts: list[ReservedPart]) -> Message:
    """Add to a reason the free GPUs that are reserved and that the job may not use."""
    job = next((job for job in view.jobs if job.id == id), None)
    if job is None or job.blocked:
        return reason
    for part in parts:
        item = part.reservation
        if part.free and job.nodes is not None and part.id not in job.nodes and item.node in job.nodes:
            name = next(node.name for node in view.nodes if node.id == part.id)
            if job.owner in item.owners:
                item = next(each for each in part.followers if job.owner not in each.owners)
            begun = item.start <= view.now
            minutes = _rounded_minutes((item.end if begun else item.start) - view.now)
            return BesideReserved(reason, part.free, name, item.name, minutes, begun)
    return reason


def _rounded_minutes(seconds: float) -> int:
    """Return minutes, rounded to whole hours from two hours on, and to whole days from two days on."""
    minutes = max(1, round(seconds / 60))
    hours = round(minutes / 60)
    return minutes if minutes < 120 else hours * 60 if hours < 48 else round(hours / 24) * 24 * 60
