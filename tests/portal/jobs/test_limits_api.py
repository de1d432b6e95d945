"""Limits over REST: who sees which, who sets them, and their effect."""

from typing import Any

import pytest
from django.contrib.auth.models import Group

from portal.accounts.limits import limits_for, set_limit
from portal.accounts.models import ApiToken, AuditEntry, Limit, User
from tests.portal import jobs_world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture
def people() -> dict[str, User]:
    found = {name: jobs_world.make_user(name) for name in ("alice", "bob")}
    found["ada"] = jobs_world.make_user("ada", is_staff=True)
    Group.objects.create(name="vision/3D").user_set.add(found["alice"])
    return found


def answer(user: User, path: str) -> Any:
    response = Script(user).get(path)
    assert response.status_code == 200, response.content
    return response.json()


def test_an_admin_sets_a_persons_limit_and_the_audit_names_it(people: dict[str, User]) -> None:
    done = Script(people["ada"]).send("put", "limits/users/bob/", {"max_gpus": 2, "premium": True})
    assert done.status_code == 200
    expected = {"kind": "user", "name": "bob", "max_gpus": 2, "max_queued": None, "soft": False, "weight": 1.0}
    expected["max_space_gib"] = None
    assert done.json() == {**expected, "premium": True, "gpus": 0, "waiting": 0}
    assert [(limit.name, limit.max_gpus) for limit in limits_for(people["bob"])] == [("bob", 2)]
    (entry,) = AuditEntry.objects.filter(action="limit.set")
    assert (entry.actor, entry.target) == (people["ada"], "user bob")


def test_a_put_replaces_the_whole_limit_and_an_empty_one_removes_it(people: dict[str, User]) -> None:
    script = Script(people["ada"])
    script.send("put", "limits/users/bob/", {"max_gpus": 2, "max_queued": 9})
    assert script.send("put", "limits/users/bob/", {"max_queued": 3}).json()["max_gpus"] is None
    assert Limit.objects.get().max_queued == 3
    assert script.send("put", "limits/users/bob/", {}).status_code == 200
    assert not Limit.objects.exists()
    assert answer(people["ada"], "limits/users/bob/")["max_gpus"] is None


def test_a_limit_is_shown_beside_what_its_people_hold(people: dict[str, User]) -> None:
    node = jobs_world.make_node("alpha", gpus=3)
    job = jobs_world.make_job(jobs_world.make_project(people["alice"]), submitted_by=people["alice"])
    jobs_world.place(job, list(node.gpus.all()[:2]))
    jobs_world.make_job(jobs_world.make_project(people["alice"]), submitted_by=people["alice"])
    Script(people["ada"]).send("put", "limits/groups/vision/3D/", {"max_gpus": 4})
    found = answer(people["ada"], "limits/groups/vision/3D/")
    assert (found["kind"], found["name"], found["gpus"], found["waiting"]) == ("group", "vision/3D", 2, 1)


def test_members_read_the_limits_that_apply_to_them_and_no_others(people: dict[str, User]) -> None:
    set_limit(people["ada"], people["bob"], max_gpus=1, max_queued=None)
    set_limit(people["ada"], people["alice"], max_gpus=2, max_queued=None)
    set_limit(people["ada"], Group.objects.get(), max_gpus=3, max_queued=None)
    names = {user: [row["name"] for row in answer(people[user], "limits/")["results"]] for user in people}
    assert names == {"ada": ["vision/3D", "alice", "bob"], "alice": ["vision/3D", "alice"], "bob": ["bob"]}
    assert answer(people["alice"], "limits/groups/vision/3D/")["max_gpus"] == 3
    assert answer(people["alice"], "limits/users/alice/")["max_gpus"] == 2
    for path in ("limits/users/bob/", "limits/users/unknown/"):
        assert Script(people["alice"]).get(path).status_code == 404
    assert Script(people["bob"]).get("limits/groups/vision/3D/").status_code == 404


def test_members_and_read_only_tokens_set_nothing(people: dict[str, User]) -> None:
    assert Script(people["bob"]).send("put", "limits/users/bob/", {"max_gpus": 99}).status_code == 404
    read = Script(people["ada"], scope=ApiToken.Scope.READ)
    assert read.send("put", "limits/users/bob/", {"max_gpus": 99}).status_code == 403
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"), [("max_gpus", -1), ("max_gpus", 100_001), ("weight", 0), ("weight", "x"), ("soft", "perhaps")]
)
def test_nonsense_is_refused_by_field(people: dict[str, User], field: str, value: Any) -> None:
    refused = Script(people["ada"]).send("put", "limits/users/bob/", {field: value})
    assert refused.status_code == 400 and list(refused.json()["error"]["fields"]) == [field]
    assert not Limit.objects.exists()


def test_the_list_takes_as_many_queries_for_one_limit_as_for_many(
    people: dict[str, User], django_assert_max_num_queries: Any
) -> None:
    script = Script(people["ada"])
    for number in range(30):
        set_limit(people["ada"], jobs_world.make_user(f"student{number}"), max_gpus=1, max_queued=None)
    with django_assert_max_num_queries(12):
        assert script.get("limits/").json()["count"] == 30
