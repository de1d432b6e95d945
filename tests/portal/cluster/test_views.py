"""Nodes as everyone sees them, and what admins do with them."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.accounts.models import AuditEntry, LabSettings, User, digest
from portal.cluster import services
from portal.cluster.models import JoinToken, Node
from portal.cluster.node_state import state_of
from runners.messages.confinement import FilesAndProcesses
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


@pytest.fixture
def people() -> dict[str, User]:
    users = {name: world.make_user(name) for name in ("alice", "bob", "charlie")}
    return {**users, "admin": world.make_user("admin", is_staff=True)}


def browser(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def page(user: User, path: str) -> str:
    response = browser(user).get(path)
    assert response.status_code == 200
    return str(response.content.decode())


class TestForEveryone:
    def test_only_users_who_may_see_a_job_see_which_gpu_it_holds(self, people: dict[str, User]) -> None:
        project = world.make_project(people["alice"])
        job = world.make_job(project, name="secret-name")
        world.place(job, [world.make_node("alpha").gpus.all()[0]])
        assert f"/jobs/{job.pk}/" in page(people["alice"], "/nodes/")
        assert f"/jobs/{job.pk}/" in page(people["admin"], "/nodes/")
        seen = page(people["charlie"], "/nodes/")
        assert "private project of alice" in " ".join(seen.split())
        assert "secret-name" not in seen and f"/jobs/{job.pk}/" not in seen
        LabSettings.objects.create(pk=1, queue_for_members=False)
        seen = page(people["charlie"], "/nodes/")
        assert "private project<" in seen and "alice" not in seen

    def test_machines_that_wait_for_approval_are_the_admins_business(self, people: dict[str, User]) -> None:
        world.make_node("alpha")
        world.make_node("beta", approved_at=None)
        world.make_node("gone", removed_at=timezone.now())
        seen = page(people["bob"], "/nodes/")
        assert "alpha" in seen and "beta" not in seen and "gone" not in seen

    @pytest.mark.parametrize(
        ("facts", "sentence"),
        [
            ({"confinement": "bubblewrap: of the previous release"}, "bubblewrap: of the previous release"),
            (
                {"confinement": "as text", "confinement_message": FilesAndProcesses().data()},
                "bubblewrap: jobs see only their own files and processes",
            ),
        ],
        ids=["text", "data"],
    )
    def test_how_jobs_are_confined_is_one_sentence_on_the_page_and_in_the_api(
        self, people: dict[str, User], facts: dict[str, Any], sentence: str
    ) -> None:
        node = world.make_node("alpha", runtime="process", facts=facts)
        world.make_node("beta")
        assert sentence in page(people["admin"], f"/admin/nodes/{node.pk}/")
        listed = browser(people["bob"]).get("/api/v1/nodes/").json()
        assert {each["name"]: each["confinement"] for each in listed} == {"alpha": sentence, "beta": ""}

    def test_progress_of_environments_is_shown_and_why_one_failed(self, people: dict[str, User]) -> None:
        node = world.make_node("alpha")
        node.environments.create(environment=world.make_environment("one"), state="preparing", progress_percent=62)
        node.environments.create(
            environment=world.make_environment("two"), state="failed", detail="No compiler. Install g++."
        )
        seen = page(people["bob"], "/nodes/")
        assert 'value="62"' in seen and "No compiler. Install g++." in seen

    def test_an_empty_lab_shows_what_to_do(self, people: dict[str, User]) -> None:
        assert "until an admin adds machines" in page(people["bob"], "/nodes/")
        assert "Add a node" in page(people["admin"], "/nodes/")


class TestStates:
    @pytest.mark.parametrize(
        ("fields", "state"),
        [
            ({}, "ready"),
            ({"ready": False}, "preparing"),
            ({"cordoned": True}, "held"),
            ({"draining": True, "cordoned": True}, "draining"),
            ({"approved_at": None}, "waiting"),
            ({"last_seen_at": None}, "lost"),
            ({"last_seen_at": timezone.now() - timedelta(minutes=5), "draining": True}, "lost"),
        ],
    )
    def test_a_node_shows_what_matters_most(self, fields: dict[str, Any], state: str) -> None:
        assert state_of(world.make_node(**fields))[0] == state


class TestForAdmins:
    ACTS = ("approve", "cordon", "drain", "resume", "remove")

    def test_for_others_these_pages_do_not_exist(self, people: dict[str, User]) -> None:
        node = world.make_node("alpha", approved_at=None)
        posts = ["/admin/nodes/add", *(f"/admin/nodes/{node.pk}/{what}" for what in self.ACTS)]
        for name in ("alice", "charlie"):
            assert browser(people[name]).get("/admin/nodes/").status_code == 404
            assert all(browser(people[name]).post(path).status_code == 404 for path in posts)
        assert all(browser(None).post(path).status_code == 302 for path in posts)
        node.refresh_from_db()
        assert node.approved_at is None and node.removed_at is None and not JoinToken.objects.exists()

    def test_the_join_line_works_once_and_is_shown_once(self, people: dict[str, User]) -> None:
        client = browser(people["admin"])
        shown = client.post("/admin/nodes/add", {"approves": "on"})
        token = re.search(r"SCHEDULEARN_JOIN_TOKEN=(sln_\S+) ", shown.content.decode())
        assert token is not None and "no-store" in shown["Cache-Control"]
        row = JoinToken.objects.get()
        assert row.token_digest == digest(token[1]) and row.approves
        assert token[1] not in client.get("/admin/nodes/").content.decode()
        node = services.join(token[1], "fresh", "docker", {}).node
        assert "fresh" in client.get("/admin/nodes/").content.decode() and node.approved_at is not None

    def test_without_the_tick_a_new_node_waits_for_approval(self, people: dict[str, User]) -> None:
        client = browser(people["admin"])
        client.post("/admin/nodes/add")
        assert not JoinToken.objects.get().approves

    def test_each_act_changes_the_node_and_leaves_a_trace(self, people: dict[str, User]) -> None:
        client = browser(people["admin"])
        node = world.make_node("alpha", approved_at=None)

        def after(what: str) -> Node:
            before = AuditEntry.objects.count()
            response = client.post(f"/admin/nodes/{node.pk}/{what}", follow=True)
            assert response.redirect_chain == [("/admin/nodes/", 302)]
            assert 'class="notice success"' in response.content.decode()
            assert AuditEntry.objects.count() == before + 1
            node.refresh_from_db()
            return node

        assert after("approve").approved_at
        assert after("cordon").cordoned
        assert after("drain").draining
        assert not after("resume").draining and not node.cordoned
        assert after("remove").removed_at
        assert client.post(f"/admin/nodes/{node.pk}/approve").status_code == 404

    def test_a_busy_node_is_not_removed_and_the_page_shows_why(self, people: dict[str, User]) -> None:
        node = world.make_node("alpha")
        world.place(world.make_job(world.make_project(people["alice"])), [node.gpus.all()[0]])
        seen = browser(people["admin"]).post(f"/admin/nodes/{node.pk}/remove", follow=True).content.decode()
        node.refresh_from_db()
        assert "still runs 1 container" in seen and node.removed_at is None

    def test_problems_come_with_their_fix(self, people: dict[str, User]) -> None:
        world.make_node("alpha", problems=[{"text": "The engine is <old>.", "fix": "Install a newer one."}])
        seen = page(people["admin"], "/admin/nodes/")
        assert "The engine is &lt;old&gt;." in seen and "Install a newer one." in seen

    def test_more_nodes_cost_no_more_queries(self, people: dict[str, User]) -> None:
        client = browser(people["admin"])
        project = world.make_project(people["alice"])

        def add() -> None:
            node = world.make_node(gpus=4)
            node.environments.create(environment=world.make_environment(), state="ready")
            world.place(world.make_job(project), list(node.gpus.all()[:2]))

        def cost(path: str) -> int:
            with CaptureQueriesContext(connection) as queries:
                client.get(path)
            return len(queries)

        add()
        paths = ("/nodes/", "/admin/nodes/", "/admin/")
        few = {path: cost(path) for path in paths}
        for _ in range(5):
            add()
        assert {path: cost(path) for path in paths} == few
