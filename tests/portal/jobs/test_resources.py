"""What jobs ask for in addition to GPUs: limits, refusals with the nearest possible value, and what containers get."""

from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from portal.cluster.models import Gpu, Node
from portal.forecast.changes import possible_changes
from portal.jobs import services
from portal.jobs.models import Container, Job
from portal.jobs.spec import submission_of
from portal.refused import Refused
from portal.scheduler import apply as applying
from portal.scheduler import snapshot
from portal.scheduler.resource_use import fitting_gpus
from portal.scheduler.services import switch_policy
from portal.sentences import sentence_of
from scheduling.toolkit import resources
from scheduling.types import Plan
from tests.portal import jobs_world as world
from tests.portal.control_world import ready_node, turn

pytestmark = pytest.mark.django_db
GIB = 1024
MACHINE = {"cpus": 16, "memory_mib": 65 * GIB, "disk_free_mib": 80 * GIB}
"""Beside what the node keeps, each of its 4 GPUs has 4 processors and 16 GiB."""

HOROVOD: dict[str, Any] = {"launcher": "horovod", "entry": "train.py"}


class Lab:
    def __init__(self) -> None:
        self.alice = world.make_user("alice")
        self.project = world.make_project(self.alice, "digits")

    def node(self, name: str = "alpha", gpus: int = 4) -> Node:
        node = ready_node(name, gpus, (world.make_environment().key,), facts=MACHINE)
        Gpu.objects.filter(node=node).update(kind="cuda", model="A100")
        return node

    def job(self, **fields: Any) -> Job:
        return world.make_job(self.project, **fields)

    def submit(self, **fields: Any) -> Job:
        template = world.make_job(self.project, launcher="command", entry="python train.py", name="")
        asked = replace(submission_of(template), **fields)
        template.delete()
        return services.submit(self.alice, self.project, asked)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"memory_mib_per_gpu": 2048 * GIB}, "memory_mib_per_gpu", "Ask for at most 65536 MiB (64 GiB)."),
        (
            {"memory_mib_per_gpu": 60 * GIB, "min_gpus": 2, "max_gpus": 2},
            "memory_mib_per_gpu",
            "at most 32768 MiB (32 GiB).",
        ),
        (
            {"cpus_per_gpu": 17},
            "cpus_per_gpu",
            "No node has 17 processors for each GPU of such a job. Ask for at most 16",
        ),
        (
            {"memory_mib_per_gpu": 100},
            "memory_mib_per_gpu",
            "Enter a number from 512 to 16,777,216, or leave it empty.",
        ),
        ({"cpus_per_gpu": 0}, "cpus_per_gpu", "Enter a number from 1 to 1,024, or leave it empty."),
        ({"shm_mib": 1}, "shm_mib", "Enter a number from 64"),
        ({"scratch_mib": 5}, "scratch_mib", "Enter a number from 640"),
        ({"memory_mib_per_gpu": 1024, "shm_mib": 2048}, "shm_mib", "ask for at most 1024 MiB (1 GiB), or for more"),
        ({"shm_mib": 70 * GIB, "min_gpus": 2, "max_gpus": 2}, "shm_mib", "ask for at most 32768 MiB (32 GiB)"),
        ({"shm_mib": 4 * 1024 * GIB}, "shm_mib", "ask for at most 16384 MiB (16 GiB), or for more memory."),
        (
            {"shm_mib": 5000, "memory_mib_per_gpu": 600, "max_gpus": 3},
            "shm_mib",
            "ask for at most 1800 MiB (1.7 GiB)",
        ),
        (
            {"shm_mib": 5000, "memory_mib_per_gpu": 2000, "min_gpus": 2, "max_gpus": 4, "elastic": True, **HOROVOD},
            "shm_mib",
            "ask for at most 4000 MiB (3.9 GiB)",
        ),
        (
            {"scratch_mib": 90 * GIB},
            "scratch_mib",
            "No node has 90 GiB of disk free for such a job. Ask for at most 81920",
        ),
    ],
)
def test_what_no_node_can_give_is_refused_with_what_is_possible(
    lab: Lab, fields: dict[str, Any], field: str, sentence: str
) -> None:
    lab.node()
    with pytest.raises(Refused) as refusal:
        lab.submit(**fields)
    assert refusal.value.field == field and sentence in str(refusal.value)


def disk(node: Node, mib: int | None) -> None:
    Node.objects.filter(pk=node.pk).update(facts=MACHINE | {"disk_free_mib": mib})


def test_each_container_of_a_job_needs_its_space(lab: Lab) -> None:
    disk(lab.node("alpha", 2), 300 * GIB)
    disk(lab.node("beta", 4), 50 * GIB)
    wide = {"min_gpus": 4, "max_gpus": 4, **HOROVOD}
    assert lab.submit(scratch_mib=60 * GIB, **(wide | {"min_gpus": 2})).max_gpus == 4
    assert lab.submit(scratch_mib=300 * GIB, min_gpus=2, max_gpus=2).scratch_mib == 300 * GIB
    for fields in ({"min_gpus": 3, "max_gpus": 3}, wide):
        with pytest.raises(Refused, match=f"at most {50 * GIB} MiB"):
            lab.submit(scratch_mib=60 * GIB, **fields)


