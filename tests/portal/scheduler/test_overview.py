"""The admin overview: what needs an admin first, with true counts, and notices that can be hidden."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from portal.accounts import services
from portal.accounts.models import User
from portal.cluster import quarantine
from portal.cluster.models import Gpu, Node
from tests.portal import jobs_world as world
from tests.portal.pages import compact

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


@pytest.fixture(autouse=True)
def _mail_is_sent(settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.SITE_URL, settings.ALLOWED_HOSTS = "https://gpus.example.org", ["gpus.example.org", "testserver"]


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(client: Client) -> str:
    return compact(client.get("/admin/").content.decode())


def test_a_quiet_lab_has_nothing_to_attend_to(ada: User) -> None:
    world.make_node("alpha")
    html = page(client_of(ada))
    assert "Needs your attention" not in html and "No job is running or waiting." in html
    assert "1 node" in html and "1 active user, 0 groups" in html and "none open" in html


def test_links_that_only_this_machine_can_open_are_named_until_hidden(ada: User, settings: Any) -> None:
    settings.SITE_URL = "http://localhost:8000"
    client = client_of(ada)
    assert "Links in mails and messages begin with http://localhost:8000" in page(client)
    assert client.post("/admin/hide/site").status_code == 302
    assert "Links in mails and messages" not in page(client)


def test_the_internal_user_is_not_counted(ada: User) -> None:
    world.make_user("bob")
    User.objects.create_user(services.EXAMPLES_OWNER)
    Group.objects.create(name="vision")
    assert "2 active users, 1 group" in page(client_of(ada))


def test_machines_that_need_an_admin_come_first_with_their_fix(ada: User) -> None:
    silent, waiting, gpu_node = (world.make_node(name) for name in ("quiet", "fresh", "hot"))
    Node.objects.filter(pk=silent.pk).update(last_seen_at=timezone.now() - timedelta(hours=3))
    Node.objects.filter(pk=waiting.pk).update(approved_at=None)
    quarantine.quarantine_by_admin(ada, Gpu.objects.filter(node=gpu_node)[0])
    html = page(client_of(ada))
    assert html.index("Needs your attention") < html.index("Scheduling policy</h2>")
    for node in (silent, waiting, gpu_node):
        assert f'href="/admin/nodes/{node.pk}/"' in html
    assert "fresh waits for approval" in html and "1 waits for approval" in html


def test_a_hint_about_a_node_is_not_an_alarm(ada: User) -> None:
    node = world.make_node("alpha")
    hint = {"text": "Jobs run without bubblewrap.", "fix": "Install it.", "blocking": False}
    Node.objects.filter(pk=node.pk).update(problems=[hint])
    assert "Needs your attention" not in page(client_of(ada)) and "accepts no jobs" not in page(client_of(ada))
    Node.objects.filter(pk=node.pk).update(problems=[hint | {"blocking": True}])
    html = page(client_of(ada))
    assert "alpha accepts no jobs" in html and "1 accepts no jobs" in html


def test_mail_that_is_not_sent_is_named_until_it_is_hidden(ada: User, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    client = client_of(ada)
    assert "Mail is not set up" in page(client) and "printed to the terminal" in page(client)
    assert client.post("/admin/hide/mail").status_code == 302
    assert "Mail is not set up" not in page(client)
    assert "Mail is not set up" in page(client_of(ada)), "another session"
    settings.EMAIL_BACKEND = "acme.mail.Backend"
    assert "Mail is not set up" not in page(client_of(ada)), "a backend of the lab's own may send"


def test_open_invitations_are_counted_and_can_be_hidden(ada: User) -> None:
    client = client_of(ada)
    services.create_invite(ada, email="x@lab.example", makes_admin=False, groups=[])
    assert "1 invitation is open" in page(client) and "1 open" in page(client)
    services.create_invite(ada, email="y@lab.example", makes_admin=False, groups=[])
    assert "2 invitations are open" in page(client)
    client.post("/admin/hide/invitations")
    assert "are open" not in page(client) and "2 open" in page(client)


def test_plain_processes_are_named_once(ada: User) -> None:
    Node.objects.filter(pk=world.make_node("alpha").pk).update(runtime=Node.Runtime.PROCESS)
    client = client_of(ada)
    assert page(client).count("as plain processes") == 1, "in the banner"
    client.post("/banner/dismiss")
    assert "Needs your attention" in page(client) and page(client).count("as plain processes") >= 1
    client.post("/admin/hide/processes")
    assert "as plain processes" not in page(client)


def test_only_known_notices_and_only_admins(ada: User) -> None:
    assert client_of(ada).post("/admin/hide/other").status_code == 404
    assert client_of(ada).get("/admin/hide/mail").status_code == 405
    assert client_of(world.make_user("bob")).post("/admin/hide/mail").status_code == 404
