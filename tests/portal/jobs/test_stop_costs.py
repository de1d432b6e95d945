"""Before a job is put on hold, and a node drained, the page states what that means for the jobs that run."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.cluster.models import Gpu, Node
from portal.jobs.models import Attempt, CheckpointSet, Job
from portal.jobs.stop_costs import stop_costs
from portal.sentences.causes import explain_cause
from portal.sentences.stops import StopCost, drain_question, hold_question, restart_sentence
from tests.portal.jobs_world import make_job, make_node, make_project, make_user, place, run

HOUR = 3600.0


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (StopCost(False, 3, None), "the 10 s that it has run are lost"),
        (StopCost(False, 29, None), "It keeps no checkpoints, so it starts over: the 20 s that it has run are lost."),
        (StopCost(False, 2 * HOUR + 100, None), "the 2 h that it has run are lost"),
        (
            StopCost(True, HOUR, None),
            "It has no checkpoint in the portal yet, so it may start over: up to 1 h of work are lost.",
        ),
        (StopCost(True, HOUR, 190), "It restarts from its newest checkpoint, which is 3 min old."),
    ],
)
def test_where_a_job_restarts(cost: StopCost, words: str) -> None:
    assert words in restart_sentence(cost)
    assert hold_question(7, cost).startswith("Hold job 7? It is stopped now, and runs again when it is released. ")


def test_a_drain_names_the_jobs_and_what_they_lose() -> None:
    costs = [("job 3 (sweep, alice)", StopCost(False, 2 * HOUR, None)), ("job 4 (net, bob)", StopCost(True, HOUR, 60))]
    question = drain_question("gpu-a", costs)
    assert (
        "job 3 (sweep, alice) starts over, 2 h lost; job 4 (net, bob) restarts from a checkpoint that is 1 min old"
        in question
    )
    assert question.endswith("Cordon lets all of them end first.")
    assert drain_question("gpu-a", costs * 4).count("starts over") == 3 and "and 3 more" in drain_question(
        "gpu-a", costs * 4
    )
    assert drain_question("gpu-a", []) == "Drain gpu-a? No job runs on it, and it gets none until it is resumed."


@pytest.fixture
def node(db: None) -> Node:
    return make_node(gpus=2)


def running(name: str, node: Node, **fields: object) -> Job:
    job = make_job(make_project(make_user(name)), launcher="command", name=f"run of {name}", **fields)
    attempt = place(
        job, [gpu for gpu in Gpu.objects.filter(node=node).order_by("index") if not gpu.allocations.exists()][:1]
    )
    run(attempt.containers.get())
    Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(hours=2))
    return job


def test_the_pages_ask_with_what_is_known(node: Node, client: Client) -> None:
    plain, saved = running("alice", node), running("bob", node, resumable=True)
    attempt = saved.attempts.get()
    CheckpointSet.objects.create(job=saved, attempt=attempt, taken_at=timezone.now() - timedelta(minutes=3, seconds=5))
    client.force_login(make_user("ada", is_staff=True))
    assert "the 2 h that it has run are lost" in client.get(reverse("jobs:detail", args=[plain.pk])).content.decode()
    assert (
        "newest checkpoint, which is 3 min old" in client.get(reverse("jobs:detail", args=[saved.pk])).content.decode()
    )
    drained = client.get(reverse("monitoring:admin-nodes")).content.decode()
    assert f"job {plain.pk} (run of alice, alice) starts over, 2 h lost" in drained
    assert f"job {saved.pk} (run of bob, bob) restarts from a checkpoint that is 3 min old" in drained


def test_a_job_that_does_not_run_costs_nothing(node: Node) -> None:
    job = make_job(make_project(make_user("alice")))
    assert stop_costs([job.pk], timezone.now()) == {}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "and it restarts."),
        ({"resumable": True}, "newest checkpoint"),
        ({"resumable": False}, "from the beginning"),
    ],
)
def test_the_cause_of_a_hold_is_true_for_its_job(parameters: dict[str, bool], words: str) -> None:
    stored = {"code": "held", "parameters": parameters, "detail": "", "ended_early": False}
    assert words in explain_cause(stored)["advice"]
