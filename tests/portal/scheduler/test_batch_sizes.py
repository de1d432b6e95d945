"""The batch a policy chose reaches the nodes of its job, and the next snapshot."""

from collections.abc import Callable
from typing import Any

import pytest

from portal.agents import sync
from portal.cluster.models import Node
from portal.jobs.models import Attempt, Job
from portal.scheduler import snapshot
from portal.scheduler.models import ChosenBatch
from scheduling import registry
from scheduling.types import Plan, Snapshot
from tests.portal.control_world import queue, ready_node, turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the policy in force start every job on one GPU with this batch size."""

    def install(batch: int) -> None:
        def plan(self: Any, seen: Snapshot) -> Plan:
            on = {job.id: job.now_on or {seen.nodes[0].id: 1} for job in seen.jobs if not job.stopping}
            return Plan(on, batches=dict.fromkeys(on, batch) if batch else {})

        monkeypatch.setattr(registry, "build", lambda key, params: type("Made", (), {"plan": plan})())

    return install


def sent_batches(job: Job) -> set[int]:
    """Return the batch sizes that the nodes receive for the job's containers."""
    sent = [entry for node in Node.objects.all() for entry in sync.desired_state(node.token_digest)["containers"]]
    return {entry["batch"] for entry in sent if entry["spec"]["job"] == job.pk}


def test_the_chosen_batch_is_sent_and_kept_until_another_is_chosen(choose: Any) -> None:
    ready_node("a", 2)
    job = queue(1, 2)
    assert snapshot.take().jobs[0].batch == 0
    choose(64)
    turn()
    assert sent_batches(job) == {64} and snapshot.take().jobs[0].batch == 64
    seen = sync.desired_state(Node.objects.get().token_digest)["seen"]
    choose(128)
    turn()
    assert sent_batches(job) == {128} and ChosenBatch.objects.get().batch == 128
    assert sync.desired_state(Node.objects.get().token_digest)["seen"] != seen, (
        "an agent that waits for news hears of it"
    )
    choose(0)
    turn()
    assert sent_batches(job) == {128}


def test_the_node_is_rung_only_when_the_batch_changes(choose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ready_node("a", 2)
    queue(1, 2)
    choose(64)
    turn()
    rung: list[int] = []
    monkeypatch.setattr("portal.scheduler.batch_sizes.wake_node", rung.append)
    turn()
    assert rung == []
    choose(32)
    turn()
    assert rung == [Node.objects.get().pk]


def test_without_a_choice_the_job_chooses(choose: Any) -> None:
    ready_node("a", 1)
    job = queue(1)
    choose(0)
    turn()
    assert sent_batches(job) == {0} and Attempt.objects.exists() and not ChosenBatch.objects.exists()
