"""Two people have the same form open: the second one learns what the first has changed, and loses nothing."""

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from portal.accounts.limits import limit_of, set_limit
from portal.accounts.models import User
from portal.accounts.services import set_members
from portal.projects import services
from portal.projects.models import Project
from portal.projects.services import Role
from portal.stale_forms import SHOWN
from tests.laws.people import make_people

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture
def people() -> dict[str, User]:
    return make_people()


@pytest.fixture
def project(people: dict[str, User]) -> Project:
    return services.create_project(people["alice"], "Vision", "First line\nsecond line")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def open_form(client: Client, address: str) -> dict[str, str]:
    """Return the hidden input of a form, as its page has it now."""
    page = client.get(address).content.decode()
    return {SHOWN: unescape(page.partition(f'name="{SHOWN}" value="')[2].partition('"')[0])}


def text_of(response: Any) -> str:
    return unescape(response.content.decode())


@pytest.mark.parametrize(
    "shown",
    [
        "[" * 100_000,
        r'{"name": "\ud800"}',
        r'{"\ud800": 1}',
        '{"name": [1]}',
        '{"name": {}}',
        '{"name": null}',
        "[]",
        "\0",
    ],
)
def test_hidden_inputs_that_no_page_has_are_harmless(people: dict[str, User], project: Project, shown: str) -> None:
    client, address = signed_in(people["alice"]), reverse("projects:edit", args=[project.pk])
    assert client.post(address, {"name": "My vision", "description": "mine", SHOWN: shown}).status_code in (302, 409)


def test_a_change_in_the_meantime_is_named_and_then_replaced(people: dict[str, User], project: Project) -> None:
    client, address = signed_in(people["alice"]), reverse("projects:edit", args=[project.pk])
    shown = open_form(client, address)
    services.edit_project(people["alice"], project, name="Vision 2")
    typed = {"name": "My vision", "description": "mine"}
    refused = client.post(address, typed | shown)
    assert refused.status_code == 409
    assert "Name from “Vision” to “Vision 2”" in text_of(refused)
    assert 'value="My vision"' in text_of(refused) and ">\nmine</textarea>" in text_of(refused)
    project.refresh_from_db()
    assert (project.name, project.description) == ("Vision 2", "First line\nsecond line")
    again = unescape(refused.content.decode()).partition(f'name="{SHOWN}" value="')[2].partition('">')[0]
    assert client.post(address, typed | {SHOWN: again}).status_code == 302
    project.refresh_from_db()
    assert (project.name, project.description) == ("My vision", "mine")


def test_a_field_that_was_left_alone_takes_the_new_value(people: dict[str, User], project: Project) -> None:
    client, address = signed_in(people["alice"]), reverse("projects:edit", args=[project.pk])
    shown = open_form(client, address)
    services.edit_project(people["alice"], project, description="theirs")
    refused = client.post(address, {"name": "New", "description": "First line\r\nsecond line"} | shown)
    assert refused.status_code == 409
    assert ">\ntheirs</textarea>" in text_of(refused) and 'value="New"' in text_of(refused)


@pytest.mark.parametrize("change", [{}, {"name": "Same"}, {"name": "  Same "}])
def test_no_conflict_without_a_difference(people: dict[str, User], project: Project, change: dict[str, str]) -> None:
    client, address = signed_in(people["alice"]), reverse("projects:edit", args=[project.pk])
    shown = open_form(client, address)
    services.edit_project(people["alice"], project, **change)
    typed = {"name": "Same", "description": "First line\r\nsecond line"}
    assert client.post(address, typed | shown).status_code == 302


@pytest.mark.parametrize("shown", [{}, {SHOWN: ""}, {SHOWN: "nonsense"}, {SHOWN: "[1]"}, {SHOWN: '{"other": 1}'}])
def test_a_form_without_the_shown_values_is_saved(
    people: dict[str, User], project: Project, shown: dict[str, str]
) -> None:
    address = reverse("projects:edit", args=[project.pk])
    assert signed_in(people["alice"]).post(address, {"name": "Script", "description": ""} | shown).status_code == 302


def test_an_invalid_form_still_learns_of_the_change(people: dict[str, User], project: Project) -> None:
    client, address = signed_in(people["alice"]), reverse("projects:edit", args=[project.pk])
    shown = open_form(client, address)
    services.edit_project(people["alice"], project, description="theirs")
    refused = client.post(address, {"name": "", "description": "mine"} | shown)
    assert refused.status_code == 409 and "now “theirs”" not in text_of(refused)
    assert "to “theirs”" in text_of(refused) and "This field is required" in text_of(refused)


