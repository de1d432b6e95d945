"""Screens on the wall: their links, what they show without a session, and what they never show."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User, digest
from portal.cluster.models import Node, Reservation
from portal.home import wall
from portal.home.models import WallLink
from portal.jobs import lifecycle
from portal.refused import Refused
from tests.portal import jobs_world as world
from tests.portal.pages import one_line

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_counts() -> None:
    cache.clear()


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


@pytest.fixture
def node() -> Node:
    return world.make_node("alpha", gpus=4)


def link_of(ada: User, **fields: Any) -> tuple[WallLink, str]:
    return wall.create_link(ada, "Corridor", **{"names_people": True, **fields})


def run_job(node: Node) -> None:
    alice = world.make_user("alice")
    job = world.make_job(world.make_project(alice, "Secret birds"), name="owl", description="hush")
    for part in world.place(job, list(node.gpus.all()[:2])).containers.all():
        lifecycle.advance(part, "RUNNING")
    world.make_job(job.project, name="wren", waiting_reason="It waits for owl.")


def screen(secret: str, part: str = "") -> str:
    answer = Client().get(f"/wall/{secret}/{part}")
    assert answer.status_code == 200
    return one_line(answer.content.decode())


class TestScreen:
    @pytest.mark.parametrize("part", ["", "now"])
    def test_it_names_people_and_never_jobs_or_projects(self, ada: User, node: Node, part: str) -> None:
        run_job(node)
        _, secret = link_of(ada)
        page = screen(secret, part)
        assert 'aria-label="alpha, CPU slot 0: alice, less than a minute"' in page
        assert "2<small> of 4</small>" in page and "job waits" in page
        for hidden in ("owl", "wren", "Secret birds", "hush", 'href="/jobs', "<a ", "csrf"):
            assert hidden not in page, hidden

    def test_without_names_it_shows_what_is_in_use(self, ada: User, node: Node) -> None:
        run_job(node)
        _, secret = link_of(ada, names_people=False)
        page = screen(secret)
        assert "CPU slot 0: in use, less than a minute" in page and "alice" not in page

    def test_an_admins_session_shows_no_more(self, ada: User, node: Node) -> None:
        run_job(node)
        _, secret = link_of(ada)
        client = Client()
        client.force_login(ada)
        page = client.get(f"/wall/{secret}/").content.decode()
        assert "owl" not in page and "Secret birds" not in page

    def test_nodes_that_wait_for_approval_are_not_shown(self, ada: User) -> None:
        world.make_node("newcomer", approved_at=None)
        assert "newcomer" not in screen(link_of(ada)[1])

    def test_it_shows_the_next_reservations_without_their_people(self, ada: User, node: Node) -> None:
        now = timezone.now()
        row = Reservation.objects.create(
            name="Deep learning course", node=node, gpus=2, start=now + timedelta(hours=3), end=now + timedelta(hours=5)
        )
        row.users.add(world.make_user("carla"))
        page = screen(link_of(ada)[1])
        assert "Deep learning course" in page and "2 CPU slots of alpha" in page and "carla" not in page

    def test_browsers_keep_its_address_secret(self, ada: User) -> None:
        answer = Client().get(f"/wall/{link_of(ada)[1]}/")
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Robots-Tag"] == "noindex, nofollow"
        assert answer.headers["Cache-Control"] == "private, no-store"
        assert not answer.cookies

    def test_its_clock_is_that_of_the_lab(self, ada: User, settings: Any) -> None:
        settings.TIME_ZONE = "Pacific/Auckland"
        client = Client()
        client.cookies["zone"] = "America/Phoenix"
        page = client.get(f"/wall/{link_of(ada)[1]}/").content.decode()
        assert 'data-zone="Pacific/Auckland"' in page
        assert 'data-theme="dark"' in page
        assert 'data-theme="light"' in client.get(f"/wall/{link_of(ada)[1]}/?theme=light").content.decode()

    def test_the_queries_do_not_depend_on_the_size_of_the_lab(
        self, ada: User, node: Node, django_assert_max_num_queries: Any
    ) -> None:
        run_job(node)
        for number in range(8):
            world.make_node(f"more{number}", gpus=8)
        with django_assert_max_num_queries(14):
            screen(link_of(ada)[1], "now")


class TestLinks:
    def test_only_the_digest_is_stored_and_each_action_is_in_the_audit_log(self, ada: User) -> None:
        link, secret = link_of(ada)
        assert link.token_digest == digest(secret) and secret not in str(WallLink.objects.values().get())
        wall.revoke_link(ada, link)
        wall.revoke_link(ada, link)
        entries = list(AuditEntry.objects.filter(action__startswith="wall_link").order_by("id"))
        assert [(entry.action, entry.target, entry.actor) for entry in entries] == [
            ("wall_link.created", "Corridor", ada),
            ("wall_link.revoked", "Corridor", ada),
        ]
        assert not any(secret in str((entry.before, entry.after)) for entry in entries)

    def test_a_revoked_or_unknown_link_shows_nothing(self, ada: User) -> None:
        link, secret = link_of(ada)
        wall.revoke_link(ada, link)
        for address in (secret, "nothing", "x" * 500):
            for part in ("", "now"):
                assert Client().get(f"/wall/{address}/{part}").status_code == 404

    def test_its_last_use_is_recorded_once_a_minute(self, ada: User) -> None:
        link, secret = link_of(ada)
        now = timezone.now()
        for seconds, recorded in ((0, 0), (30, 0), (61, 61)):
            assert wall.find_link(secret, "1.1.1.1", now + timedelta(seconds=seconds)) is not None
            link.refresh_from_db()
            assert link.last_used_at == now + timedelta(seconds=recorded)

    def test_it_is_not_shown_too_often(self, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wall, "MAX_VIEWS", 3)
        _, secret = link_of(ada)
        statuses = [Client().get(f"/wall/{secret}/now").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        answer = Client().get(f"/wall/{secret}/now")
        assert answer.headers["Retry-After"] == "60" and "no-referrer" in answer.headers["Referrer-Policy"]

    def test_wrong_secrets_are_limited_by_address(self, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wall, "MAX_WRONG", 2)
        _, secret = link_of(ada)
        for number in range(2):
            assert Client().get(f"/wall/guess{number}/").status_code == 404
        assert Client().get("/wall/guess/").status_code == 429
        assert Client(REMOTE_ADDR="10.0.0.9").get(f"/wall/{secret}/").status_code == 200, "others are not affected"

    def test_there_is_a_limit_to_their_number(self, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wall, "MAX_LINKS", 1)
        link, _ = link_of(ada)
        with pytest.raises(Refused, match="Revoke those that are not used"):
            link_of(ada)
        wall.revoke_link(ada, link)
        assert link_of(ada)


class TestAdminPage:
    def test_an_admin_creates_a_link_and_revokes_it(self, ada: User) -> None:
        client = Client()
        client.force_login(ada)
        page = one_line(
            client.post("/admin/walls/", {"name": "  Corridor,  2nd floor ", "names_people": "on"}).content.decode()
        )
        address = page.split('id="wall-address" tabindex="0"><code>')[1].split("</code>")[0]
        assert "/wall/" in address
        assert screen(address.rstrip("/").rpartition("/")[2])
        page = client.get("/admin/walls/").content.decode()
        assert address not in page and "Corridor, 2nd floor" in page
        link = WallLink.objects.get()
        assert link.names_people and link.created_by == ada
        client.post(f"/admin/walls/{link.pk}/revoke")
        assert "No wall screens yet" in client.get("/admin/walls/").content.decode()
        assert client.post("/admin/walls/999/revoke").status_code == 404

    @pytest.mark.parametrize("name", ["", "   ", "x" * 81, "zero\u200bwidth"])
    def test_a_bad_name_is_refused(self, ada: User, name: str) -> None:
        client = Client()
        client.force_login(ada)
        assert client.post("/admin/walls/", {"name": name}).status_code == 400
        assert not WallLink.objects.exists()

    def test_for_others_it_does_not_exist(self, ada: User) -> None:
        link, _ = link_of(ada)
        client = Client()
        client.force_login(world.make_user("bob"))
        assert client.get("/admin/walls/").status_code == 404
        assert client.post("/admin/walls/", {"name": "mine"}).status_code == 404
        assert client.post(f"/admin/walls/{link.pk}/revoke").status_code == 404
        link.refresh_from_db()
        assert link.revoked_at is None
