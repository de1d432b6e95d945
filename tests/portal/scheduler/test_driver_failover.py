"""A rank group over several nodes leaves its first node, by a drain or a loss, and continues under another driver."""

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.agents import sync
from portal.cluster.models import Node
from portal.jobs import lifecycle
from portal.jobs.models import Allocation, Attempt, Container, ContainerState, Job
from portal.scheduler import apply as applying
from portal.scheduler import driver_failover, snapshot
from portal.scheduler.apply import StepDropped
from scheduling.types import Plan
from tests.portal.control_world import gpus_of, queue, ready_node, run_agents, turn

pytestmark = pytest.mark.django_db

LATER = timedelta(seconds=5)


@pytest.fixture(params=["horovod", "torchrun"])
def job(request: pytest.FixtureRequest) -> Job:
    """A job that runs on node a with its driver and base, and with two further GPUs on b."""
    a = ready_node("a", 1, runtime="docker", facts={"ring_address": "10.1.0.1"})
    job = queue(1, 3, launcher=request.param)
    turn()
    run_agents()
    b = ready_node("b", 2, runtime="docker", facts={"ring_address": "10.1.0.2"})
    applying.apply(snapshot.take(), Plan({str(job.pk): {str(a.pk): 1, str(b.pk): 2}}), "t")
    run_agents()
    assert gpus_of(job) == 3
    return job


def live(job: Job) -> dict[str, str]:
    """Host names and nodes of the containers that are live and wanted."""
    rows = Container.objects.filter(attempt__job=job, wanted="run").exclude(state=ContainerState.EXITED)
    return {f"{part.spec['hostname']}-{part.index}": part.node.name for part in rows.order_by("index")}


def lose(name: str) -> None:
    """The node is silent, and the others are not."""
    Node.objects.filter(name=name).update(last_seen_at=timezone.now() - timedelta(seconds=60))


def lost_first_node(job: Job) -> None:
    lose("a")
    lifecycle.sweep(timezone.now())
    driver_failover.replace(timezone.now() + LATER)
    run_agents()
    assert live(job) == {"h2-2": "b", "h3-3": "b", "driver-4": "b"}


def test_a_drain_of_the_first_node_restarts_nothing(job: Job) -> None:
    Node.objects.filter(name="a").update(draining=True)
    turn()
    assert live(job) == {"driver-0": "a", "h2-2": "b", "h3-3": "b"}  # the driver sees the host off
    run_agents()
    turn()
    assert live(job) == {"h2-2": "b", "h3-3": "b"}
    run_agents()
    turn()
    assert live(job) == {"h2-2": "b", "h3-3": "b"}  # the ranks may just have ended
    lifecycle.sweep()
    driver_failover.replace(timezone.now() + LATER)
    assert live(job) == {"h2-2": "b", "h3-3": "b", "driver-4": "b"}
    assert job.attempts.count() == 1 and job.events.filter(kind="driver").count() == 1
    driver_failover.replace(timezone.now() + LATER)
    assert len(live(job)) == 3


def test_supervisors_learn_of_the_new_driver(job: Job) -> None:
    test_a_drain_of_the_first_node_restarts_nothing(job)
    sent = sync.desired_state(Node.objects.get(name="b").token_digest)["containers"]
    assert {entry["spec"]["hostname"]: entry["driver"] for entry in sent} == {
        "h2": "10.192.0.6",
        "h3": "10.192.0.6",
        "driver": "10.192.0.6",
    }
    driver = next(entry for entry in sent if entry["spec"]["role"] == "driver")
    assert [host["name"] for host in driver["hosts"]] == ["h2", "h3"]
    assert driver["spec"]["ring"]["address"] == driver["spec"]["ring"]["driver_host"] == "10.192.0.6"


def test_the_loss_of_the_first_node_restarts_nothing(job: Job) -> None:
    lose("a")
    lifecycle.sweep(timezone.now())
    driver_failover.replace(timezone.now() + LATER)
    assert live(job) == {"h2-2": "b", "h3-3": "b", "driver-4": "b"}
    run_agents()
    seen = next(each for each in snapshot.take().jobs if each.id == str(job.pk))
    node = str(Node.objects.get(name="b").pk)
    assert (seen.now_on, seen.base, seen.stopping) == ({node: 2}, {node: 1}, False)
    run_agents(finish=True)
    job.refresh_from_db()
    assert job.state == "SUCCEEDED" and job.attempts.count() == 1