def test_a_node_that_reports_no_disk_refuses_no_space(lab: Lab) -> None:
    disk(lab.node(), None)
    assert lab.submit(scratch_mib=4096 * GIB).scratch_mib == 4096 * GIB


def test_a_full_disk_leaves_nothing_to_ask_for(lab: Lab) -> None:
    disk(lab.node(), 100)
    with pytest.raises(Refused, match="Leave it empty"):
        lab.submit(scratch_mib=700)


def test_temporary_files_are_in_memory_and_take_half_of_it_at_most(lab: Lab) -> None:
    lab.node()
    job = lab.submit(scratch_mib=60 * GIB, memory_mib_per_gpu=4 * GIB)
    turn()
    given = Container.objects.get(attempt__job=job, role=Container.Role.HOST).spec["resources"]
    assert (given["tmp_mib"], given["disk_mib"]) == (2 * GIB, 58 * GIB)


def test_a_lab_without_nodes_refuses_no_amount(lab: Lab) -> None:
    assert lab.submit(shm_mib=1024 * GIB, scratch_mib=1024 * GIB).shm_mib == 1024 * GIB
    assert lab.submit(memory_mib_per_gpu=1024 * GIB).memory_mib_per_gpu == 1024 * GIB


def test_snapshots_without_demands_have_no_shares(lab: Lab) -> None:
    lab.node()
    lab.job()
    assert not resources.matter(snapshot.take())
    assert snapshot.take().nodes[0].memory_mib_per_gpu == 0


def test_a_job_with_demands_waits_for_memory_and_starts_when_it_is_free(lab: Lab) -> None:
    switch_policy(None, "fifo", {})
    lab.node()
    first = lab.submit(memory_mib_per_gpu=40 * GIB, cpus_per_gpu=2, shm_mib=8 * GIB, scratch_mib=20 * GIB)
    turn()
    host = Container.objects.get(attempt__job=first, role=Container.Role.HOST)
    given = host.spec["resources"]
    assert (given["cpus"], given["memory_mib"], given["shm_mib"]) == (2, 40 * GIB, 8 * GIB)
    assert (given["tmp_mib"], given["disk_mib"]) == (2 * GIB, 18 * GIB)

    second = lab.submit(memory_mib_per_gpu=30 * GIB)
    usual = lab.submit()
    turn()
    second.refresh_from_db()
    assert sentence_of(second.waiting_reason) == (
        "It needs 1 GPU with 30 GiB of memory; node alpha has 3 GPUs free, but only 24 GiB of memory left."
    )
    seen = snapshot.take()
    view = next(job for job in seen.jobs if job.id == str(second.pk))
    change = next(each for each in possible_changes(second, view, seen) if each.kind == "memory")
    assert (change.key, change.spec) == ("memory-24576", {"memory_mib_per_gpu": 24 * GIB})
    assert sentence_of(change.message.data()) == "with 24 GiB of memory per GPU instead of 30 GiB of memory"
    usual.refresh_from_db()
    assert usual.attempts.count() == 0, "jobs start in order"


def test_what_is_free_is_what_jobs_did_not_take(lab: Lab) -> None:
    lab.node()
    lab.submit(memory_mib_per_gpu=40 * GIB)
    turn()
    lab.submit(memory_mib_per_gpu=4 * GIB)
    node = snapshot.take().nodes[0]
    assert (node.millicpus_per_gpu, node.memory_mib_per_gpu) == (4000, 16 * GIB)
    assert (node.free, node.extra_millicpus, node.extra_memory_mib) == (3, 0, -24 * GIB)


def test_a_page_shows_what_was_asked_for_and_what_each_container_has(lab: Lab) -> None:
    lab.node()
    job = lab.submit(memory_mib_per_gpu=40 * GIB)
    turn()
    client = Client()
    client.force_login(lab.alice)
    page = client.get(f"/jobs/{job.pk}/details/").content.decode()
    assert "40 GiB of memory per GPU" in page
    assert "4 processors, 40 GiB of memory, 10 GiB of it for /dev/shm; 11 GiB for files" in page


def test_usual_jobs_have_the_share_of_their_gpus_as_before(lab: Lab) -> None:
    lab.node()
    job = lab.submit()
    turn()
    given = Container.objects.get(attempt__job=job).spec["resources"]
    assert (given["cpus"], given["memory_mib"], given["shm_mib"]) == (4.0, 16 * GIB, 4 * GIB)
    assert (given["tmp_mib"], given["disk_mib"]) == (1024, 10_240)


def test_a_plan_of_before_cannot_take_memory_that_is_gone(lab: Lab) -> None:
    """The database has the last word: each step is checked once more when it is carried out."""
    lab.node()
    first, other = (lab.submit(memory_mib_per_gpu=40 * GIB) for _ in range(2))
    seen = snapshot.take()
    stale = Plan({str(other.pk): {seen.nodes[0].id: 1}})
    turn()
    assert first.attempts.exists() and not other.attempts.exists()
    assert fitting_gpus(other, {Node.objects.get().pk: 3}) == {Node.objects.get().pk: 0}
    assert fitting_gpus(lab.submit(), {Node.objects.get().pk: 3}) == {Node.objects.get().pk: 1}
    dropped = applying.apply(seen, stale, "test v1").dropped
    assert dropped == {other.pk: applying.StepDropped("too_little_left", "alpha", 1)}
