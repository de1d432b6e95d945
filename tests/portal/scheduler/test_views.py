"""The admin overview and the page of the scheduling policy."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.scheduler import services
from portal.scheduler.models import Cycle, SchedulerConfig
from scheduling import registry
from tests.portal import jobs_world as world

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return world.make_user("admin", is_staff=True)


@pytest.fixture
def client(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


def test_for_others_these_pages_do_not_exist() -> None:
    member = Client()
    member.force_login(world.make_user("alice"))
    for path in ("/admin/", "/admin/policy/"):
        assert member.get(path).status_code == 404
        assert Client().get(path).status_code == 302
    for path in ("/admin/policy/preview/?policy=fifo", "/admin/policy/undo/"):
        assert member.post(path).status_code == 404
        assert Client().post(path).status_code == 302
    assert not SchedulerConfig.objects.exists()


def test_the_overview_links_every_page_and_shows_what_needs_attention(client: Client) -> None:
    world.make_node("alpha", approved_at=None)
    page = client.get("/admin/").content.decode()
    for path in (
        "/admin/nodes/",
        "/admin/policy/",
        "/admin/users/",
        "/admin/limits/",
        "/admin/invites/",
        "/admin/audit/",
    ):
        assert f'href="{path}"' in page
        assert client.get(path).status_code == 200
    assert "1 waits for approval" in page


@pytest.mark.parametrize("key", registry.POLICIES)
def test_every_policy_explains_itself_and_its_parameters(client: Client, key: str) -> None:
    page = client.get(f"/admin/policy/?policy={key}").content.decode()
    about = registry.describe(key)
    form = client.get(f"/admin/policy/?policy={key}").context["form"]
    assert about.title in page
    for item in about.params:
        assert form[item.name].value() == item.default and str(form[item.name].label) == item.label
        assert item.help.partition("'")[0] in page


def test_the_page_shows_the_parameters_in_force(client: Client, admin: User) -> None:
    services.switch_policy(admin, "elastic_fifo", {"strict": True, "grow_after_seconds": 77})
    form = client.get("/admin/policy/").context["form"]
    assert form["grow_after_seconds"].value() == 77 and form["strict"].value() is True


@pytest.mark.parametrize("value", ["-1", "1e9", "soon", ""])
def test_a_wrong_parameter_changes_nothing_and_is_marked(client: Client, value: str) -> None:
    query: dict[str, str | int] = {"policy": "elastic_fifo", "set": 1, "p-grow_after_seconds": value}
    response = client.get("/admin/policy/preview/", query)
    assert response.status_code == 400 and not SchedulerConfig.objects.exists()
    assert 'id="id_p-grow_after_seconds_error"' in response.content.decode()


def test_there_is_no_other_policy(client: Client) -> None:
    assert client.get("/admin/policy/?policy=nonsense").status_code == 404
    assert client.get("/admin/policy/preview/?policy=nonsense").status_code == 404
    assert client.get("/admin/policy/preview/").status_code == 404


def test_a_policy_that_left_the_code_is_still_in_the_history(client: Client, admin: User) -> None:
    SchedulerConfig.objects.create(policy="old_one", params={"x": 1}, created_by=admin)
    assert "old_one" in client.get("/admin/").content.decode()
    assert client.get("/admin/policy/").context["chosen"].key == registry.DEFAULT
    services.switch_policy(None, "fifo", {})
    page = " ".join(client.get("/admin/policy/").content.decode().split())
    assert "old_one" in page and "by the portal" in page


def test_turns_are_shown_and_one_that_failed_is_loud(client: Client) -> None:
    Cycle.objects.create(epoch=1, snapshot_sha256="", duration_ms=12.5, started=3, error="The policy broke: <boom>")
    for path in ("/admin/", "/admin/policy/"):
        page = client.get(path).content.decode()
        assert 'role="alert"' in page and "&lt;boom&gt;" in page
    Cycle.objects.create(epoch=1, snapshot_sha256="", duration_ms=1.0, at=timezone.now())
    assert 'role="alert"' not in client.get("/admin/").content.decode()


def test_what_goes_on_being_wrong_stays_loud_until_a_switch(client: Client, admin: User) -> None:
    config = services.switch_policy(admin, "elastic_fifo", {})
    days_ago = timezone.now() - timedelta(days=2)
    Cycle.objects.create(epoch=1, snapshot_sha256="", duration_ms=1.0, config=config, error="It broke.", at=days_ago)
    assert 'role="alert"' in client.get("/admin/").content.decode()
    services.switch_policy(admin, "fifo", {})
    assert 'role="alert"' not in client.get("/admin/").content.decode()
