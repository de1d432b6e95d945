"""Rows to Snapshot: what is free, what is leaving, who may start where, and why not."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import Limit
from portal.cluster.models import Node, NodeEnvironment
from portal.control import snapshot
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Container, Job
from scheduling.types import Job as JobView
from scheduling.types import Node as NodeView
from tests.portal.control_world import agents_do_as_told, project_of, queue, ready_node, turn
from tests.portal.jobs_world import exit, make_environment, make_node

pytestmark = pytest.mark.django_db


def view(job: Job) -> JobView:
    return next(item for item in snapshot.take().jobs if item.id == str(job.pk))


def node_view(node: Node) -> NodeView:
    return next(item for item in snapshot.take().nodes if item.id == str(node.pk))


def test_free_held_and_leaving_add_up() -> None:
    node, job = ready_node("a", 4), queue(1, 3)
    turn()
    agents_do_as_told()
    lifecycle.stop_container(Container.objects.filter(role="host").order_by("-index")[0], "preempted")
    assert (node_view(node).total, node_view(node).free, node_view(node).leaving) == (4, 1, 1)
    assert dict(view(job).now_on) == {str(node.pk): 2}
    assert dict(view(job).base) == {str(node.pk): 1}


def test_broken_and_vanished_gpus_do_not_count() -> None:
    node = ready_node("a", 4)
    node.gpus.filter(index=0).update(healthy=False)
    node.gpus.filter(index=1).update(present=False)
    assert (node_view(node).total, node_view(node).free) == (2, 2)


def test_a_held_gpu_that_breaks_is_neither_free_nor_taken_from_another() -> None:
    node, job = ready_node("a", 2), queue(1)
    turn()
    Allocation.objects.get().gpu.__class__.objects.filter(allocations__isnull=False).update(healthy=False)
    assert (node_view(node).total, node_view(node).free) == (1, 1)
    assert view(job).gpus == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"cordoned": True},
        {"draining": True},
        {"ready": False},
        {"last_seen_at": timezone.now() - timedelta(seconds=60)},
        {"last_seen_at": None},
        {"problems": [{"text": "No space.", "mend": "Make some.", "blocking": True}]},
    ],
)
def test_a_node_that_may_not_or_cannot_work_is_closed(facts: dict[str, Any]) -> None:
    assert not node_view(ready_node("a", **facts)).open


def test_a_node_with_small_problems_is_open() -> None:
    assert node_view(ready_node("a", problems=[{"text": "Old engine.", "mend": "Update."}])).open


def test_unapproved_and_removed_nodes_are_not_there() -> None:
    ready_node("a", approved_at=None)
    ready_node("b", removed_at=timezone.now())
    assert snapshot.take().nodes == ()


def test_only_jobs_that_want_or_hold_gpus_are_seen() -> None:
    ready_node("a", 1)
    waits, runs = queue(), queue(priority=5)
    queue(intent="hold", state="HELD")
    queue(state="SUCCEEDED", finished_at=timezone.now())
    turn()
    assert {job.id for job in snapshot.take().jobs} == {str(waits.pk), str(runs.pk)}


def test_a_stopping_job_gets_nothing_and_its_gpus_are_leaving() -> None:
    node, job = ready_node("a", 2), queue(1, 2)
    turn()
    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    assert view(job).stopping and not view(job).now_on
    assert node_view(node).leaving == 2


def test_a_job_whose_hosts_have_ended_is_not_started_twice() -> None:
    """Its driver still tidies up: it holds no GPU, but its attempt lives."""
    ready_node("a", 2)
    job = queue(1, 2)
    turn()
    agents_do_as_told()
    for host in Container.objects.filter(role="host"):
        exit(host)
    assert not view(job).waiting
    turn()
    assert job.attempts.count() == 1


def test_attempts_and_served_time_are_known() -> None:
    ready_node("a", 2)
    job = queue(1, 2)
    turn()
    Allocation.objects.update(allocated_at=timezone.now() - timedelta(seconds=30))
    agents_do_as_told()
    lifecycle.stop_attempt(job.attempts.get(), "preempted")
    agents_do_as_told()
    turn()
    assert view(job).restarts == 1
    assert 60 <= view(job).served_gpu_seconds < 65


def test_limits_of_users_and_groups_count_what_is_leaving() -> None:
    ready_node("a", 4)
    mine = queue(1, 3)
    turn()
    agents_do_as_told()
    lifecycle.stop_container(Container.objects.filter(role="host").order_by("-index")[0], "preempted")
    group = Group.objects.create(name="vision")
    project_of().created_by.groups.add(group)
    Limit.objects.create(user=mine.submitted_by, max_gpus=5)
    Limit.objects.create(group=group, max_gpus=7)
    Limit.objects.create(user=queue(owner="bob").submitted_by, max_queued=3)
    limits = snapshot.take().limits
    assert [(limit.name, limit.max_gpus, limit.leaving) for limit in limits] == [
        ("alice", 5, 1),
        ("group vision", 7, 1),
    ]
    assert all(str(mine.pk) in limit.jobs for limit in limits)


def test_only_rings_spread_and_only_between_nodes_that_reach_each_other() -> None:
    a, b = ready_node("a"), ready_node("b")
    ring, command = queue(), queue(launcher="command", entry="python train.py")
    assert not view(ring).spread
    for node in (a, b):
        node.facts = {"ring_address": f"10.0.0.{node.pk}"}
        node.save(update_fields=["facts"])
    assert view(ring).spread
    assert not view(command).spread


# Why a job cannot start anywhere


def test_without_a_node_it_says_who_can_add_one() -> None:
    assert view(queue()).blocked == "No node has joined the lab yet. An admin can add one under Nodes."


def test_more_than_the_lab_has_is_said_at_once() -> None:
    ready_node("a", 2)
    ready_node("b", 2)
    assert view(queue(9)).blocked == (
        "It needs 9 GPUs at once, but the lab has 4. Submit it with fewer, or ask an admin."
    )


@pytest.mark.parametrize(
    ("facts", "clause"),
    [
        ({"ready": False}, "a is still starting"),
        ({"draining": True}, "a is being drained"),
        ({"cordoned": True}, "a takes no new work by an admin's decision"),
        ({"last_seen_at": None}, "a has not been heard of for a while"),
        ({"problems": [{"text": "No space.", "mend": "", "blocking": True}]}, "a is unfit: No space"),
    ],
)
def test_a_lab_with_no_open_node_says_what_is_the_matter(facts: dict[str, Any], clause: str) -> None:
    ready_node("a", **facts)
    assert view(queue()).blocked == f"No node takes new work now: {clause}."


def test_an_environment_that_is_being_prepared_shows_how_far_it_is() -> None:
    environment = make_environment("chemistry")
    job = queue(environment=environment)
    for name, percent in (("slow", 10), ("quick", 62)):
        NodeEnvironment.objects.create(
            node=make_node(name), environment=environment, state="preparing", progress_percent=percent,
            detail="compiling Horovod",
        )  # fmt: skip
    assert view(job).blocked == ("Its environment chemistry is being prepared on node quick: 62 % (compiling Horovod).")


def test_an_environment_nobody_began_with_or_that_failed_is_told_apart() -> None:
    environment = make_environment("chemistry")
    node, job = make_node("a"), queue(environment=environment)
    assert view(job).blocked == "Its environment chemistry will be prepared on a node first."
    NodeEnvironment.objects.create(
        node=node, environment=environment, state="failed", detail="No compiler. Install g++."
    )
    assert view(job).blocked == ("Its environment chemistry could not be prepared on node a: No compiler. Install g++.")


def test_a_job_runs_only_where_its_environment_is_ready() -> None:
    a, _ = ready_node("a"), ready_node("b", environments=())
    assert view(queue()).nodes == frozenset({str(a.pk)})


def queries(jobs: int) -> int:
    while Job.objects.count() < jobs:
        queue(1, 2)
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert len(snapshot.take().jobs) == jobs
    return len(seen)


def test_the_number_of_queries_does_not_grow_with_the_jobs() -> None:
    ready_node("a", 4)
    ready_node("b", 4)
    Limit.objects.create(user=queue().submitted_by, max_gpus=3)
    few = queries(10)
    turn()
    assert queries(300) == few
    assert few <= 15
