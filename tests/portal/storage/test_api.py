"""Datasets over REST: who sees and changes what, and what is in a version."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.accounts.models import User
from portal.projects.models import Membership
from portal.storage import services
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.api_client import Script
from tests.portal.jobs_world import make_user
from tests.portal.storage_world import make_dataset, shared_dataset, uploaded

pytestmark = pytest.mark.django_db


def error_of(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    return found


def test_a_dataset_is_made_edited_archived_and_restored(alice: User) -> None:
    client = Script(alice)
    made = client.send("post", "datasets/", {"name": "mnist-28.v2", "title": " Digits ", "description": "# *Digits*"})
    assert made.status_code == 201 and made.json()["title"] == "Digits" and made.json()["visibility"] == "owner"
    address = f"datasets/{made.json()['id']}/"
    edited = client.send("patch", address, {"licence": "CC0", "visibility": "lab"}).json()
    assert (edited["licence"], edited["visibility"], edited["title"]) == ("CC0", "lab", "Digits")
    assert client.delete(address).status_code == 204 and client.get(address).json()["archived"]
    refused = client.send("post", f"{address}versions/", {})
    assert refused.status_code == 409 and "Restore it first" in error_of(refused)["message"]
    assert client.send("post", f"{address}restore/").json()["archived"] is False


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "MNIST"}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "-x"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "mnist"}, "name"),
        ({"title": "a\u202eb"}, "title"),
        ({"licence": "x" * 101}, "licence"),
        ({"description": "x" * 20_001}, "description"),
        ({"visibility": "project"}, "project"),
        ({"visibility": "all"}, "visibility"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(alice: User, values: dict[str, Any], field: str) -> None:
    make_dataset(alice)
    response = Script(alice).send("post", "datasets/", {"name": "other", **values})
    assert response.status_code == 400 and set(error_of(response)["fields"]) == {field}


def test_two_people_may_use_one_name(alice: User) -> None:
    make_dataset(alice)
    assert make_dataset(make_user("bob")).name == "mnist"


def test_a_project_is_one_where_the_user_may_write(alice: User) -> None:
    dataset = shared_dataset(alice, victor="viewer")
    assert dataset.project is not None
    victor = Script(User.objects.get(username="victor"))
    sent = {"name": "mine", "project": dataset.project.pk}
    assert victor.send("post", "datasets/", sent).status_code == 403
    assert Script(make_user("charlie")).send("post", "datasets/", sent).status_code == 404


def seen_by(user: User) -> set[str]:
    return {row["name"] for row in Script(user).get("datasets/").json()["results"]}


def test_a_list_has_what_its_reader_may_see(alice: User) -> None:
    shared = shared_dataset(alice, bob="member", victor="viewer")
    make_dataset(alice, "lab", visibility="lab")
    make_dataset(alice, "own", project=shared.project)
    bob, victor = User.objects.get(username="bob"), User.objects.get(username="victor")
    everything = {"mnist", "lab", "own"}
    assert seen_by(alice) == seen_by(make_user("ada", is_staff=True)) == everything
    assert seen_by(bob) == seen_by(victor) == {"mnist", "lab"}
    assert seen_by(make_user("charlie")) == {"lab"}
    Membership.objects.filter(user=bob).delete()
    assert seen_by(bob) == {"lab"}
    alice.is_active = False
    assert not Dataset.objects.visible_to(alice).exists()


def test_a_list_is_filtered_and_takes_as_many_queries_for_many(alice: User) -> None:
    client = Script(alice)
    uploaded(alice, make_dataset(alice, title="Handwritten"), {"a": b"12345"})
    client.get("datasets/")  # the first use of a token is noted
    with CaptureQueriesContext(connection) as few:
        rows = client.get("datasets/").json()["results"]
    assert (rows[0]["version"], rows[0]["size"], rows[0]["files"]) == (1, 5, 1)
    for number in range(8):
        make_dataset(alice, f"other{number}")
    with CaptureQueriesContext(connection) as many:
        assert len(client.get("datasets/").json()["results"]) == 9
    assert len(many) == len(few)
    for query, count in {
        "name=mnist": 1,
        "contains=HANDwr": 1,
        "owner=alice": 9,
        "owner=bob": 0,
        "archived=true": 0,
    }.items():
        assert client.get(f"datasets/?{query}").json()["count"] == count, query


def test_versions_that_are_not_ready_are_seen_by_who_makes_them(alice: User) -> None:
    dataset = shared_dataset(alice, bob="member", carol="member")
    bob, carol = User.objects.get(username="bob"), User.objects.get(username="carol")
    uploaded(alice, dataset, {"a": b"1"})
    address = f"datasets/{dataset.pk}/versions/"
    made = Script(bob).send("post", address, {"note": "more"})
    assert made.status_code == 201 and (made.json()["number"], made.json()["state"]) == (2, "uploading")
    for user, numbers in ((bob, [2, 1]), (alice, [2, 1]), (carol, [1])):
        assert [row["number"] for row in Script(user).get(address).json()["results"]] == numbers
    assert Script(carol).send("post", f"{address}2/finish/").status_code == 404
    empty = Script(bob).send("post", f"{address}2/finish/")
    assert empty.status_code == 409 and "at least one file" in error_of(empty)["message"]
    assert Script(bob).delete(f"{address}2/").status_code == 204
    ready = Script(bob).delete(f"{address}1/")
    assert ready.status_code == 403
    assert Script(alice).delete(f"{address}1/").status_code == 409


def test_unfinished_versions_are_limited(alice: User, dataset: Dataset) -> None:
    for _ in range(services.MAX_OPEN_VERSIONS):
        services.begin_version(alice, dataset)
    assert Script(alice).send("post", f"datasets/{dataset.pk}/versions/").status_code == 429


def test_an_incomplete_upload_keeps_a_version_open(alice: User, sender: Any) -> None:
    sender.create("a", 10)
    response = sender.client.send("post", f"datasets/{sender.version.dataset_id}/versions/1/finish/")
    assert response.status_code == 409 and "“a” is not complete" in error_of(response)["message"]


def test_the_files_of_a_version_are_listed_and_downloaded(alice: User, dataset: Dataset) -> None:
    files = {"data/train/1.csv": b"one", "data/2 é.csv": b"two", "README.md": b"# Hi"}
    uploaded(alice, dataset, files)
    client, address = Script(alice), f"datasets/{dataset.pk}/versions/1/"
    top = client.get(f"{address}files/").json()
    assert [(item["name"], item["is_folder"], item["size"]) for item in top["items"]] == [
        ("README.md", False, 4),
        ("data", True, None),
    ]
    inner = client.get(f"{address}files/?folder=data").json()
    assert [item["name"] for item in inner["items"]] == ["2 é.csv", "train"] and inner["after"] == ""
    for path, data in files.items():
        response = client.get(f"{address}files/{path}")
        assert response.getvalue() == data
        assert (
            response["Content-Disposition"].startswith("attachment") and response["X-Content-Type-Options"] == "nosniff"
        )
    assert client.get(f"{address}files/data").status_code == 404
    assert client.get(f"{address}files/?folder=%00").status_code == 400
    manifest = client.get(f"{address}manifest/").getvalue().decode()
    assert [line.split(" ", 3)[3] for line in manifest.splitlines()] == sorted(files)


def test_a_version_that_is_not_ready_has_no_files(alice: User, dataset: Dataset) -> None:
    services.begin_version(alice, dataset)
    for what in ("files/", "files/a", "manifest/"):
        assert Script(alice).get(f"datasets/{dataset.pk}/versions/1/{what}").status_code == 404


def test_what_the_store_has_lost_is_not_found(alice: User, dataset: Dataset) -> None:
    uploaded(alice, dataset, {"a": b"1"})
    DatasetVersion.objects.update(sha256="0" * 64)
    for what in ("files/", "files/a", "manifest/"):
        assert Script(alice).get(f"datasets/{dataset.pk}/versions/1/{what}").status_code == 404
