"""Environments over REST."""

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.accounts.models import User
from portal.environments import builds, services
from portal.environments.models import Environment
from portal.projects.models import Membership, Project
from tests.portal import environments_world as made
from tests.portal import jobs_world as world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path


@pytest.fixture
def alice() -> User:
    return world.make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    made.make_base()
    return world.make_project(alice)


def create(user: User, project: Project | None, **fields: Any) -> Any:
    sent = {"project": project.pk if project else None, "base": "pytorch", "packages": ["rich"]}
    return Script(user).send("post", "environments/", {**sent, **fields})


def test_a_script_makes_one_builds_it_and_removes_it(alice: User, project: Project) -> None:
    answer = create(alice, project, packages=["rich", "pandas >= 2"], title="Tools")
    assert answer.status_code == 201
    body = answer.json()
    assert (body["title"], body["project"], body["base"], body["state"]) == (
        "Tools",
        project.pk,
        "pytorch",
        "requested",
    )
    assert (body["lines"], body["packages"], body["locks"]) == (
        ["rich", "pandas>=2"],
        ["torch", "numpy", "rich", "pandas"],
        [],
    )
    address = f"environments/{body['key']}/"
    node = world.make_node("alpha")
    lock = made.build(node, Environment.objects.get(key=body["key"]))
    body = Script(alice).get(address).json()
    assert (body["state"], body["ready_on"], body["size_bytes"]) == ("ready", ["alpha"], 5_000_000)
    assert [(each["digest"], each["kind"]) for each in body["locks"]] == [(lock.digest, made.KIND)]
    text = Script(alice).get(f"{address}locks/{lock.digest}/")
    assert b"".join(text.streaming_content).decode() == made.LOCK  # type: ignore[attr-defined]
    assert Script(alice).send("post", f"{address}build/").json()["state"] == "ready"
    assert Script(alice).send("delete", address).status_code == 204
    assert Script(alice).get(address).json()["state"] == "removed"
    listed = [each["key"] for each in Script(alice).get("environments/?page_size=200").json()["results"]]
    assert body["key"] not in listed
    assert "pytorch" in listed


def test_old_fields_stay(alice: User, project: Project) -> None:
    body = Script(alice).get("environments/pytorch/").json()
    assert {"key", "title", "description", "packages", "ready_on"} <= set(body)
    assert (body["project"], body["base"], body["created_by"], body["lines"]) == (None, None, None, [])


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"nonsense": 1}, {"nonsense"}),
        ({"packages": ["rich", "-e .", "git+https://x.org/a"]}, {"packages.1", "packages.2"}),
        ({"packages": "rich\n-r other.txt"}, {"packages"}),
        ({"packages": []}, {"packages"}),
        ({"packages": "  \n"}, {"packages"}),
        ({"packages": [5]}, {"packages"}),
        ({"packages": {"a": 1}}, {"packages"}),
        ({"packages": ["p"] * 501}, {"packages"}),
        ({"packages": ["p" * 20_001]}, {"packages"}),
        ({"base": "nothing"}, {"base"}),
        ({"base": 5}, {"base"}),
        ({"project": 10**9}, {"project"}),
        ({"python": "3.12"}, {"python"}),
        ({"python": "2.7", "base": None}, {"python"}),
        ({"title": "x" * 121}, {"title"}),
        ({"title": 2.5}, {"title"}),
        ({"title": True}, {"title"}),
        ({"project": 2.5}, {"project"}),
        ({"project": True}, {"project"}),
        ({"project": [1]}, {"project"}),
        ({"horovod": "perhaps"}, {"horovod"}),
        ({"horovod": True, "base": None, "packages": ["tensorflow"]}, {"horovod"}),
    ],
)
def test_what_is_wrong_is_named(alice: User, project: Project, fields: dict[str, Any], errors: set[str]) -> None:
    sent = {"project": project.pk, "base": "pytorch", "packages": ["rich"], **fields}
    answer = Script(alice).send("post", "environments/", sent)
    assert answer.status_code == 400
    assert set(answer.json()["error"]["fields"]) == errors
    assert not Environment.objects.filter(project=project).exists()


@pytest.mark.parametrize(
    ("address", "sent", "field"),
    [
        ("images/", {"project": None, "image": 5}, "image"),
        ("images/", {"project": None, "image": "ghcr.io/lab/train", "title": 1}, "title"),
        ("images/", {"project": 1.0, "image": "ghcr.io/lab/train"}, "project"),
        ("registries/", {"host": 5}, "host"),
        ("registries/", {"host": "ghcr.io", "user": 7, "token": "t"}, "user"),
        ("registries/", {"host": "ghcr.io", "user": "lab", "token": 123456}, "token"),
        ("allowed-hosts/", {"host": 1.5}, "host"),
        ("allowed-hosts/", {"host": "huggingface.co", "note": 3}, "note"),
        ("allowed-hosts/", {"host": "huggingface.co", "project": 2.5}, "project"),
    ],
)
def test_values_of_another_type_are_not_converted(address: str, sent: dict[str, Any], field: str) -> None:
    answer = Script(world.make_user("ada", is_staff=True)).send("post", address, sent)
    assert answer.status_code == 400
    assert set(answer.json()["error"]["fields"]) == {field}


