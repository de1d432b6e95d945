"""Choices with more projects than a page shows: each can be reached, and the number is stated."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.jobs import list_views
from portal.projects.models import Membership, Project
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


def make_projects(client: Client, count: int) -> None:
    alice, bob = world.make_user("alice"), world.make_user("bob")
    for owner in (alice, bob):
        rows = [Project(name=f"Étude {number:03} of {owner}", created_by=owner) for number in range(count)]
        for project in Project.objects.bulk_create(rows):
            Membership.objects.create(project=project, user=owner, role=Membership.Role.OWNER)
    client.force_login(alice)


def test_any_project_can_be_chosen_for_a_new_job(client: Client) -> None:
    make_projects(client, 60)
    assert "60 projects" in client.get("/jobs/new").content.decode()
    with CaptureQueriesContext(connection) as queries:
        page = client.get("/jobs/new", {"q": "ÉTUDE 003"}).content.decode()
    assert "Étude 003 of alice" in page and "of bob" not in page and "Étude 004" not in page
    assert len(queries) < 12
    assert "Étude 003 of alice" in "".join(client.get("/jobs/new", {"page": n}).content.decode() for n in (1, 2, 3))
    assert "No matching project" in client.get("/jobs/new", {"q": "of bob"}).content.decode()


def test_the_menu_of_the_list_states_what_it_leaves_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_views, "MAX_MENU_PROJECTS", 50)
    make_projects(client, 60)
    assert "and 10 more: search for" in client.get("/jobs/").content.decode()
    last = Project.objects.get(name="Étude 059 of alice")
    job = world.make_job(last)
    assert f"/jobs/{job.pk}" in client.get("/jobs/", {"q": "ÉTUDE 059"}).content.decode()
