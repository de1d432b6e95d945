"""Secrets over REST: values go in, and never come out."""

from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import ApiToken, User
from portal.projects.models import Membership, Project
from portal.secrets import keys, services
from portal.secrets.models import Secret
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_project, make_user

pytestmark = pytest.mark.django_db

VALUE = "hf_plantedValue93"
VARIABLE = {"name": "HF_TOKEN", "value": VALUE}


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    project = make_project(alice)
    for name, role in (("bob", "member"), ("victor", "viewer")):
        Membership.objects.create(project=project, user=make_user(name), role=role)
    return project


def script_of(name: str) -> Script:
    return Script(User.objects.filter(username=name).first() or make_user(name))


def test_add_list_replace_and_delete(alice: User) -> None:
    script = Script(alice)
    made = script.send("post", "secrets/", VARIABLE)
    assert made.status_code == 201 and made.json()["reference"] == "HF_TOKEN" and made.json()["notices"] == []
    listed = script.get("secrets/").json()["results"]
    assert [row["name"] for row in listed] == ["HF_TOKEN"] and listed[0]["changed_by"] == "alice"
    assert set(listed[0]) == {
        "name",
        "reference",
        "kind",
        "created_at",
        "changed_at",
        "changed_by",
        "used_at",
        "readable",
    }
    changed = script.send("put", "secrets/HF_TOKEN/", {"value": "abc\n"})
    assert changed.json()["notices"] == [services.NEWLINE_REMOVED, services.TOO_SHORT_TO_MASK]
    assert keys.unseal(Secret.objects.get().sealed) == "abc"
    assert script.delete("secrets/HF_TOKEN/").status_code == 204
    assert script.delete("secrets/HF_TOKEN/").status_code == 404


def test_a_file_keeps_the_spaces_around_it(alice: User) -> None:
    sent = {"name": "kaggle.json", "kind": "file", "value": " {}\n"}
    assert Script(alice).send("post", "secrets/", sent).status_code == 201
    assert keys.unseal(Secret.objects.get().sealed) == " {}\n"
    assert Script(alice).send("put", "secrets/kaggle.json/", {"value": "{}"}).status_code == 200


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"name": "HF_TOKEN"}, "value"),
        ({"name": "HF_TOKEN", "value": 5}, "value"),
        ({"name": "HF_TOKEN", "value": ""}, "value"),
        ({"name": "HF_TOKEN", "value": "\n"}, "value"),
        ({"name": "HF_TOKEN", "value": VALUE * 5000}, "value"),
        ({"name": "PATH", "value": VALUE}, "name"),
        ({"name": "a b", "value": VALUE}, "name"),
        ({"name": "x", "kind": "other", "value": VALUE}, "kind"),
        ({"name": "x", "value": VALUE, "sealed": VALUE}, "sealed"),
        ({"name": "x", "value": VALUE, "used_at": None}, "used_at"),
    ],
)
def test_what_is_refused_is_named_without_the_value(alice: User, sent: dict[str, Any], field: str) -> None:
    answer = Script(alice).send("post", "secrets/", sent)
    assert answer.status_code == 400 and set(answer.json()["error"]["fields"]) == {field}
    assert VALUE not in answer.content.decode() and not Secret.objects.exists()


def test_unknown_fields_and_parameters_are_refused(alice: User) -> None:
    script = Script(alice)
    script.send("post", "secrets/", VARIABLE)
    assert script.send("put", "secrets/HF_TOKEN/", {"value": VALUE, "name": "OTHER"}).status_code == 400
    assert script.get("secrets/?kind=file").status_code == 400


def test_a_name_is_taken_once(alice: User) -> None:
    script = Script(alice)
    script.send("post", "secrets/", VARIABLE)
    assert script.send("post", "secrets/", VARIABLE).status_code == 409


def test_a_token_that_may_only_read_changes_nothing(alice: User) -> None:
    Script(alice).send("post", "secrets/", VARIABLE)
    reader = Script(alice, ApiToken.Scope.READ)
    assert reader.get("secrets/").status_code == 200
    assert reader.send("post", "secrets/", VARIABLE | {"name": "X"}).status_code == 403
    assert reader.send("put", "secrets/HF_TOKEN/", {"value": "x"}).status_code == 403
    assert reader.delete("secrets/HF_TOKEN/").status_code == 403


def test_others_have_their_own_and_not_hers(alice: User) -> None:
    Script(alice).send("post", "secrets/", VARIABLE)
    ada = Script(make_user("ada", is_staff=True))
    assert ada.get("secrets/").json()["count"] == 0
    assert ada.send("put", "secrets/HF_TOKEN/", {"value": "x"}).status_code == 404
    assert ada.delete("secrets/HF_TOKEN/").status_code == 404
    assert Script().get("secrets/").status_code == 401


def test_an_unreadable_one_is_listed_as_such(alice: User, settings: Any) -> None:
    Script(alice).send("post", "secrets/", VARIABLE)
    (settings.HOME / keys.KEY_FILE).write_text("another key")
    assert Script(alice).get("secrets/").json()["results"][0]["readable"] is False


class TestOfAProject:
    @pytest.fixture
    def address(self, project: Project, alice: User) -> str:
        services.create(alice, project, "variable", "SHARED_KEY", VALUE)
        return f"projects/{project.pk}/secrets/"

    @pytest.mark.parametrize(
        ("name", "listed", "changed"),
        [
            ("alice", 200, (201, 200, 204)),
            ("bob", 200, (403, 403, 403)),
            ("victor", 403, (403, 403, 403)),
            ("charlie", 404, (404, 404, 404)),
        ],
    )
    def test_who_may_do_what(self, address: str, name: str, listed: int, changed: tuple[int, int, int]) -> None:
        script = script_of(name)
        answer = script.get(address)
        assert answer.status_code == listed and VALUE not in answer.content.decode()
        assert (listed == 200) == ("SHARED_KEY" in answer.content.decode())
        given = (
            script.send("post", address, VARIABLE).status_code,
            script.send("put", f"{address}SHARED_KEY/", {"value": "x"}).status_code,
            script.delete(f"{address}SHARED_KEY/").status_code,
        )
        assert given == changed

    def test_a_removed_member_finds_nothing(self, address: str, project: Project) -> None:
        Membership.objects.filter(project=project, user__username="bob").delete()
        assert script_of("bob").get(address).status_code == 404

    def test_its_reference_has_the_prefix_of_projects(self, address: str) -> None:
        assert script_of("bob").get(address).json()["results"][0]["reference"] == "project/SHARED_KEY"