def test_a_rank_group_that_continues_can_shrink_and_grow_again(job: Job) -> None:
    lost_first_node(job)
    b = Node.objects.get(name="b")
    applying.apply(snapshot.take(), Plan({str(job.pk): {str(b.pk): 1}}), "t")
    assert live(job) == {"h2-2": "b", "driver-4": "b"}  # the oldest host that is left is the base now
    run_agents()
    c = ready_node("c", 1, runtime="docker", facts={"ring_address": "10.1.0.3"})
    applying.apply(snapshot.take(), Plan({str(job.pk): {str(b.pk): 1, str(c.pk): 1}}), "t")
    newest = Container.objects.latest("pk")
    assert (newest.node, newest.spec["ring"]["driver_host"]) == (c, "10.192.0.6")


def test_a_rank_group_is_not_resized_while_it_waits_for_its_driver(job: Job) -> None:
    lose("a")
    lifecycle.sweep(timezone.now())
    b = str(Node.objects.get(name="b").pk)
    fewer = Plan({str(job.pk): {b: 1}})
    moving = {job.pk: StepDropped("driver_moving")}
    assert applying.apply(snapshot.take(), fewer, "t").dropped == moving
    driver_failover.replace(timezone.now() + LATER)
    assert applying.apply(snapshot.take(), fewer, "t").dropped == moving
    run_agents()
    assert applying.apply(snapshot.take(), fewer, "t").resized == [job.pk]


def test_when_too_little_is_left_it_restarts_from_its_checkpoint(job: Job) -> None:
    Job.objects.update(min_gpus=3)
    lose("a")
    lifecycle.sweep(timezone.now())
    run_agents()
    attempt = Attempt.objects.get()
    assert (attempt.outcome, Job.objects.get().state) == ("lost", "QUEUED")
    assert not Allocation.objects.filter(released_at=None).exists()


def test_a_job_on_the_drained_node_alone_is_stopped(job: Job) -> None:
    Node.objects.filter(name="b").update(draining=True)
    turn()
    run_agents()
    assert live(job) == {"driver-0": "a", "h1-1": "a"}
    Node.objects.filter(name="a").update(draining=True)
    turn()
    assert live(job) == {}
    run_agents()
    assert Attempt.objects.get().outcome == "preempted"


def test_a_job_that_is_cancelled_gets_no_driver(job: Job) -> None:
    lose("a")
    lifecycle.sweep(timezone.now())
    Job.objects.update(intent=Job.Intent.CANCEL)
    driver_failover.replace(timezone.now() + LATER)
    assert live(job) == {"h2-2": "b", "h3-3": "b"}
    lifecycle.sweep(timezone.now())
    run_agents()
    assert Job.objects.get().state == "CANCELLED"


@pytest.fixture(params=["horovod", "torchrun"])
def spanning(request: pytest.FixtureRequest) -> Job:
    """A job that needs three GPUs and has four: two on each of two nodes."""
    for number, name in enumerate("ab", start=1):
        ready_node(name, 2, runtime="docker", facts={"ring_address": f"10.1.0.{number}"})
    job = queue(3, 4, launcher=request.param)
    turn()
    run_agents()
    assert gpus_of(job) == 4 and len({*live(job).values()}) == 2
    return job


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_job_whose_least_size_spans_nodes_stops_as_a_whole_when_one_is_drained(spanning: Job, name: str) -> None:
    Node.objects.filter(name=name).update(draining=True)
    turn()
    assert live(spanning) == {}
    run_agents()
    lifecycle.sweep()
    attempt, job = Attempt.objects.get(), Job.objects.get()
    assert (attempt.stop_reason, attempt.outcome, job.state) == ("drained", "preempted", "QUEUED")
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_job_whose_least_size_spans_nodes_ends_when_one_is_lost(spanning: Job, name: str) -> None:
    lose(name)
    lifecycle.sweep(timezone.now())
    driver_failover.replace(timezone.now() + LATER)
    assert live(spanning) == {}
    run_agents()
    lifecycle.sweep()
    assert (Attempt.objects.get().outcome, Job.objects.get().state) == ("lost", "QUEUED")
    assert not Allocation.objects.filter(released_at=None).exists()


def test_a_job_whose_least_size_spans_nodes_goes_on_without_what_it_does_not_need(spanning: Job) -> None:
    part = Container.objects.filter(node__name="b", role="host").order_by("-index")[0]
    lifecycle.advance(part, "EXITED", exit_reason="lost")
    turn()
    lifecycle.sweep()
    assert Attempt.objects.get().wanted == "run" and gpus_of(spanning) >= 3
