"""The pages of secrets, and that no page shows a value."""

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.jobs import secret_use
from portal.jobs.states import JobState
from portal.projects.models import Membership, Project
from portal.projects.services import archive_project
from portal.secrets import keys, services
from portal.secrets.models import Secret
from tests.portal.jobs_world import make_job, make_project, make_user

pytestmark = pytest.mark.django_db

VALUE = "hf_plantedValue93"
OWN = "/accounts/secrets/"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    project = make_project(alice)
    for name, role in (("bob", "member"), ("victor", "viewer")):
        Membership.objects.create(project=project, user=make_user(name), role=role)
    return project


@pytest.fixture
def client(alice: User, client: Client) -> Client:
    client.force_login(alice)
    return client


def browser_of(name: str) -> Client:
    browser = Client()
    browser.force_login(User.objects.filter(username=name).first() or make_user(name))
    return browser


def text(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content[:2000]
    return " ".join(answer.content.decode().split())


def value_of(name: str) -> str | None:
    return keys.unseal(Secret.objects.get(name=name).sealed)


def test_add_replace_and_delete_a_variable(client: Client) -> None:
    assert "No secrets yet" in text(client.get(OWN))
    sent = {"kind": "variable", "name": "HF_TOKEN", "value": VALUE}
    shown = text(client.post(OWN, sent, follow=True))
    assert "HF_TOKEN is stored. Jobs can use it now." in shown and VALUE not in shown
    assert "environment variable" in shown and "never" in shown
    number = Secret.objects.get().pk
    address = f"{OWN}{number}/"
    assert VALUE not in text(client.get(address))
    shown = text(client.post(address, {"value": "abc"}, follow=True))
    assert "The value of HF_TOKEN is replaced" in shown and services.TOO_SHORT_TO_MASK in shown
    assert value_of("HF_TOKEN") == "abc"
    assert "HF_TOKEN is deleted" in text(client.post(f"{OWN}delete/{number}", follow=True))
    assert client.post(f"{OWN}delete/{number}").status_code == 404


def test_add_a_file_by_typing_and_by_upload(client: Client) -> None:
    client.post(OWN, {"kind": "file", "name": "kaggle.json", "value": '{"key":\r\n1}\r\n'})
    assert value_of("kaggle.json") == '{"key":\n1}\n'
    upload = SimpleUploadedFile("id", b"secret\r\n")
    client.post(OWN, {"kind": "file", "name": "id_ed25519", "upload": upload})
    assert value_of("id_ed25519") == "secret\r\n", "an uploaded file stays as it is"
    address = f"{OWN}{Secret.objects.get(name='kaggle.json').pk}/"
    client.post(address, {"upload": SimpleUploadedFile("x", b"newer")})
    assert value_of("kaggle.json") == "newer"


@pytest.mark.parametrize(
    ("upload", "typed", "words"),
    [
        (b"\xff\xfe", "", "not text in UTF-8"),
        (b"x" * (64 * 1024 + 1), "", "at most 64 KiB"),
        (b"", "", "The file is empty"),
        (b"content", "content", "one of both"),
        (None, "", "one of both"),
        (b"ab\0cd", "", "not text"),
    ],
)
def test_files_that_are_refused(client: Client, upload: bytes | None, typed: str, words: str) -> None:
    sent: dict[str, Any] = {"kind": "file", "name": "x.json", "value": typed}
    if upload is not None:
        sent["upload"] = SimpleUploadedFile("x.json", upload)
    assert words in text(client.post(OWN, sent), 400)
    assert not Secret.objects.exists()


@pytest.mark.parametrize("kind", Secret.Kind.values)
def test_a_refused_form_keeps_the_name_and_not_the_value(client: Client, kind: str) -> None:
    shown = text(client.post(OWN, {"kind": kind, "name": "not/a/name", "value": VALUE}), 400)
    assert 'value="not/a/name"' in shown and VALUE not in shown and "Enter again: " in shown
    assert shown.count("needs your attention") == 1, "in the form that was sent"


def test_fields_of_values_are_not_completed_by_browsers_and_not_saved_as_drafts(client: Client) -> None:
    shown = text(client.get(OWN))
    assert 'type="password"' in shown and 'autocomplete="new-password"' in shown and "data-draft" not in shown
    assert (
        "also not after an error" in shown and "maxlength" not in shown.partition('name="value"')[2].partition(">")[0]
    )


def test_another_kind_is_refused(client: Client) -> None:
    assert client.post(OWN, {"kind": "other", "name": "x", "value": VALUE}).status_code == 400


def test_a_list_of_many_takes_no_more_queries(client: Client, alice: User, django_assert_num_queries: Any) -> None:
    services.create(alice, alice, "variable", "A0", VALUE)
    client.get(OWN)
    with django_assert_num_queries(5):
        client.get(OWN)
    for number in range(1, 5):
        services.create(alice, alice, "variable", f"A{number}", VALUE)
    with django_assert_num_queries(5):
        client.get(OWN)


def test_an_unreadable_value_is_stated_where_it_can_be_entered_again(client: Client, alice: User, home: Path) -> None:
    row = services.create(alice, alice, "variable", "HF_TOKEN", VALUE).row
    assert "unreadable" not in text(client.get(OWN))
    (home / keys.KEY_FILE).write_text("another key")
    shown = text(client.get(OWN))
    assert "unreadable" in shown and "Enter it again." in shown
    assert "until you enter it again" in text(client.get(f"{OWN}{row.pk}/"))


def test_a_full_list_offers_no_form(client: Client, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_OF_AN_OWNER", 1)
    services.create(alice, alice, "variable", "HF_TOKEN", VALUE)
    assert "Delete one that no job needs" in text(client.get(OWN))


class TestOfAProject:
    @pytest.fixture
    def address(self, project: Project) -> str:
        return f"/projects/{project.pk}/secrets/"

    @pytest.fixture
    def row(self, alice: User, project: Project) -> Secret:
        return services.create(alice, project, "variable", "SHARED_KEY", VALUE).row

    def test_an_owner_adds_replaces_and_deletes(self, client: Client, project: Project, address: str) -> None:
        assert f'href="{address}"' in text(client.get(f"/projects/{project.pk}/"))
        shown = text(client.post(address, {"kind": "variable", "name": "SHARED_KEY", "value": VALUE}, follow=True))
        assert "SHARED_KEY is stored" in shown and "by alice" in shown
        number = Secret.objects.get().pk
        client.post(f"{address}{number}/", {"value": "another value"})
        assert value_of("SHARED_KEY") == "another value"
        assert "SHARED_KEY is deleted" in text(client.post(f"{address}delete/{number}", follow=True))

    def test_a_member_sees_the_names_and_no_form(self, row: Secret, address: str) -> None:
        shown = text(browser_of("bob").get(address))
        assert "SHARED_KEY" in shown and "Only owners of the project" in shown
        assert "Replace value" not in shown and 'name="value"' not in shown and "data-confirm=" not in shown

    def test_the_empty_list_of_a_member_leads_to_their_own(self, address: str, project: Project) -> None:
        assert f'href="{OWN}"' in text(browser_of("bob").get(address))

    @pytest.mark.parametrize("name", ["victor", "charlie", "former"])
    def test_viewers_strangers_and_former_members_find_nothing(
        self, row: Secret, project: Project, address: str, name: str
    ) -> None:
        if name == "former":
            Membership.objects.create(project=project, user=make_user(name), role="owner").delete()
        browser = browser_of(name)
        for answer in (
            browser.get(address),
            browser.post(address, {"kind": "variable", "name": "X", "value": VALUE}),
            browser.get(f"{address}{row.pk}/"),
            browser.post(f"{address}{row.pk}/", {"value": VALUE}),
            browser.post(f"{address}delete/{row.pk}"),
        ):
            assert answer.status_code == 404 and "SHARED_KEY" not in answer.content.decode()
        if name == "victor":
            assert f'href="{address}"' not in text(browser.get(f"/projects/{project.pk}/"))

    def test_an_archived_project_lets_owners_delete_only(
        self, client: Client, alice: User, project: Project, row: Secret, address: str
    ) -> None:
        archive_project(alice, project)
        shown = text(client.get(address))
        assert "is archived" in shown and "Replace value" not in shown and 'name="value"' not in shown
        refused = client.post(f"{address}{row.pk}/", {"value": "another value"})
        assert "Restore it first" in text(refused, 400) and value_of("SHARED_KEY") == VALUE
        assert "is deleted" in text(client.post(f"{address}delete/{row.pk}", follow=True))

    def test_a_secret_is_not_found_at_the_address_of_another_owner(
        self, client: Client, alice: User, row: Secret, address: str
    ) -> None:
        own = services.create(alice, alice, "variable", "MINE", VALUE).row
        assert client.get(f"{address}{own.pk}/").status_code == 404
        assert client.get(f"{OWN}{row.pk}/").status_code == 404


class TestTheQuestion:
    def test_it_names_the_jobs_that_use_it(self, alice: User) -> None:
        row = services.create(alice, alice, "variable", "HF_TOKEN", VALUE).row
        ask = secret_use.delete_question
        assert ask(row, []) == "Delete “HF_TOKEN”? Jobs that start later cannot get it."
        assert ask(row, [7]).startswith("Delete “HF_TOKEN”? Job 7 uses it.")
        assert "Jobs 7, 8, 9 and 2 more use it." in ask(row, [7, 8, 9, 10, 11])

    def test_the_page_asks_it(self, client: Client, alice: User, project: Project) -> None:
        for owner in (alice, project):
            services.create(alice, owner, "variable", "HF_TOKEN", VALUE)
        mine, ours = (make_job(project, secrets=[name]).pk for name in ("HF_TOKEN", "project/HF_TOKEN"))
        make_job(project, secrets=["HF_TOKEN"], state=JobState.SUCCEEDED, finished_at=timezone.now())
        make_job(project)
        make_job(make_project(alice, "another"), secrets=["project/HF_TOKEN"])
        assert f"Job {mine} uses it." in text(client.get(OWN))
        assert f"Job {ours} uses it." in text(client.get(f"/projects/{project.pk}/secrets/"))
        assert secret_use.unfinished_jobs_of([]) == {}
