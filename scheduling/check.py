"""The rules that every plan must keep, under any policy: the last check before a plan is applied."""

from collections import Counter
from collections.abc import Iterator

from scheduling.types import Job, Placement, Plan, Snapshot


def violations(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Return one sentence for each rule that the plan breaks; none for a valid plan."""
    known = {job.id: job for job in snapshot.jobs}
    nodes = {node.id for node in snapshot.nodes}
    found = [f"Job {job} is not in the snapshot." for job in plan.target if job not in known]
    for job in snapshot.jobs:
        target = plan.target.get(job.id, {})
        if (target or job.now_on) and not (target is job.now_on and _sound(job, nodes)):
            found += _job(job, target, nodes)
    found += _nodes(snapshot, plan)
    found += _limits(snapshot, plan)
    found += [f"The reason for job {job} is empty." for job, reason in plan.reasons.items() if not reason.strip()]
    return found


def _sound(job: Job, nodes: set[str]) -> bool:
    """Whether the job may keep what it has, which is what most plans do to most jobs."""
    return not job.stopping and job.min_gpus <= job.gpus <= job.max_gpus and job.now_on.keys() <= nodes


def _job(job: Job, target: Placement, nodes: set[str]) -> Iterator[str]:
    count = sum(target.values())
    if any(gpus < 0 or type(gpus) is not int for gpus in target.values()):
        yield f"Job {job.id} is given a fraction of a GPU, or a negative number."
    # Some of its GPUs may be lost, or some of its ranks ended: it may stay below its minimum, but not lose more.
    minimum = min(job.min_gpus, job.gpus) if job.running else job.min_gpus
    if count and not minimum <= count <= job.max_gpus:
        yield f"Job {job.id} is given {count} GPUs, but runs on {job.min_gpus} to {job.max_gpus}."
    if unknown := set(target) - nodes:
        yield f"Job {job.id} is given GPUs of unknown nodes: {', '.join(sorted(unknown))}."
    if job.stopping:
        if count:
            yield f"Job {job.id} is being stopped, but is given GPUs."
        return
    if job.running:
        yield from _running(job, target)
    elif count:
        if job.blocked:
            yield f"Job {job.id} cannot start now, but is given GPUs."
        if len([gpus for gpus in target.values() if gpus]) > 1 and not job.spread:
            yield f"Job {job.id} must be on one node, but is given GPUs of several."


def _running(job: Job, target: Placement) -> Iterator[str]:
    count = sum(target.values())
    if not count:
        if not job.preemptible:
            yield f"Job {job.id} runs and cannot be stopped, but is given nothing."
        return
    changed = any(target.get(node, 0) != job.now_on.get(node, 0) for node in {*target, *job.now_on})
    if changed and not job.elastic:
        yield f"Job {job.id} is not elastic, but its GPUs are changed."
    if any(target.get(node, 0) < gpus for node, gpus in job.base.items()):
        yield f"Job {job.id} runs, but loses its base."
    if not job.spread and len([gpus for gpus in {**job.now_on, **target}.values() if gpus]) > 1:
        yield f"Job {job.id} must be on one node, but is given GPUs of several."


def _added(job: Job, target: Placement) -> dict[str, int]:
    """Return the GPUs that the job does not hold already. Those of a stopping job do not count as held."""
    mine = {} if job.stopping else job.now_on
    more = {node: gpus - mine.get(node, 0) for node, gpus in target.items()}
    return {node: gpus for node, gpus in more.items() if gpus > 0}


def _nodes(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    names = {node.id: node.name for node in snapshot.nodes}
    given: Counter[str] = Counter()
    for job in snapshot.jobs:
        target = plan.target.get(job.id)
        if not target or target is job.now_on:
            continue
        more = _added(job, target)
        given.update(more)
        for node in more:
            if job.nodes is not None and node not in job.nodes:
                yield f"Job {job.id} cannot run on node {names.get(node, node)}, but is given GPUs of it."
    for view in snapshot.nodes:
        if given[view.id] and not view.open:
            yield f"Node {view.name} is not open for new work, but {given[view.id]} of its GPUs are given."
        if given[view.id] > view.free:
            yield f"Node {view.name} has {view.free} free GPUs, but {given[view.id]} are given."


def _limits(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Check the limits, except soft ones. One that is exceeded already (lowered, or GPUs not yet released) forbids more."""
    hard = [limit for limit in snapshot.limits if not limit.soft]
    known = {job.id: job for job in snapshot.jobs} if hard else {}
    for limit in hard:
        members = [known[job] for job in limit.jobs if job in known]
        added = sum(sum(_added(job, plan.target.get(job.id, {})).values()) for job in members)
        held = limit.leaving + sum(job.gpus for job in members if not job.stopping)
        if added and held + added > limit.max_gpus:
            yield f"The limit of {limit.max_gpus} GPUs for {limit.name} is exceeded: {held} are held and {added} more given."
