"""Simulation of the lab's past under one policy, for the page and for ``manage.py simulate --history``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings

from portal.refused import Refused
from portal.whatif import figures, history
from portal.whatif.figures import Outcome
from portal.whatif.history import World
from scheduling.simulate import Options, Result, Spread, Summary, simulate
from scheduling.simulate.result import UNFAIR, JobResult, job_to_json
from scheduling.types import Plan, Policy, Snapshot

MAX_SECONDS_AFTER_WINDOW = 30 * 86_400.0
"""The maximum time beyond the window for which jobs that have not ended are simulated."""


def read_world(start: datetime, end: datetime) -> World:
    """Read the lab's past. Raises Refused when there is too little to simulate."""
    world = history.read(start, end)
    if not world.jobs:
        raise Refused("No job ran or waited in these days, so there is nothing to simulate.")
    if not world.nodes:
        raise Refused("No node offered GPUs in these days, so there is nothing to simulate on.")
    return world


def simulate_world(
    world: World,
    policy: Policy,
    *,
    options: Options | None = None,
    clock: Callable[[], float] | None = None,
    on_turn: Callable[[Snapshot, Plan], None] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Result:
    """Simulate the past under a policy. Losses, end, patience and damping are the lab's own, whatever ``options`` has."""
    return simulate(
        policy,
        world.nodes,
        [job.submission for job in world.jobs],
        now=world.start,
        limits=world.limits,
        accounts=world.accounts,
        reservations=world.reservations,
        options=replace(
            options or Options(),
            losses=world.losses,
            until=world.end + MAX_SECONDS_AFTER_WINDOW,
            patience_seconds=settings.PATIENCE_HOURS * 3600.0,
            damping_seconds=float(settings.DAMPING_SECONDS),
        ),
        clock=clock,
        on_turn=on_turn,
        on_progress=on_progress,
    )


# --- results with the simulator's figures, by the rules of the page -----------------------------------------------


def summarise(world: World, outcomes: Sequence[Outcome], result: Result | None = None) -> Summary:
    """Return the times of compared jobs, and amounts of all in the window; without ``result``, of what really happened."""
    compared = [each for each in outcomes if each.compared]
    ended = [each.turnaround for each in compared if each.turnaround is not None]
    rho = [each.rho for each in compared if each.rho is not None]
    held = sum(each.gpu_seconds for each in outcomes)
    lost = sum(each.lost_gpu_seconds for each in outcomes)
    restarts, resizes = sum(each.restarts for each in outcomes), sum(each.resizes for each in outcomes)
    capacity = world.capacity_gpu_seconds
    ends = [
        job.submission.job.submitted_at + each.turnaround
        for job, each in zip(world.jobs, outcomes, strict=True)
        if each.compared and each.turnaround is not None
    ]
    return Summary(
        jobs=len(compared),
        ended=len(ended),
        turnaround=Spread.of(ended),
        waiting=Spread.of(each.waiting for each in compared if each.waiting is not None),
        makespan=max(ends, default=world.start) - world.start,
        utilisation=held / capacity if capacity else 0.0,
        useful_utilisation=(held - lost) / capacity if capacity else 0.0,
        fairness=Spread.of(rho),
        unfair=sum(value > UNFAIR for value in rho) / len(rho) if rho else 0.0,
        gpu_hours=held / 3600,
        lost_gpu_hours=lost / 3600,
        restarts=(restarts + resizes) / len(outcomes) if outcomes else 0.0,
        preemptions=sum(each.preemptions for each in outcomes),
        resizes=resizes,
        turns=result.turns if result else 0,
        decision_ms=Spread.of(result.decision_ms if result else ()),
    )


def job_rows(world: World, outcomes: Sequence[Outcome], jobs: Sequence[JobResult]) -> list[dict[str, Any]]:
    """Return one row for each job, in the form of the simulator's, with whether it is ``compared``."""
    by_id = {job.id: job for job in jobs}
    return [
        job_to_json(by_id[past_job.submission.job.id])
        | {
            "owner": past_job.owner,
            "group": past_job.group,
            "gpu_seconds": each.gpu_seconds,
            "useful_gpu_seconds": each.gpu_seconds - each.lost_gpu_seconds,
            "lost_gpu_seconds": each.lost_gpu_seconds,
            "restarts": each.restarts,
            "waiting": each.waiting,
            "compared": each.compared,
        }
        for past_job, each in zip(world.jobs, outcomes, strict=True)
    ]


def actual_report(world: World) -> tuple[Summary, list[dict[str, Any]]]:
    """Return the summary and the jobs of what really happened."""
    outcomes = figures.actual_outcomes(world)
    return summarise(world, outcomes), job_rows(world, outcomes, figures.actual_results(world))


def simulated_report(world: World, result: Result) -> tuple[Summary, list[dict[str, Any]]]:
    outcomes = figures.simulated_outcomes(world, result)
    return summarise(world, outcomes, result), job_rows(world, outcomes, result.jobs)
