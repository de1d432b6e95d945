"""What needs a user's attention, with the action to take, and what does not."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.cluster.models import Node
from portal.home import attention
from portal.home.attention import Attention, Item, attention_of
from portal.home.models import SeenFailures
from portal.home.runs import live_attempts
from portal.jobs import lifecycle, services
from portal.jobs.models import Attempt, CheckpointSet, Container, Job, Progress
from tests.portal import jobs_world as world
from tests.portal.silence_world import Lab as SilentLab

pytestmark = pytest.mark.django_db
FAILURE = {"code": "import_error", "title": "A package is missing: numpy", "detail": "", "advice": ""}


@pytest.fixture
def alice() -> User:
    return world.make_user("alice")


@pytest.fixture
def node() -> Node:
    return world.make_node("alpha", gpus=4)


def of(user: User) -> Attention:
    now = timezone.now()
    return attention_of(user, live_attempts(user, now), now)


def items(user: User, kind: str) -> list[Item]:
    return [item for item in of(user).items if item.kind == kind]


def running(user: User, node: Node, minutes: float = 0, **fields: Any) -> Job:
    job = world.make_job(world.make_project(user), name="owl", **fields)
    held = set(node.gpus.filter(allocations__released_at=None, allocations__isnull=False).values_list("pk", flat=True))
    free = [gpu for gpu in node.gpus.all() if gpu.pk not in held]
    attempt = world.place(job, free[:1])
    for part in attempt.containers.all():
        lifecycle.advance(part, "RUNNING")
    Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(minutes=minutes))
    job.refresh_from_db()
    return job


def failed(user: User, node: Node, **fields: Any) -> Job:
    job = running(user, node, **fields)
    attempt = job.attempts.get()
    world.exit(attempt.containers.get(), code=1)
    Attempt.objects.filter(pk=attempt.pk).update(cause=FAILURE)
    Container.objects.update(collected_at=timezone.now())
    return job


class TestFailures:
    def test_a_failure_has_its_cause_in_one_line_until_it_is_marked_as_seen(self, alice: User, node: Node) -> None:
        job = failed(alice, node)
        [item] = items(alice, "failed")
        assert (item.text, item.detail) == (f"owl #{job.pk} failed", "A package is missing: numpy")
        assert item.path == f"/jobs/{job.pk}/" and not item.posts
        client = Client()
        client.force_login(alice)
        until = of(alice).seen_until
        assert until is not None and until.isoformat() in client.get("/").content.decode()
        later = failed(alice, node)
        assert client.post("/home/seen", {"until": until.isoformat()}).status_code == 302
        assert [item.text for item in items(alice, "failed")] == [f"owl #{later.pk} failed"], "it was not on the page"

    @pytest.mark.parametrize("until", ["", "yesterday", "2026-13-45T00:00:00Z", "2026-01-01T00:00:00"])
    def test_nothing_is_marked_by_a_broken_form(self, alice: User, node: Node, until: str) -> None:
        failed(alice, node)
        client = Client()
        client.force_login(alice)
        client.post("/home/seen", {"until": until})
        assert items(alice, "failed") and not SeenFailures.objects.exists()

    def test_the_future_is_not_marked_and_the_past_changes_nothing(self, alice: User, node: Node) -> None:
        client = Client()
        client.force_login(alice)
        for until in ("0001-01-01T00:00:00+14:00", "2999-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"):
            client.post("/home/seen", {"until": until})
            assert SeenFailures.objects.get().until <= timezone.now()
        client.post("/home/seen", {"until": "2001-01-01T00:00:00Z"})
        failed(alice, node)
        assert SeenFailures.objects.get().until.year > 2001
        assert len(items(alice, "failed")) == 1

    def test_many_are_cut_and_old_ones_left_out(self, alice: User, node: Node) -> None:
        for _ in range(7):
            failed(alice, node)
        found = items(alice, "failed")
        assert len(found) == 6 and found[-1].path == "/jobs/?mine=1&state=failed"
        now = timezone.now() + timedelta(days=8)
        assert not [item for item in attention_of(alice, {}, now).items if item.kind == "failed"]

    def test_others_failures_are_theirs(self, alice: User, node: Node) -> None:
        failed(alice, node)
        assert not of(world.make_user("bob")).items
        assert not items(world.make_user("ada", is_staff=True), "failed")


class TestRunningJobs:
    def test_a_job_that_reaches_its_limit_soon(self, alice: User, node: Node) -> None:
        job = running(alice, node, minutes=50, time_limit_seconds=3600)
        running(alice, node, minutes=10, time_limit_seconds=3600)
        [item] = items(alice, "limit")
        assert item.text.startswith(f"owl #{job.pk} reaches its time limit in 9 min")
        assert item.path == f"/jobs/{job.pk}/more-time"

    def test_a_training_that_needs_more_than_is_left(self, alice: User, node: Node) -> None:
        job = running(alice, node, minutes=60, time_limit_seconds=4 * 3600)
        about = {"at": timezone.now(), "step": 3600, "epoch": 0, "batch": 8, "ranks": 1, "step_seconds": 1.0}
        Progress.objects.create(attempt=job.attempts.get(), done=0.1, **about)
        [item] = items(alice, "limit")
        assert item.text == f"owl #{job.pk} will reach its time limit before it is done"
        assert item.detail == "At this speed its training needs 9 h more, and 2 h 59 min is left."
        Progress.objects.update(done=0.5)
        assert not items(alice, "limit")

    def test_seconds_of_earlier_attempts_count(self, alice: User, node: Node) -> None:
        job = running(alice, node, minutes=10, time_limit_seconds=7200)
        assert not items(alice, "limit")
        Attempt.objects.filter(job=job).update(counted_seconds=6000)
        assert len(items(alice, "limit")) == 1

    def test_a_resumable_job_without_a_checkpoint(self, alice: User, node: Node) -> None:
        job = running(alice, node, minutes=45, resumable=True, time_limit_seconds=86_400)
        running(alice, node, minutes=45, time_limit_seconds=86_400)
        running(alice, node, minutes=20, resumable=True, time_limit_seconds=86_400)
        [item] = items(alice, "checkpoint")
        assert item.text == f"owl #{job.pk} has stored no checkpoint" and "for 45 min" in item.detail
        Node.objects.update(facts={"shared": "abc"})
        assert not items(alice, "checkpoint"), "the nodes share a folder, which the portal does not see"
        Node.objects.update(facts={})
        CheckpointSet.objects.create(job=job, attempt=job.attempts.get(), version=1, files={"a": [1, 1, []]})
        assert not items(alice, "checkpoint")

    def test_a_silent_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lab = SilentLab(monkeypatch)
        job = lab.job([lab.node()], silent_rank_minutes=5, time_limit_seconds=86_400)
        lab.passes(minutes=4)
        assert not items(lab.alice, "silent")
        lab.passes(minutes=2)
        [item] = items(lab.alice, "silent")
        assert item.text == f"train #{job.pk} is silent" and "6 min" in item.detail
        assert not items(world.make_user("bob"), "silent")

    def test_a_held_job_is_released_from_here(self, alice: User) -> None:
        job = world.make_job(world.make_project(alice), name="owl")
        services.hold(alice, job)
        [item] = items(alice, "held")
        assert item.posts and item.action == "Release"
        client = Client()
        client.force_login(alice)
        client.post(item.path)
        assert not items(alice, "held")


class TestFiles:
    def test_files_that_still_arrive(self, alice: User, node: Node) -> None:
        job = failed(alice, node)
        Container.objects.update(collected_at=None)
        [item] = items(alice, "arriving")
        assert item.text == f"Files of owl #{job.pk} are still arriving from alpha"
        Node.objects.update(last_seen_at=timezone.now() - timedelta(days=1))
        assert items(alice, "arriving")[0].detail == "alpha does not report: they come when it does."
        Node.objects.update(removed_at=timezone.now())
        assert not items(alice, "arriving"), "they are lost"


class TestAdmins:
    def test_machines_need_admins_only(self, alice: User, node: Node) -> None:
        ada = world.make_user("ada", is_staff=True)
        world.make_node("newcomer", approved_at=None)
        bad = {"text": "There is no disk left.", "fix": "Make room.", "blocking": True}
        Node.objects.filter(pk=node.pk).update(problems=[bad, bad | {"blocking": False}])
        node.environments.create(environment=world.make_environment("torch"), state="failed")
        assert [item.text for item in of(ada).items] == [
            "newcomer waits for approval",
            "alpha accepts no jobs",
            "torch could not be prepared on alpha",
        ]
        assert not of(alice).items

    def test_many_machines_are_cut(self) -> None:
        ada = world.make_user("ada", is_staff=True)
        for number in range(9):
            world.make_node(f"new{number}", approved_at=None)
        texts = [item.text for item in of(ada).items]
        assert len(texts) == attention.MAX_OF_A_KIND + 1 and texts[-1] == "4 more things need an admin"
