"""The pages of space: preview first, then the rule, which does what the preview announced."""

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs.models import Job, RetentionRule
from portal.jobs.retention import services as retention
from portal.jobs.retention import views
from portal.projects.models import Membership
from tests.portal.jobs.retention.test_services import ended
from tests.portal.jobs_world import make_project, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: LazySettings, tmp_path: Path) -> None:
    settings.HOME = tmp_path


def client_of(name: str, **fields: bool) -> tuple[Client, User]:
    user, client = make_user(name, **fields), Client()
    client.force_login(user)
    return client, user


def test_an_admin_sees_what_would_go_sets_the_rule_and_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    client, alice = client_of("alice", is_staff=True)
    project = make_project(alice)
    job = ended(project, content=b"x" * 2048)
    later = timezone.now() + timedelta(days=40)
    monkeypatch.setattr(views, "timezone", SimpleNamespace(now=lambda: later))  # not for sessions, which would be over
    page = client.post(
        "/admin/space/", {"do": "preview", "part": "outputs", "ended": "any", "days": 30}
    ).content.decode()
    assert "<strong>2.0 KiB</strong>" in page and f"#{job.pk}</a>" in page and not RetentionRule.objects.exists()
    assert client.post("/admin/space/", {"do": "add", "part": "outputs", "ended": "any", "days": 30}).status_code == 302
    assert "2.0 KiB of 1 job" in client.get("/admin/space/").content.decode()
    assert retention.carry_out_all(later) == 1
    assert "0 B of 0 jobs" in client.get("/admin/space/").content.decode()
    assert "A rule has removed the files of this job." in client.get(f"/jobs/{job.pk}/files/").content.decode()
    rule = RetentionRule.objects.get()
    assert client.post(f"/retention-rules/{rule.pk}/remove").status_code == 302
    assert not RetentionRule.objects.exists() and Job.objects.get().outputs.count() == 0


def test_wrong_values_are_shown_at_their_field() -> None:
    client, _ = client_of("alice", is_staff=True)
    page = client.post("/admin/space/", {"do": "add", "part": "outputs", "ended": "any", "days": 0})
    assert page.status_code == 400 and "greater than or equal to 1" in page.content.decode()


def test_a_member_sees_the_space_of_a_project_and_cannot_set_its_rules() -> None:
    _, alice = client_of("alice")
    client, bob = client_of("bob")
    project = make_project(alice)
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    page = client.get(f"/projects/{project.pk}/space").content.decode()
    assert "Set the rule" not in page and "Rules that clean up" in page
    sent = {"do": "add", "part": "logs", "ended": "any", "days": 30}
    assert client.post(f"/projects/{project.pk}/space", sent).status_code == 400
    assert not RetentionRule.objects.exists()


def test_the_api_previews_sets_lists_and_removes() -> None:
    client, alice = client_of("alice")
    project = make_project(alice)
    ended(project, content=b"x" * 100)
    body = json.dumps({"project": project.pk, "part": "outputs", "days": 1})
    found = client.post("/api/v1/retention-rules/preview/", body, content_type="application/json")
    assert found.json() == {"jobs": 0, "bytes": 0}
    made = client.post("/api/v1/retention-rules/", body, content_type="application/json")
    assert made.status_code == 201 and made.json()["ended"] == "any"
    assert client.post("/api/v1/retention-rules/", body, content_type="application/json").status_code == 409
    assert [row["id"] for row in client.get("/api/v1/retention-rules/").json()["results"]] == [made.json()["id"]]
    [used] = client.get("/api/v1/space/projects/").json()["results"]
    assert used["outputs"] == 100 and used["total"] == sum(
        used[part] for part in ("code", "outputs", "checkpoints", "logs")
    )
    assert client.delete(f"/api/v1/retention-rules/{made.json()['id']}/").status_code == 204


def test_the_queries_of_the_page_do_not_grow_with_rules_of_projects(django_assert_max_num_queries: Any) -> None:
    client, alice = client_of("alice", is_staff=True)
    for number in range(12):
        retention.add(alice, make_project(alice, f"project {number}"), "logs", "any", 30)
    with django_assert_max_num_queries(30):
        page = client.get("/admin/space/").content.decode()
    assert "project 11</a>" in page
