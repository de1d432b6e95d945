"""Tags of jobs: words that lists are filtered by."""

from typing import Any

import pytest
from django.test import Client

from portal.accounts.models import User
from portal.jobs.models import Job
from tests.portal.jobs_world import make_code, make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def client(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


@pytest.fixture
def project(alice: User) -> int:
    project = make_project(alice)
    make_code(project)
    return project.pk


def submit(client: Client, project: int, *tags: str, name: str = "job", status: int = 201) -> Any:
    body = {"project": project, "entry": "train.py", "launcher": "torchrun", "name": name, "tags": list(tags)}
    answer = client.post("/api/v1/jobs/", body, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


def found(client: Client, query: str) -> list[str]:
    return sorted(job["name"] for job in client.get(f"/api/v1/jobs/?{query}").json()["results"])


def test_tags_are_in_lower_case_and_each_is_kept_once(client: Client, project: int) -> None:
    job = submit(client, project, "Vision", "lr-0.1", "vision", "Größe")
    assert job["tags"] == ["vision", "lr-0.1", "größe"]
    assert Job.objects.get().tags == ("vision", "lr-0.1", "größe")
    assert client.get("/api/v1/jobs/").json()["results"][0]["tags"] == job["tags"]


def test_lists_are_filtered_by_whole_tags(client: Client, project: int) -> None:
    submit(client, project, "vision", "a_b", name="one")
    submit(client, project, "vision", "axb", name="two")
    submit(client, project, name="three")
    assert found(client, "tags=VISION") == ["one", "two"]
    assert found(client, "tags=vision,a_b") == ["one"]
    assert found(client, "tags=vis") == found(client, "tags=%25") == found(client, "tags=sion") == []
    assert found(client, f"tags={','.join(f't{n}' for n in range(2_000))}") == []
    page = client.get("/jobs/?tags=a_b").content.decode()
    assert ">one</a>" in page and ">two</a>" not in page and 'href="/jobs/?tags=vision"' in page


@pytest.mark.parametrize("tags", [("two words",), ("",), ("a" * 41,), tuple(f"t{n}" for n in range(21)), ("<b>",)])
def test_unfit_tags_are_refused(client: Client, project: int, tags: tuple[str, ...]) -> None:
    assert "tags" in str(submit(client, project, *tags, status=400))
    assert not Job.objects.exists()
