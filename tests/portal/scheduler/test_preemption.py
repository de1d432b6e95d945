"""A policy that stops running jobs, in a lab with agents: what happens to the job that was stopped."""

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.accounts.models import Limit
from portal.cluster.models import Node
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Attempt, Container, Job, Outcome
from portal.scheduler import snapshot
from portal.scheduler.services import switch_policy
from tests.portal.control_world import gpus_of, heartbeat, queue, ready_node, run_agents, turn

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def node() -> Node:
    switch_policy(None, "tiresias", {"threshold": 600.0, "knob": 0.0})
    return ready_node("a", 2)


def age(job: Job, seconds: float) -> None:
    """Make its live attempt that much older."""
    begin = timezone.now() - timedelta(seconds=seconds)
    Attempt.objects.filter(job=job, ended_at=None).update(created_at=begin, started_at=begin)
    Allocation.objects.filter(attempt__job=job, released_at=None).update(allocated_at=begin)


def running(job: Job, seconds: float = 0) -> Job:
    turn()
    run_agents()
    assert gpus_of(job)
    age(job, seconds)
    return job


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def turns(count: int = 1) -> None:
    for _ in range(count):
        heartbeat()
        turn()
        run_agents()


def test_a_job_that_had_much_makes_room_and_goes_on_later(node: Node) -> None:
    old = running(queue(2, resumable=True, time_limit_seconds=3600, retries=0), 1000)
    new = queue(2)
    heartbeat()
    assert turn().applied.stopped == [old.pk]
    assert gpus_of(new) == 0, "nothing is given twice: the GPUs are still on their way back"
    run_agents()
    first = old.attempts.get()
    assert (first.outcome, first.stop_reason, state_of(old)) == (Outcome.PREEMPTED, "preempted", "QUEUED")
    assert first.explanation["title"] == "Stopped to make room for others"

    turns(2)
    assert (gpus_of(new), gpus_of(old), state_of(new)) == (2, 0, "RUNNING")
    old.refresh_from_db()
    assert old.why_waiting
    run_agents(finish=True)
    assert state_of(new) == "SUCCEEDED"

    turns(2)
    second = old.attempts.get(number=2)
    assert state_of(old) == "RUNNING" and second.counted_seconds == pytest.approx(1000, abs=10)
    seen = next(job for job in snapshot.take().jobs if job.id == str(old.pk))
    assert (seen.restarts, seen.preemptible) == (1, True)
    assert seen.longest_seconds == pytest.approx(2600, abs=10)

    history = [event.sentence for event in old.events.order_by("seq")]
    stop = next(place for place, text in enumerate(history) if "make room" in text)
    assert history[stop] == (
        "Attempt 1 was asked to stop: to make room for others; it restarts from its checkpoint later."
    )
    assert history[stop + 1 : stop + 3] == [
        "Attempt 1 ended: preempted. Stopped to make room for others.",
        "The job is queued again, to restart from its checkpoint.",
    ]
    assert history[stop + 3].startswith("Attempt 2 was placed on a (2 CPU slots) by Tiresias")


def test_every_attempt_of_a_job_has_the_same_checkpoints(node: Node) -> None:
    """Their folder is named after the job, not after the attempt."""
    old = running(queue(2, resumable=True), 1000)
    queue(2)
    turns(3)
    run_agents(finish=True)
    turns(2)
    specs = [part.spec for part in Container.objects.filter(attempt__job=old, role="host").order_by("pk")]
    assert len(specs) == 2 and {spec["job"] for spec in specs} == {old.pk}
    assert [spec["number"] for spec in specs] == [1, 2]


def test_a_job_that_cannot_go_on_is_never_stopped(node: Node) -> None:
    old, new = running(queue(2), 3000), queue(2)
    turns(3)
    assert gpus_of(old) == 2 and state_of(new) == "QUEUED"
    assert old.attempts.count() == 1


def test_being_preempted_uses_up_no_retry_and_no_waiting_counts(node: Node) -> None:
    old = queue(2, resumable=True, time_limit_seconds=4000, retries=0)
    for number in range(1, 4):
        running(old, 1000)
        queue(2)
        turns(1)
        assert old.attempts.filter(outcome=Outcome.PREEMPTED).count() == number
        Attempt.objects.filter(job=old, number=number).update(created_at=timezone.now() - timedelta(days=number))
        turns(2)
        run_agents(finish=True)
    running(old)
    assert state_of(old) == "RUNNING"
    assert old.attempts.get(ended_at=None).counted_seconds == pytest.approx(3000, abs=30)
    age(old, 990)
    heartbeat()
    lifecycle.sweep()
    assert not old.attempts.filter(stop_reason="timed_out").exists()
    age(old, 1010)
    heartbeat()
    lifecycle.sweep()
    run_agents()
    assert state_of(old) == "FAILED"


def test_it_finishes_if_it_was_done_before_it_heard(node: Node) -> None:
    old = running(queue(2, resumable=True, launcher="command"), 1000)
    queue(2)
    heartbeat()
    turn()
    for part in Container.objects.filter(attempt__job=old):
        lifecycle.advance(part, "EXITED", exit_code=0, exit_reason="exited")
    assert state_of(old) == "SUCCEEDED"


def test_under_fair_share_who_had_most_makes_room_for_others() -> None:
    switch_policy(None, "fair_share", {})
    ready_node("a", 2)
    greedy = running(queue(1, resumable=True, time_limit_seconds=10**6), 50_000)
    also = running(queue(1, resumable=True, time_limit_seconds=10**6), 50_000)
    other = queue(1, owner="bob")
    Limit.objects.create(user=other.submitted_by, weight=3.0)
    turns(3)
    assert gpus_of(other) == 1 and gpus_of(greedy) + gpus_of(also) == 1
    stopped = next(job for job in (greedy, also) if not gpus_of(job))
    assert "make room for others" in stopped.events.get(kind="stopping").sentence


def test_a_job_that_was_just_placed_is_stopped_only_when_the_damping_time_is_over(node: Node) -> None:
    spare = running(queue(2, opportunistic=True, resumable=True), 5)
    first = queue(2)
    turns(2)
    assert (gpus_of(spare), gpus_of(first)) == (2, 0)
    age(spare, 31)
    turns(2)
    assert (gpus_of(spare), gpus_of(first)) == (0, 2)
