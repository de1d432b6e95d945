"""Saved views of lists: private to their user, limited, and honest about filters that no longer mean anything."""

from typing import Any

import pytest
from django.test import Client

from portal.accounts.list_views import MAX_VIEWS
from portal.accounts.models import SavedView, User
from tests.portal.jobs_world import make_job, make_project, make_user
from tests.portal.pages import compact

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return make_user("alice")


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def save(client: Client, name: str, query: str = "state=failed", key: str = "jobs") -> str:
    data = {"name": name, "query": query, "next": "/jobs/"}
    return str(client.post(f"/lists/{key}/views", data, follow=True).content.decode())


def test_what_is_shown_is_saved_and_opened_again(alice: User) -> None:
    client = client_of(alice)
    project = make_project(alice)
    make_job(project, name="kept")
    make_job(project, name="other", tier="basic")
    response = client.get("/jobs/?q=kept&state=queued&state=held&sort=-gpus&columns=name,limit&utm=1&page=1")
    query = response.context["table"].view_query
    assert query == "q=kept&state=queued&state=held&sort=-gpus&columns=name,limit"
    assert "The view “My kept ones” was saved." in save(client, "  My  kept ones ", query)
    page = compact(client.get(f"/jobs/?{query}").content.decode())
    assert ' aria-current="page">My kept ones</a>' in page
    opened = client.get(f"/jobs/?{SavedView.objects.get().query}")
    assert [job.name for job in opened.context["page"]] == ["kept"]
    assert [column.key for column in opened.context["table"].columns] == ["name", "limit"]


def test_a_view_of_the_same_name_is_replaced(alice: User) -> None:
    client = client_of(alice)
    save(client, "Mine", "state=failed")
    assert "The view “Mine” was replaced." in save(client, "Mine", "state=held")
    assert list(SavedView.objects.values_list("query", flat=True)) == ["state=held"]


def test_views_are_private(alice: User) -> None:
    save(client_of(alice), "Hers")
    view = SavedView.objects.get()
    for other in (make_user("bob"), make_user("admin", is_staff=True)):
        client = client_of(other)
        assert "Hers" not in client.get("/jobs/").content.decode()
        assert client.post(f"/lists/views/{view.pk}", {"do": "delete"}).status_code == 404
        assert save(client, "Hers").count("was saved") == 1, "the same name of another user"


def test_a_view_is_renamed_and_deleted(alice: User) -> None:
    client = client_of(alice)
    save(client, "One")
    save(client, "Two")
    one = SavedView.objects.get(name="One")

    def change(**data: Any) -> str:
        answer = client.post(f"/lists/views/{one.pk}", {"next": "/jobs/", **data}, follow=True)
        return str(answer.content.decode())

    assert "You have a view “Two” already" in change(do="rename", name="Two")
    assert "Type a name" in change(do="rename", name="  ")
    assert "A view can be renamed or deleted." in change(do="explode")
    change(do="rename", name="First")
    assert set(SavedView.objects.values_list("name", flat=True)) == {"First", "Two"}
    assert "The view “First” was deleted." in change(do="delete")
    assert list(SavedView.objects.values_list("name", flat=True)) == ["Two"]


@pytest.mark.parametrize(
    ("name", "query", "problem"),
    [
        ("", "", "Type a name for the view."),
        ("x" * 41, "", "at most 40 characters"),
        ("a\u200bb", "", "no invisible characters"),
        ("a\0b", "", "no invisible characters"),
        ("x", "q=" + "y" * 2000, "too long to be saved"),
        ("x", "password=1", "no filter “password”"),
        ("x", "page=3", "no filter “page”"),
        ("x", "q=%00", "characters that cannot be stored"),
        ("x", "&".join("z=" for _ in range(600)), "no filter “z”"),
    ],
)
def test_what_cannot_be_saved_is_explained(alice: User, name: str, query: str, problem: str) -> None:
    assert problem in save(client_of(alice), name, query)
    assert not SavedView.objects.exists()


def test_the_number_of_views_is_limited(alice: User) -> None:
    client = client_of(alice)
    SavedView.objects.bulk_create(
        SavedView(user=alice, list="jobs", name=f"v{number}", query="") for number in range(MAX_VIEWS)
    )
    assert f"You have {MAX_VIEWS} views of this list already" in save(client, "one more")
    assert "was replaced" in save(client, "v3")


def test_a_view_whose_filter_means_nothing_any_more_is_reported(alice: User) -> None:
    SavedView.objects.create(user=alice, list="jobs", name="Old", query="state=gone&project=77&sort=colour&columns=x")
    client = client_of(alice)
    page = client.get(f"/jobs/?{SavedView.objects.get().query}")
    text = " ".join(page.context["table"].problems)
    assert page.status_code == 200
    for part in ("no state “gone”", "no project 77", "sorted by “colour”", "no column “x”"):
        assert part in text


def test_names_and_filters_of_views_are_shown_as_text(alice: User) -> None:
    SavedView.objects.create(user=alice, list="jobs", name="<script>x</script>", query='q="><script>y</script>')
    page = client_of(alice).get("/jobs/").content.decode()
    assert "<script>x" not in page and "<script>y" not in page and "&lt;script&gt;x" in page
