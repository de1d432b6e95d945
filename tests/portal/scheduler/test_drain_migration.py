"""A drain of all nodes of an elastic job: it first gets GPUs elsewhere, and leaves when their ranks have joined."""

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.accounts.limits import set_limit
from portal.cluster.models import Node, Reservation
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Container, ContainerState, Job
from portal.jobs.resize_timeline.models import RankGroup
from portal.scheduler import drain_migration, driver_failover
from tests.portal.control_world import gpus_of, queue, ready_node, run_agents, turn
from tests.portal.jobs_world import make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    """A job of two GPUs that runs on both of node a; b and c have one free each."""
    ready_node("a", 2, runtime="docker", facts={"ring_address": "10.1.0.1"})
    job = queue(2, 2, elastic=True)
    turn()
    run_agents()
    report_ranks(job, "h1", "h1")
    for number, name in enumerate("bc", start=2):
        ready_node(name, 1, runtime="docker", facts={"ring_address": f"10.1.0.{number}"})
    assert gpus_of(job) == 2
    return job


def report_ranks(job: Job, *hosts: str) -> None:
    """Let its driver report that the ranks of these hosts form the group now."""
    driver = Container.objects.filter(attempt__job=job, role="driver").order_by("index").last()
    assert driver is not None
    RankGroup.objects.create(driver=driver, number=driver.rank_groups.count() + 1, at=timezone.now(), hosts=list(hosts))


def drain(*names: str) -> None:
    Node.objects.filter(name__in=names).update(draining=True)


def wanted(job: Job) -> dict[str, str]:
    rows = Container.objects.filter(attempt__job=job, wanted="run").exclude(state=ContainerState.EXITED)
    return {part.spec["hostname"]: part.node.name for part in rows.order_by("index")}


def test_it_moves_without_a_restart(job: Job) -> None:
    drain("a")
    turn()
    assert wanted(job) == {"driver": "a", "h1": "a", "h2": "b", "h3": "c"}
    run_agents()
    turn()
    assert wanted(job) == {"driver": "a", "h1": "a", "h2": "b", "h3": "c"}, "the new ranks are still importing"
    report_ranks(job, "h1", "h1", "h2", "h3")
    turn()
    assert wanted(job) == {"driver": "a", "h2": "b", "h3": "c"}
    run_agents()
    turn()
    assert wanted(job) == {"h2": "b", "h3": "c"}
    run_agents()
    lifecycle.sweep()
    driver_failover.replace(timezone.now() + timedelta(seconds=5))
    assert set(wanted(job)) == {"h2", "h3", "driver"}
    assert job.attempts.count() == 1 and gpus_of(job) == 2
    assert not Allocation.objects.filter(gpu__node__name="a", released_at=None).exists()
    assert job.events.filter(kind="moving").count() == 1


def test_without_room_it_goes_by_its_checkpoint(job: Job) -> None:
    drain("a", "c")
    turn()
    assert wanted(job) == {}
    assert job.attempts.get().stop_reason == "drained"


@pytest.mark.parametrize(
    ("max_gpus", "soft", "moves_over"),
    [(3, False, False), (4, False, True), (3, True, True)],
    ids=["limit of three", "limit of four", "soft limit"],
)
def test_a_move_exceeds_no_limit_even_for_a_moment(job: Job, max_gpus: int, soft: bool, moves_over: bool) -> None:
    """It holds two GPUs and needs two others before it can leave those."""
    admin = make_user("admin", is_staff=True)
    set_limit(admin, job.submitted_by, max_gpus=max_gpus, max_queued=None, soft=soft)
    drain("a")
    turn()
    assert gpus_of(job) <= (4 if moves_over else 2)
    assert bool(job.events.filter(kind="moving")) == moves_over
    assert job.attempts.get().stop_reason == ("" if moves_over else "drained")


def test_nodes_that_others_have_reserved_are_no_room(job: Job) -> None:
    now = timezone.now()
    Reservation.objects.create(
        name="Course", node=Node.objects.get(name="b"), gpus=1, start=now, end=now + timedelta(hours=2)
    )
    drain("a")
    turn()
    assert job.attempts.get().stop_reason == "drained"


def test_new_hosts_that_do_not_come_are_not_waited_for_for_ever(job: Job) -> None:
    drain("a")
    turn()
    later = timezone.now() + drain_migration.JOIN_TIMEOUT + timedelta(seconds=1)
    Node.objects.update(last_seen_at=later)
    turn(now=later)
    assert job.attempts.get(number=1).stop_reason == "drained"


def test_when_what_it_moves_to_is_lost_it_goes_by_its_checkpoint(job: Job) -> None:
    drain("a")
    turn()
    run_agents()
    drain("b")
    turn()
    assert job.attempts.get().stop_reason == "drained"


def test_a_node_that_is_not_drained_after_all_keeps_it(job: Job) -> None:
    drain("a")
    turn()
    Node.objects.update(draining=False)
    turn()
    assert not Allocation.objects.filter(
        released_at=None, requested_back_at__isnull=False, container__wanted="run"
    ).exists()
    assert job.attempts.get().stop_reason == ""
    run_agents()
    turn()
    assert gpus_of(job) == 2 and wanted(job) == {"driver": "a", "h1": "a"}


def test_hosts_that_have_just_come_have_joined_before_the_old_ones_leave(job: Job) -> None:
    """It has enough elsewhere already, but they do not train yet."""
    drain("a")
    turn()
    run_agents()
    Allocation.objects.update(requested_back_at=None)  # as if the policy had given them
    turn()
    assert wanted(job) == {"driver": "a", "h1": "a", "h2": "b", "h3": "c"}
    report_ranks(job, "h1", "h1", "h2", "h3")
    turn()
    assert wanted(job) == {"driver": "a", "h2": "b", "h3": "c"}


def test_ranks_that_end_before_their_driver_has_left_are_not_called_lost(job: Job) -> None:
    drain("a")
    turn()
    run_agents()
    report_ranks(job, "h1", "h1", "h2", "h3")
    turn()
    run_agents()
    ended = Container.objects.filter(attempt__job=job, spec__hostname__in=("h2", "h3"))
    ended.update(state=ContainerState.EXITED, exit_reason="exited", exit_code=3, exited_at=timezone.now())
    for _ in range(4):
        turn()
        run_agents()
    attempt = job.attempts.get(number=1)
    assert (attempt.stop_reason, attempt.outcome) == ("drained", "preempted")


def test_a_cancel_is_a_cancel(job: Job) -> None:
    drain("a")
    turn()
    Job.objects.filter(pk=job.pk).update(intent="cancel")
    turn()
    assert job.attempts.get().stop_reason == "cancelled" and wanted(job) == {}


def test_a_job_that_is_not_elastic_does_not_move() -> None:
    ready_node("a", 1, runtime="docker", facts={"ring_address": "10.1.0.1"})
    job = queue(1)
    turn()
    run_agents()
    ready_node("b", 1, runtime="docker", facts={"ring_address": "10.1.0.2"})
    drain("a")
    turn()
    assert job.attempts.get().stop_reason == "drained"
