"""The queue of the lab: who waits and who holds GPUs, with titles only where the reader may see the project."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry, LabSettings
from portal.jobs import lifecycle, queue
from portal.jobs.models import Job
from portal.jobs.queue import is_public_reason, lab_queue
from scheduling.toolkit import reasons
from tests.portal import jobs_world as world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db
FREE = {"code": "too_few_free", "ahead": 0, "needed": 4, "free": 1, "kept": False}


class Lab:
    def __init__(self) -> None:
        self.alice, self.charlie = world.make_user("alice"), world.make_user("charlie")
        self.admin = world.make_user("admin", is_staff=True)
        self.project = world.make_project(self.alice, "digits")
        self.secret = world.make_project(self.charlie, "moon shot")
        self.waiting = world.make_job(self.secret, name="secret run", waiting_reason=FREE)
        self.running = world.make_job(self.project, name="resnet")
        attempt = world.place(self.running, list(world.make_node(gpus=1).gpus.all()))
        for part in attempt.containers.all():
            lifecycle.advance(part, "RUNNING")


@pytest.fixture
def lab() -> Lab:
    return Lab()


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_titles_of_other_projects_are_private(lab: Lab) -> None:
    page = client_of(lab.alice).get("/jobs/queue").content.decode()
    assert "resnet" in page and "private project" in page and "charlie" in page
    assert "It needs 4 GPUs at once and only 1 is free." in page and "1 running, 1 waiting" in page
    assert "secret run" not in page and "moon shot" not in page and f"/jobs/{lab.waiting.pk}/" not in page
    assert "secret run" in client_of(lab.admin).get("/jobs/queue").content.decode()
    assert "secret run" in client_of(lab.charlie).get("/jobs/queue").content.decode()


@pytest.mark.parametrize(
    ("reason", "public"),
    [
        (FREE, True),
        ({"code": "limit_reached", "needed": 1, "limit": 2, "name": "charlie", "held": 2, "promised": False}, True),
        ({"code": "too_scattered", "ahead": 0, "needed": 4, "largest": 2, "node": "alpha"}, True),
        ({"code": "in_cpu_slots", "reason": FREE}, True),
        (reasons.ShortOfResource(0, "memory", 1, 49_152, "alpha", 2, 10_240).data(), True),
        ("A sentence of an earlier release about secret run.", False),
        ({"code": "text", "text": "secret run waits"}, False),
        ({"code": "account_has", "name": "moon shot", "now": 1, "recent": 1.0, "share": 2.0}, False),
        ({"code": "in_cpu_slots", "reason": {"code": "text", "text": "secret"}}, False),
        ({"code": "x", "parts": [{"code": "text", "text": "secret"}]}, False),
        ({"code": "environment_failed", "title": "PyTorch", "node": "a", "detail": "pip: secret"}, False),
    ],
)
def test_strangers_read_only_reasons_that_are_facts_of_the_lab(reason: Any, public: bool) -> None:
    assert is_public_reason(reason) is public


def test_a_private_reason_is_shown_to_members_only(lab: Lab) -> None:
    Job.objects.filter(pk=lab.waiting.pk).update(waiting_reason="Its secret run has failed.")
    assert "secret run" not in client_of(lab.alice).get("/jobs/queue").content.decode()
    assert "secret run has failed" in client_of(lab.charlie).get("/jobs/queue").content.decode()


def test_scripts_see_the_same(lab: Lab) -> None:
    answer = Script(lab.alice).get("/api/v1/queue/").json()
    assert (answer["running"], answer["waiting"], answer["left_out"]) == (1, 1, 0)
    first, second = answer["rows"]
    assert (first["job"], first["name"], first["held_gpus"], first["mine"]) == (lab.running.pk, "resnet", 1, True)
    assert (second["job"], second["name"], second["project"]) == (None, None, None)
    assert (second["submitted_by"], second["start_low"]) == ("charlie", None)
    assert "secret" not in str(answer) and "moon" not in str(answer)


def test_the_order_is_that_of_the_scheduler(lab: Lab) -> None:
    def make(name: str, place: int | None, **fields: Any) -> None:
        world.make_job(lab.project, name=name, queue_position=place, **fields)

    make("third", 3)
    make("first", 1)
    make("second", 2)
    make("new and urgent", None, priority=9)
    make("new and basic", None, tier="basic")
    make("new and early", None, submitted_at=timezone.now() - timedelta(days=1))
    names = [row.job.name for row in lab_queue(lab.alice)]
    assert names[:4] == ["resnet", "first", "second", "third"]
    assert names[4:] == ["new and urgent", "new and early", "secret run", "new and basic"]


def test_what_has_ended_or_is_held_is_not_in_it(lab: Lab) -> None:
    Job.objects.filter(pk=lab.waiting.pk).update(state="HELD", intent="hold")
    assert [row.job.pk for row in lab_queue(lab.admin)] == [lab.running.pk]


def test_a_long_queue_has_pages_in_the_order_of_the_queue(lab: Lab) -> None:
    for number in range(60):
        world.make_job(lab.project, name=f"wren-{number:02}", queue_position=number + 1)
    client = client_of(lab.alice)
    names = [re.findall(r"wren-\d\d", client.get(f"/jobs/queue?page={number}").content.decode()) for number in (1, 2)]
    assert names[0] + names[1] == [f"wren-{number:02}" for number in range(60)]
    assert len(names[0]) == 49 and "1–50 of 62 jobs" in client.get("/jobs/queue").content.decode()


def test_the_api_counts_what_it_leaves_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue.lab_queue, "__defaults__", (5,))
    for _ in range(10):
        world.make_job(lab.project)
    answer = Script(lab.alice).get("/api/v1/queue/").json()
    assert (len(answer["rows"]), answer["left_out"], answer["waiting"]) == (5, 7, 11)


@pytest.mark.parametrize(
    ("show", "titles"),
    [("running", ["resnet"]), ("waiting", ["wren", "private project"]), ("mine", ["resnet", "wren"])],
)
def test_a_part_of_the_queue_can_be_shown(lab: Lab, show: str, titles: list[str]) -> None:
    world.make_job(lab.project, name="wren", queue_position=1)
    page = client_of(lab.alice).get(f"/jobs/queue?show={show}").content.decode()
    assert [title for title in ("resnet", "wren", "private project") if title in page.split("<tbody>")[1]] == titles
    assert "1 running, 2 waiting" in page and f'?show={show}"' in page


def test_an_empty_part_is_named_and_an_unknown_one_is_not_found(lab: Lab) -> None:
    client = client_of(world.make_user("new"))
    assert "None of your jobs runs or waits." in client.get("/jobs/queue?show=mine").content.decode()
    assert client.get("/jobs/queue?show=everything").status_code == 404


def test_more_jobs_cost_no_more_queries(lab: Lab) -> None:
    client = client_of(lab.alice)

    def cost(path: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get(path)
        return len(queries)

    for path in ("/jobs/queue", "/api/v1/queue/"):
        cost(path)
        few = cost(path)
        for number in range(6):
            world.make_job(world.make_project(lab.charlie, f"{path} {number}"))
        assert cost(path) == few


def test_an_admin_restricts_it(lab: Lab) -> None:
    admin = client_of(lab.admin)
    page = admin.post("/admin/lab/", {"hours_granted_by_rule": 0}, follow=True).content.decode()
    assert "The settings of the lab are saved." in page
    assert not LabSettings.current().queue_for_members
    entry = AuditEntry.objects.get(action="lab.settings_changed")
    assert (entry.actor, entry.before, entry.after) == (
        lab.admin,
        {"queue_for_members": True, "hours_granted_by_rule": 0, "max_space_gib": None},
        {"queue_for_members": False, "hours_granted_by_rule": 0, "max_space_gib": None},
    )
    member = client_of(lab.alice)
    assert member.get("/jobs/queue").status_code == 404
    assert Script(lab.alice).get("/api/v1/queue/").status_code == 404
    assert "/jobs/queue" not in member.get("/jobs/").content.decode()
    assert "Only admins see this page" in admin.get("/jobs/queue").content.decode()
    assert admin.get("/api/v1/gpus/").status_code == 200
    assert member.post("/admin/lab/", {"queue_for_members": "on"}).status_code == 404
    admin.post("/admin/lab/", {"queue_for_members": "on", "hours_granted_by_rule": 0})
    assert member.get("/jobs/queue").status_code == 200
