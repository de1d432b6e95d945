"""Laws of the policies that never stop a running job: running jobs continue, and the first to come is the first to start."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling import registry
from scheduling.policies.round_robin import RoundRobin
from scheduling.toolkit.capacity import Capacity
from scheduling.types import Policy, Snapshot
from tests.scheduling.sentences import reasons_of
from tests.scheduling.strategies import EXAMPLES, snapshots
from tests.scheduling.worlds import World

SKIPPING = [
    registry.build("fifo", {"strict": False}),
    registry.build("round_robin", {}),
    registry.build("elastic_fifo", {}),
    registry.build("elastic_fifo", {"grow_after_seconds": 0}),
]
"""Policies in which a job may start before one that came first and does not fit."""
POLICIES = [
    *SKIPPING,
    registry.build("fifo", {}),
    registry.build("fifo", {"size": "least"}),
    registry.build("round_robin", {"size": "least"}),
    registry.build("elastic_fifo", {"strict": True}),
    registry.build("elastic_fifo", {"grow_after_seconds": 0, "up_to": "most", "least_gain": 0.0}),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)
many = settings(max_examples=EXAMPLES, deadline=None)


@every_policy
@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(snapshot=snapshots(), pace=st.sampled_from([None, 1, 2]))
def test_an_unchanged_world_comes_to_rest(policy: Policy, snapshot: Snapshot, pace: int | None) -> None:
    """Whatever nodes give back, all at once or one by one, changes end; and each job shrinks or grows, not both."""
    world = World.of(snapshot)
    quiet = 0
    resized: dict[str, list[int]] = {}
    for _ in range(150):
        before = {id: job.gpus for id, job in world.jobs.items()}
        changed = world.run_cycle(policy)
        for id, job in world.jobs.items():
            if before[id] and job.gpus != before[id]:
                resized.setdefault(id, []).append(job.gpus - before[id])
        quiet = 0 if changed or world.going else quiet + 1
        if quiet > 8:
            break
        world.release(pace)
    assert quiet > 8
    for id, steps in resized.items():
        turns = sum((one < 0) != (two < 0) for one, two in zip(steps, steps[1:], strict=False))
        assert turns <= 1, f"job {id} went to and fro: {steps}"


@every_policy
@many
@given(snapshot=snapshots())
def test_a_switch_of_policy_disturbs_no_job_that_is_not_elastic(policy: Policy, snapshot: Snapshot) -> None:
    """Running jobs keep their GPUs, whichever policy placed them and whatever state it left."""
    plan = policy.plan(replace(snapshot, state={}))
    for job in snapshot.jobs:
        if job.running and not job.elastic:
            assert dict(plan.target[job.id]) == dict(job.now_on)


@every_policy
@many
@given(snapshot=snapshots())
def test_a_job_ahead_of_its_equal_is_served_first(policy: Policy, snapshot: Snapshot) -> None:
    """Of two jobs that ask for the same on the same terms, the one behind never starts without the one ahead."""
    plan = policy.plan(snapshot)
    queue = sorted((job for job in snapshot.jobs if job.waiting and not job.blocked), key=lambda job: job.queue_key)
    limited = frozenset[str]().union(*(limit.jobs for limit in snapshot.limits))
    for position, ahead in enumerate(queue):
        for behind in queue[position + 1 :]:
            same = replace(ahead, id=behind.id, submitted_at=behind.submitted_at, owner=behind.owner) == replace(
                behind, priority=ahead.priority
            )
            if same and not {ahead.id, behind.id} & limited and plan.target.get(behind.id):
                assert plan.target.get(ahead.id)


@every_policy
@many
@given(snapshot=snapshots())
def test_no_job_is_resized_unless_a_job_gains_by_it(policy: Policy, snapshot: Snapshot) -> None:
    """With no job waiting, and none below its minimum, no job is asked for a GPU."""
    alone = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.running and job.gpus >= job.min_gpus))
    plan = policy.plan(alone)
    assert all(sum(plan.target[job.id].values()) >= job.gpus for job in alone.jobs)


@pytest.mark.parametrize("policy", SKIPPING, ids=str)
@many
@given(snapshot=snapshots())
def test_no_job_waits_that_would_fit_beside_the_plan(policy: Policy, snapshot: Snapshot) -> None:
    """Policies that may skip jobs conserve work: no waiting job could use the GPUs that stay free.

    GPUs kept for a job ahead, while others are on their way to it, are not left.
    """
    plan = policy.plan(snapshot)
    if any("given back" in reason for reason in reasons_of(plan).values()):
        return
    capacity = Capacity(snapshot)
    for job in snapshot.jobs:
        more = {node: n - job.now_on.get(node, 0) for node, n in plan.target.get(job.id, {}).items()}
        capacity.give(job, {node: n for node, n in more.items() if n > 0})
    for job in snapshot.jobs:
        if job.waiting and not job.blocked and not plan.target.get(job.id):
            largest = max((node.total for node in capacity.nodes_of(job)), default=0)
            if isinstance(policy, RoundRobin) and job.min_gpus <= largest:
                job = replace(job, spread=False)  # it waits for one node
            assert capacity.best_fit(job, job.max_gpus) is None


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshot=snapshots(calm=True))
def test_at_rest_no_elastic_job_could_have_one_more(snapshot: Snapshot) -> None:
    policy = registry.build("elastic_fifo", {"up_to": "most", "least_gain": 0.0})
    world = World.of(snapshot)
    for _ in range(60):
        world.run_cycle(policy)
        world.release()
    still = world.snapshot()
    capacity = Capacity(still)
    assert not any(job.elastic and job.running and job.gpus < job.max_gpus and capacity.grow(job) for job in still.jobs)
