"""The audit page: sentences with links, days and times of the reader, values in words, filters, and entries of old releases."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.accounts import services
from portal.accounts.limits import set_limit
from portal.accounts.models import AuditEntry, User
from portal.cluster import services as cluster
from portal.scheduler.services import switch_policy
from tests.portal import jobs_world as world
from tests.portal.pages import compact

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
URL = "/admin/audit/"


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True)


def client_of(user: User, zone: str = "") -> Client:
    client = Client()
    client.force_login(user)
    if zone:
        client.cookies["zone"] = zone
    return client


def page(user: User, query: str = "", zone: str = "") -> str:
    response = client_of(user, zone).get(URL + query)
    assert response.status_code == 200
    return compact(response.content.decode())


def write(action: str, target: str, actor: User | None = None, **fields: Any) -> AuditEntry:
    return AuditEntry.objects.create(action=action, target=target, actor=actor, **fields)


def test_a_switch_is_a_sentence_with_its_parameters_in_words(ada: User) -> None:
    switch_policy(ada, "fifo", {})
    switch_policy(ada, "fair_share", {"half_life_days": 3.5, "elastic": False})
    html = page(ada)
    assert "<strong>ada</strong>switched the policy from “" in html
    assert 'to<a href="/admin/policy/">“' in html
    assert "Half-life in days" in html and "<td>3.5</td>" in html and "<td>no</td>" in html
    assert "half_life_days" not in html and "policy_switched&" not in html and "&#x27;" not in html


def test_a_limit_is_shown_by_names_and_leads_to_its_form(ada: User) -> None:
    bob, group = world.make_user("bob"), services.create_group(ada, "vision")
    set_limit(ada, bob, max_gpus=4, max_queued=None, weight=2.0)
    set_limit(ada, bob, max_gpus=6, max_queued=None, weight=2.0)
    set_limit(ada, group, max_gpus=None, max_queued=9)
    html = page(ada)
    assert f'set a limit for<a href="/admin/limits/users/{bob.pk}/">bob</a>' in html
    assert f'changed the limit of<a href="/admin/limits/users/{bob.pk}/">bob</a>' in html
    assert f'<a href="/admin/limits/groups/{group.pk}/">the group vision</a>' in html
    assert '<th scope="row">Maximum number of GPUs at once</th><td>4</td><td>6</td>' in html
    assert "no limit" in html and "max_gpus" not in html


def test_links_lead_only_to_what_the_entry_was_about(ada: User) -> None:
    node = world.make_node("gpu-1")
    cluster.drain(ada, node)
    services.create_group(ada, "gone")
    services.delete_group(ada, Group.objects.get(name="gone"))
    services.create_group(ada, "gone")
    html = page(ada)
    assert f'drained<a href="/gpus/nodes/{node.pk}/">gpu-1</a>' in html
    assert html.count(f'<a href="/admin/groups/{Group.objects.get().pk}/">gone</a>') == 1
    assert "deleted the group gone." in html
    write("node.approved", "gpu-1", at=node.created_at - timedelta(days=1))
    assert "The portal</strong>approved gpu-1." in page(ada), "this node is newer than the entry"


def test_entries_are_grouped_by_the_days_of_the_reader(ada: User) -> None:
    for hour in (20, 23):
        write("group.create", f"group g{hour}", ada, at=datetime(2026, 3, 4, hour, 30, 5, tzinfo=UTC))
    utc, tokyo, cet = (page(ada, zone=zone) for zone in ("UTC", "Asia/Tokyo", "Europe/Berlin"))
    assert "Wednesday, 4 March 2026" in utc and "Thursday" not in utc and ">23:30:05</time>" in utc
    assert "Thursday, 5 March 2026" in tokyo and "Wednesday" not in tokyo and ">08:30:05</time>" in tokyo
    assert "Wednesday, 4 March 2026" in cet and "Thursday, 5 March 2026" in cet and "Times in Europe/Berlin" in cet


def test_times_among_the_values_are_in_the_readers_zone(ada: User) -> None:
    after = {"node": "gpu-1", "gpus": 2, "start": "2026-03-04T20:00:00+00:00", "end": "2026-03-05T08:00:00+00:00"}
    write("reservation.made", "Course", ada, after=after | {"for": ["bob", "group vision"]})
    html = page(ada, zone="Asia/Tokyo")
    assert "5 Mar 2026, 05:00 JST" in html and "2026-03-04T20:00:00+00:00</td>" not in html
    assert "made the reservation “Course” on gpu-1." in html and "bob, group vision" in html


def test_a_node_that_joined_without_a_users_command_names_no_one(ada: User) -> None:
    write("node.joined", "gpu-1", ada, after={"runtime": "docker", "approved": False})
    write("node.joined", "gpu-2", None, after={"runtime": "docker", "approved": True})
    html = page(ada)
    assert "gpu-1 joined the lab with a join command from<strong>ada</strong>and waits for approval." in html
    assert "gpu-2 joined the lab." in html and "Docker Engine" in html


def test_entries_of_old_releases_and_odd_ones_are_readable(ada: User) -> None:
    write("policy.switch", "policy", ada, before={"policy": "fifo"}, after={"policy": "no_longer_there"})
    write("node.token_rotated", "gpu-9")
    write("scheduler.policy_switched", "A policy of long ago", None, before={}, after={"params": {"half_life": 3}})
    write("limit.set", "bob", ada, after={"max_gpus": 3})
    write("gpu.released", "GPU 1 of gpu-9", ada, before={"reason": "XID 79."})
    write("user.role", "user bob", ada, after=["admin"])
    write("group.members", "group vision", ada, after={"members": 7})
    write("project.hand_over", "project x", ada)
    html = page(ada)
    assert "<strong>ada</strong>: policy switch, policy." in html
    assert "gave gpu-9 a new token." in html and "Half life" in html and "XID 79." in html
    assert "set a limit for bob." in html and "policy.switch<" not in html and "half_life" not in html


def test_what_users_typed_stays_text(ada: User) -> None:
    write("group.members", "group <i>x</i>", ada, after={"members": ["<b>bob</b>", "{actor}", "{0}"]})
    write("reservation.made", "<img src=x>", ada, after={"node": "{subject}<u>", "for": ["<s>"]})
    write("no.such_action{actor}<p>", "{x}<script>", ada, after={"<em>": {"<em>": "<em>"}})
    html = page(ada)
    for tag in ("<i>x", "<b>bob", "<img src=x", "<u>", "<s>", "<script>alert", "{x}<script", "<em>"):
        assert tag not in html
    assert "&lt;b&gt;bob&lt;/b&gt;" in html and "{actor}" in html


def test_filters_by_person_kind_subject_and_days(ada: User) -> None:
    eve = world.make_user("Eve", is_staff=True)
    for who, name, day in ((ada, "one", 1), (eve, "two", 2), (eve, "three", 3)):
        write("group.create", f"group {name}", who, at=datetime(2026, 3, day, 12, tzinfo=UTC))
    write("user.role", "user bob", ada, at=datetime(2026, 3, 4, 12, tzinfo=UTC))

    def shown(query: str) -> list[str]:
        return [entry.target for entry in client_of(ada, "UTC").get(URL + query).context["page_obj"]]

    assert shown("?actor=eve") == ["group three", "group two"]
    assert shown("?action=user.role") == ["user bob"]
    assert shown("?target=t&action=group.create") == ["group three", "group two"]
    assert shown("?from=2026-03-02&to=2026-03-03") == ["group three", "group two"]
    assert shown("?sort=when&to=2026-03-02") == ["group one", "group two"]
    assert shown("?actor=eve&target=one") == []
    assert "No entry matches" in page(ada, "?actor=eve&target=one")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("?actor=zorro", "There is no user called “zorro”"),
        ("?action=no.such", "There is no kind “no.such”"),
        ("?from=03/04/2026", "“03/04/2026” is not a day"),
        ("?from=2026-03-05&to=2026-03-01", "The first day is after the last one"),
        ("?sort=action", "cannot be sorted by “action”"),
    ],
)
def test_what_cannot_be_followed_is_named(ada: User, query: str, sentence: str) -> None:
    services.create_group(ada, "vision")
    assert sentence in page(ada, query)


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati"])
def test_a_value_that_is_the_first_or_last_moment_of_all_is_shown_in_every_zone(ada: User, zone: str) -> None:
    for moment in ("0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        write("group.members", "group vision", ada, after={"members": [moment], "name": moment})
    assert page(ada, zone=zone).count("31 Dec 9999") == 2


def test_no_more_queries_with_more_entries(ada: User) -> None:
    client = client_of(ada)

    def queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            client.get(URL)
        return len(caught)

    def act(number: int) -> None:
        person, group = world.make_user(f"u{number}"), services.create_group(ada, f"g{number}")
        set_limit(ada, person, max_gpus=1, max_queued=None)
        set_limit(ada, group, max_gpus=1, max_queued=None)
        cluster.cordon(ada, world.make_node(f"n{number}"))
        services.set_admin(ada, person, True)

    act(0)
    few = queries()
    with transaction.atomic():
        for number in range(1, 6):
            act(number)
    assert queries() == few


def test_without_entries_the_page_starts_something(ada: User) -> None:
    assert 'href="/admin/invites/">Invite someone' in page(ada)