def test_a_role_that_was_changed_is_not_replaced(people: dict[str, User], project: Project) -> None:
    member = services.share(people["alice"], project, "bob", Role.VIEWER)
    client, address = signed_in(people["alice"]), reverse("projects:change-role", args=[project.pk, member.pk])
    services.change_role(people["alice"], member, Role.OWNER)
    page = client.post(address, {"role": "member", SHOWN: "viewer"}, follow=True)
    assert "Someone has made bob" in text_of(page)
    member.refresh_from_db()
    assert member.role == Role.OWNER
    client.post(address, {"role": "member", SHOWN: "owner"})
    member.refresh_from_db()
    assert member.role == Role.MEMBER


def test_members_of_a_group_and_who_changed_them(people: dict[str, User]) -> None:
    group = Group.objects.create(name="students")
    client, address = signed_in(people["ada"]), reverse("accounts:group", args=[group.pk])
    shown = open_form(client, address)
    set_members(people["ada"], group, [people["bob"], people["alice"]])
    same = client.post(address, {"names": "bob,\r\nalice"} | shown)
    assert same.status_code == 302
    refused = client.post(address, {"names": "charlie"} | shown)
    assert refused.status_code == 409
    assert "ada has changed this" in text_of(refused) and "from empty to “alice bob”" in text_of(refused)
    assert set(group.user_set.all()) == {people["alice"], people["bob"]}


def test_no_one_is_named_for_a_change_of_another_kind(people: dict[str, User]) -> None:
    """A member who joined by an invitation was not put in by the admin who chose the members before."""
    group = Group.objects.create(name="students")
    set_members(people["ada"], group, [people["bob"]])
    client, address = signed_in(people["ada"]), reverse("accounts:group", args=[group.pk])
    shown = open_form(client, address)
    people["victor"].groups.add(group)
    refused = client.post(address, {"names": "alice"} | shown)
    assert refused.status_code == 409 and "Someone has changed this" in text_of(refused)


@pytest.mark.parametrize(
    "owner", [lambda people: people["bob"], lambda people: Group.objects.get_or_create(name="students")[0]]
)
def test_limits_and_who_changed_them(people: dict[str, User], owner: Callable[[Any], User | Group]) -> None:
    whose = owner(people)
    kind = "user" if isinstance(whose, User) else "group"
    client, address = signed_in(people["ada"]), reverse(f"jobs:limit-{kind}", args=[whose.pk])
    shown = open_form(client, address)
    set_limit(people["ada"], whose, max_gpus=4, max_queued=None, premium=True)
    refused = client.post(address, {"max_gpus": "8", "weight": "1"} | shown)
    assert refused.status_code == 409
    assert "ada has changed this" in text_of(refused) and "from empty to “4”" in text_of(refused)
    assert "from no to yes" in text_of(refused) and "checked" in text_of(refused)
    limit = limit_of(whose)
    assert limit is not None and limit.max_gpus == 4
    assert client.post(address, {"max_gpus": "4", "weight": "1", "premium": "on"} | shown).status_code == 302


def test_the_profile_in_two_tabs(people: dict[str, User]) -> None:
    client, address = signed_in(people["bob"]), reverse("accounts:profile")
    shown = open_form(client, address)
    User.objects.filter(pk=people["bob"].pk).update(first_name="Robert")
    typed = {"first_name": "Bobby", "last_name": "", "email": people["bob"].email}
    refused = client.post(address, typed | shown)
    assert refused.status_code == 409 and "First name from empty to “Robert”" in text_of(refused)


@pytest.mark.parametrize(("password", "status"), [("", 400), ("wrong", 400), (PASSWORD, 302)])
def test_another_address_needs_the_password(people: dict[str, User], password: str, status: int) -> None:
    bob = people["bob"]
    bob.set_password(PASSWORD)
    bob.save()
    typed = {"first_name": "Bob", "last_name": "", "email": "new@lab.example", "password": password}
    assert signed_in(bob).post(reverse("accounts:profile"), typed).status_code == status
    bob.refresh_from_db()
    assert (bob.email == "new@lab.example") == (status == 302)


def test_the_profile_without_another_address_needs_no_password(people: dict[str, User]) -> None:
    bob = people["bob"]
    typed = {"first_name": "Bob", "last_name": "B", "email": bob.email}
    assert signed_in(bob).post(reverse("accounts:profile"), typed).status_code == 302


def test_a_change_of_one_field_keeps_the_others(people: dict[str, User], project: Project) -> None:
    """As two PATCH requests at once: both have read the project before either writes."""
    first, second = Project.objects.get(pk=project.pk), Project.objects.get(pk=project.pk)
    services.edit_project(people["alice"], first, name="Renamed")
    services.edit_project(people["alice"], second, description="Described")
    project.refresh_from_db()
    assert (project.name, project.description) == ("Renamed", "Described")
