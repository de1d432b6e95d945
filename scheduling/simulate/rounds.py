"""A simulation in rounds, like that of published simulators, so that our figures can be compared with theirs.

Decisions are made only at multiples of ``seconds``. A job is considered at the first round at or after its submission;
running jobs are updated before the decision; GPUs of jobs that ended are available from the next round on. GPUs asked
back are free at once, and the policy decides again until its plan is stable (``settle``), so only the difference between
two rounds counts: a job on the same GPUs pays nothing, one on other GPUs ``resize_seconds`` (elastic) or
``restart_seconds``. No job has a base.
"""

import heapq
import math
from collections.abc import Mapping, Sequence

from scheduling.simulate.engine import IDLE_CYCLES, Engine
from scheduling.simulate.settle import settle
from scheduling.types import Job, JobId, Node, NodeId, Placement, Plan


def run_in_rounds(engine: Engine, seconds: float) -> None:
    until = math.inf if engine.options.until is None else engine.options.until
    at = seconds * math.ceil(engine.now / seconds)
    idle = 0
    while engine.events or engine.jobs:
        if not engine.jobs:
            at = max(at, seconds * math.ceil(engine.events[0][0] / seconds))
        if at > until:
            break
        while engine.events and engine.events[0][0] <= at:
            when, _, _, kind, about = heapq.heappop(engine.events)
            engine.advance_clock(max(engine.now, when))
            engine.process_event(kind, about)
        engine.advance_clock(at)
        if engine.jobs:
            _run_round(engine)
        under_way = engine.events or any(live.job.now_on for live in engine.jobs.values())
        idle = 0 if under_way else idle + 1
        if idle > IDLE_CYCLES:
            break
        at += seconds
    if until < math.inf:
        engine.advance_clock(max(until, engine.now))


def _run_round(engine: Engine) -> None:
    before = engine.snapshot()
    if engine.could_change():
        plan, after = settle(engine.policy, before, ask=engine.decide, movable=True)
        engine.state = plan.state
        targets: Mapping[JobId, Placement] = {job.id: job.now_on for job in after.jobs}
        if engine.options.placement != "own":
            targets = place_emptiest_first(
                before.nodes, before.jobs, targets, plan, engine.options.placement == "larger first"
            )
        _apply(engine, before.jobs, targets, plan)
    for live in engine.jobs.values():
        if live.job.now_on:
            engine.schedule_end(live)  # the remaining time is in whole seconds, so each round computes it again


def _apply(engine: Engine, jobs: Sequence[Job], targets: Mapping[JobId, Placement], plan: Plan) -> None:
    changed = [(engine.jobs[job.id], job, targets[job.id]) for job in jobs if targets[job.id] != job.now_on]
    for live, job, target in changed:
        if job.now_on and (not target or not job.elastic):
            engine.stop(live, at_once=True)
    for live, job, target in changed:
        if target and job.now_on and job.elastic:
            engine.resize(live, target, at_once=True)
        elif target:
            engine.start(live, target, movable=True)
    for job in jobs:
        if targets[job.id]:
            engine.choose_batch(engine.jobs[job.id], plan.batches.get(job.id, 0))


def place_emptiest_first(
    nodes: Sequence[Node], jobs: Sequence[Job], targets: Mapping[JobId, Placement], plan: Plan, larger_first: bool
) -> dict[JobId, Placement]:
    """Place the same counts like the simulator of Pollux: jobs that keep their count stay, others go to the emptiest node.

    Ties go to the first node. New jobs are placed larger first, or else in the order of the plan.
    """
    counts = {job.id: sum(targets[job.id].values()) for job in jobs}
    placed: dict[JobId, Placement] = {job.id: {} for job in jobs}
    free = {node.id: node.total for node in nodes if node.open}
    for job in jobs:
        if job.now_on and job.gpus == counts[job.id]:
            placed[job.id] = job.now_on
            for node, gpus in job.now_on.items():
                free[node] = free.get(node, 0) - gpus
    rank = {id: number for number, id in enumerate(plan.target)}
    new = [job for job in jobs if counts[job.id] and not placed[job.id]]
    new.sort(key=(lambda job: -counts[job.id]) if larger_first else (lambda job: rank.get(job.id, 0)))
    for job in new:
        placed[job.id] = _take_emptiest(free, counts[job.id])
    return placed


def _take_emptiest(free: dict[NodeId, int], count: int) -> Placement:
    where: dict[NodeId, int] = {}
    while count:
        node = max(free, key=lambda node: free[node])
        where[node] = min(count, free[node])
        count -= where[node]
        free[node] -= where[node]
    return where
