"""Names in another case or way to write the same letters, and characters that no name has."""

import unicodedata

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction
from django.test import Client

from portal.accounts import services
from portal.accounts.forms import GroupForm, JoinForm, MembersForm
from portal.accounts.models import GroupName, User
from portal.accounts.people import groups_called, people_called
from portal.names import has_invisible_characters, name_key, spare_key
from portal.refused import Refused
from portal.search import any_contains
from tests.portal.upgrades import upgrade_from

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
PASSWORD = "sunflower-cabinet"


@pytest.fixture
def jose() -> User:
    return User.objects.create_user("José", "Jose.P@example.org", PASSWORD, is_staff=True)


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize("typed", ["José", "JOSÉ", "josé", nfd("JosÉ"), "jose.p@EXAMPLE.org"])
def test_signing_in_works_with_any_way_to_type_the_name(client: Client, jose: User, typed: str) -> None:
    client.post("/accounts/sign-in/", {"username": typed, "password": PASSWORD})
    assert client.session.get("_auth_user_id") == str(jose.pk)


def test_the_sign_in_page_asks_for_either_and_takes_a_long_address(client: Client, jose: User) -> None:
    page = client.get("/accounts/sign-in/").content.decode()
    assert "User name or e-mail address" in page and 'maxlength="254"' in page
    answer = client.post("/accounts/sign-in/", {"username": "josé", "password": "wrong"})
    assert "this password do not match" in answer.content.decode()


@pytest.mark.parametrize("typed", ["JOSÉ", nfd("josé"), "jose.p@example.org"])
def test_a_taken_name_cannot_join_again(jose: User, typed: str) -> None:
    form = JoinForm({"username": typed, "email": "other@example.org", "password": PASSWORD})
    assert form.errors["username"] == ["This name is taken."]
    if "@" not in typed:
        with pytest.raises(IntegrityError), transaction.atomic():
            User.objects.create_user(typed, "other@example.org", PASSWORD)


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_are_paths_cannot_join(name: str) -> None:
    assert "cannot be names" in JoinForm({"username": name, "password": PASSWORD}).errors["username"][0]


@pytest.mark.parametrize(
    "name", ["vi\u200bsion", "vi\u202esion", "\ufeffvision", "vision\u2066", "vi\u00adsion", "\u3164"]
)
def test_invisible_characters_are_refused(name: str) -> None:
    assert has_invisible_characters(name)
    assert GroupForm({"name": name}).errors["name"]


@pytest.mark.parametrize("name", ["李雷", "محمد", "Ωmega", "🚀 rockets", "Ünal-Straße"])
def test_names_of_all_scripts_are_accepted(name: str) -> None:
    assert not has_invisible_characters(name)
    assert GroupForm({"name": name}).is_valid()


def test_two_groups_differ_by_more_than_case(jose: User) -> None:
    services.create_group(jose, "Équipe")
    assert GroupForm({"name": "ÉQUIPE"}).errors["name"] == ["There is a group with this name."]
    with pytest.raises(Refused, match="There is a group with this name"):
        services.create_group(jose, nfd("équipe"))


def test_a_group_may_be_called_like_the_beginning_of_another(jose: User) -> None:
    lab = services.create_group(jose, "Vision lab")
    assert GroupForm({"name": "vision"}).is_valid() and groups_called("VISION") == []
    vision = services.create_group(jose, "Vision")
    assert groups_called("VISION") == [vision] and groups_called("vision LAB") == [lab]


def test_a_group_has_more_than_a_thousand_members() -> None:
    names = [f"user{number}" for number in range(1200)]
    User.objects.bulk_create(User(username=name, name_key=name, email=f"{name}@example.org") for name in names)
    form = MembersForm({"names": " ".join(names).upper()})
    assert form.is_valid() and len(form.cleaned_data["names"]) == len(names)


@pytest.mark.parametrize("typed", ["x" * 60_000, "\ufdfa" * 5_000, "a\0b", "\ud800", "x@" + "y" * 60_000])
def test_what_no_one_can_be_called_means_no_one(jose: User, typed: str) -> None:
    assert User.objects.matching(typed) == [] == groups_called(typed)
    with pytest.raises(User.DoesNotExist):
        User.objects.get_by_natural_key(typed)
    with pytest.raises(Refused, match="There is no user called"):
        people_called([typed, "José"], User.objects.all())


@pytest.mark.parametrize("words", ["x" * 60_000, "\ufdfa" * 5_000])
def test_long_words_find_nothing(words: str) -> None:
    Group.objects.create(name="another")
    assert not Group.objects.filter(any_contains(words, "name"))


def test_members_are_named_in_any_case_and_ambiguous_ones_refused(jose: User) -> None:
    form = MembersForm({"names": f"JOSÉ {nfd('josé')}"})
    assert form.is_valid() and form.cleaned_data["names"] == [jose]
    User.objects.bulk_create([User(username="joSÉ", name_key=spare_key(name_key("josé"), 99))])
    assert "several users" in MembersForm({"names": "JOSÉ"}).errors["names"][0]
    assert MembersForm({"names": "José"}).is_valid()


def test_a_group_called_like_a_user_does_not_hide_that_user(client: Client, jose: User) -> None:
    group = services.create_group(jose, "josé")
    client.force_login(jose)
    page = client.get("/admin/limits/", {"who": "JOSÉ"}).content.decode()
    assert f"/admin/limits/users/{jose.pk}/" in page and f"/admin/limits/groups/{group.pk}/" in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("José", "OSÉ"),
        ("ÖZGÜR", nfd("özg")),
        ("Straße", "STRASSE"),
        ("Οδος", "ΟΔΟΣ"),
        ("ﬁne", "FINE"),
        ("Жук", "жУ"),
        ("a%b", "A%"),
    ],
)
def test_search_ignores_case_in_all_scripts(name: str, words: str) -> None:
    Group.objects.create(name=name)
    Group.objects.create(name="another")
    assert [group.name for group in Group.objects.filter(any_contains(words, "name"))] == [name]


@pytest.mark.django_db(transaction=True)
@pytest.mark.thorough
def test_an_upgrade_keeps_users_and_groups_whose_names_differ_by_case() -> None:
    names = ("José", nfd("josé"))
    Group.objects.bulk_create(Group(name=name) for name in names)
    for number, name in enumerate(names):
        User.objects.create_user(f"user{number}")
        User.objects.filter(username=f"user{number}").update(username=name)
    upgrade_from("accounts", "0005_soft_limits")
    first, second = User.objects.order_by("pk")
    assert (first.name_key, second.name_key) == ("josé", spare_key("josé", second.pk))
    assert GroupName.objects.count() == 2
    assert GroupName.objects.order_by("group")[0].name_key == "josé"
    assert User.objects.called("José") == [first]
    assert len(User.objects.called("JOSÉ")) == 2
    assert groups_called("josé 2") == []
    second.save()
    second.refresh_from_db()
    assert second.name_key == spare_key("josé", second.pk)


@pytest.mark.django_db(transaction=True)
@pytest.mark.thorough
def test_an_upgrade_keeps_groups_whose_names_end_in_numbers() -> None:
    Group.objects.bulk_create(Group(pk=pk, name=name) for pk, name in ((1, "vision"), (2, "vision 3"), (3, "Vision")))
    upgrade_from("accounts", "0005_soft_limits")
    assert [group.pk for group in groups_called("VISION")] == [1, 3]
    assert [group.pk for group in groups_called("Vision")] == [3]
    assert [group.pk for group in groups_called("VISION 3")] == [2]