def test_an_id_may_be_sent_as_a_text(alice: User, project: Project) -> None:
    sent = {"project": str(project.pk), "base": "pytorch", "packages": ["rich"]}
    assert Script(alice).send("post", "environments/", sent).status_code == 201


def test_lines_of_a_text_are_named_by_their_numbers(alice: User, project: Project) -> None:
    answer = create(alice, project, packages="rich\n\n-e .\n--index-url https://evil.example/")
    messages = answer.json()["error"]["fields"]["packages"]
    assert [message.split(":")[0] for message in messages] == ["Line 3", "Line 4"]


def test_fields_that_are_missing_are_named(alice: User, project: Project) -> None:
    answer = Script(alice).send("post", "environments/", {})
    assert set(answer.json()["error"]["fields"]) == {"project", "base", "packages"}


def test_allowed_sources_are_accepted(alice: User, project: Project) -> None:
    line = "mine @ https://example.org/whl/mine-1-py3-none-any.whl"
    assert create(alice, project, packages=[line]).status_code == 400
    services.set_package_settings(
        world.make_user("ada", is_staff=True), ["https://example.org/whl/"], source_builds=False
    )
    assert create(alice, project, packages=[line]).status_code == 201


def test_a_full_environment_has_no_base(alice: User, project: Project) -> None:
    body = create(alice, project, base=None, python="3.12", horovod=True, packages=["torch", "rich"]).json()
    assert (body["base"], body["python"], body["horovod"], body["packages"]) == (
        None,
        "3.12",
        True,
        ["horovod", "torch", "rich"],
    )


def test_strangers_find_nothing_and_members_change_nothing(alice: User, project: Project) -> None:
    bob, charlie = world.make_user("bob"), world.make_user("charlie")
    Membership.objects.create(project=project, user=bob, role=Membership.Role.MEMBER)
    row = made.make_environment(alice, project)
    build = made.start(world.make_node(), row)
    address = f"environments/{row.key}/"
    for path in ("", "builds/", f"builds/{build.pk}/", f"builds/{build.pk}/log/"):
        assert Script(charlie).get(f"{address}{path}").status_code == 404, path
        assert Script(bob).get(f"{address}{path}").status_code == 200, path
    assert row.key not in {each["key"] for each in Script(charlie).get("environments/").json()["results"]}
    for user, status in ((charlie, 404), (bob, 403)):
        assert Script(user).send("post", f"{address}builds/{build.pk}/cancel/").status_code == status
        assert Script(user).send("delete", address).status_code == status
    assert create(charlie, project).status_code == 400
    assert create(bob, None).status_code == 403
    world.make_job(project, environment=row)
    assert Script(alice).send("delete", address).status_code == 409


def test_builds_and_their_logs(alice: User, project: Project) -> None:
    row, node = made.make_environment(alice, project), world.make_node("alpha")
    first = made.start(node, row)
    builds.record_progress(first, 10, "", 0, "Grüße\n".encode())
    address = f"environments/{row.key}/builds/"
    log = Script(alice).get(f"{address}{first.pk}/log/").json()
    assert log == {"text": "Grüße\n", "end": 8, "finished": False}
    assert Script(alice).get(f"{address}{first.pk}/log/?offset=8").json() == {"text": "", "end": 8, "finished": False}
    body = Script(alice).send("post", f"{address}{first.pk}/cancel/").json()
    assert (body["state"], body["message"]) == (
        "cancelled", "alice cancelled the build. Choose Build again on the page of the environment.",
    )  # fmt: skip
    assert Script(alice).get(f"{address}{first.pk}/log/").json()["finished"]
    assert Script(alice).send("post", f"{address}{first.pk}/cancel/").status_code == 409
    for bad in ("-1", "x", "9" * 13):
        assert Script(alice).get(f"{address}{first.pk}/log/?offset={bad}").status_code == 400
    assert Script(alice).get(f"{address}{first.pk}/log/?other=1").status_code == 400
    services.build_again(alice, row)
    row.refresh_from_db()
    lock = made.build(node, row)
    listed = Script(alice).get(address).json()["results"]
    assert [(each["node"], each["state"], each["lock"]) for each in listed] == [
        ("alpha", "done", lock.digest), ("alpha", "cancelled", None),
    ]  # fmt: skip


def test_the_number_of_queries_of_the_list_does_not_grow(alice: User, project: Project) -> None:
    script, node = Script(alice), world.make_node()

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert script.get("environments/?page_size=200").status_code == 200
        return len(seen)

    made.build(node, made.make_environment(alice, project))
    queries()  # stores when the token was last used
    few = queries()
    for number in range(4):
        made.build(node, made.make_environment(alice, project, [f"p{number}"]))
    assert queries() == few
