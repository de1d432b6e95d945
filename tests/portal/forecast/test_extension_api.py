"""More time over REST."""

from typing import Any

import pytest

from portal.accounts.models import LabSettings
from portal.jobs.models import Job, TimeExtension
from portal.jobs.time_extensions.services import HOUR
from tests.laws.people import World, make_world
from tests.portal.api_client import Script

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def world() -> World:
    return make_world()


def send(world: World, role: str, path: str, **data: Any) -> Any:
    return Script(world.users[role]).send("post", path, data)


def requests_of(world: World) -> str:
    return f"jobs/{world.running.pk}/time-extensions/"


def test_a_script_asks_lists_and_withdraws(world: World) -> None:
    answer = send(world, "alice", requests_of(world), seconds=2 * HOUR, reason="paper")
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["status"], made["asked_by"], made["seconds"], made["reason"], made["is_open"], made["by_rule"]) == (
        "asked", "alice", 2 * HOUR, "paper", True, False,
    )  # fmt: skip
    assert made["delays_at"] and isinstance(made["delays"], list)
    assert Script(world.victor).get(requests_of(world)).json()["results"] == [made]
    gone = send(world, "alice", f"{requests_of(world)}{made['id']}/withdraw/").json()
    assert gone["status"] == "withdrawn" and not gone["is_open"]


def test_the_rule_grants_at_once(world: World) -> None:
    LabSettings.objects.create(pk=1, hours_granted_by_rule=2)
    compared = send(world, "alice", f"{requests_of(world)}compare/", seconds=HOUR).json()
    assert compared["granted_by_rule"] and compared["max_seconds"] == 30 * 24 * HOUR - HOUR
    made = send(world, "alice", requests_of(world), seconds=HOUR).json()
    assert (made["status"], made["by_rule"], made["decided_by"]) == ("granted", True, None)
    assert Job.objects.get(pk=world.running.pk).time_limit_seconds == 2 * HOUR


def test_a_comparison_stores_nothing_and_hides_what_the_reader_may_not_see(world: World) -> None:
    answer = send(world, "alice", f"{requests_of(world)}compare/", seconds=HOUR)
    assert answer.status_code == 200 and not TimeExtension.objects.exists()
    assert answer.json()["seconds"] == HOUR and not answer.json()["granted_by_rule"]


def test_admins_list_grant_and_refuse(world: World) -> None:
    first = send(world, "alice", requests_of(world), seconds=HOUR).json()["id"]
    [row] = Script(world.ada).get("time-extensions/?status=asked").json()["results"]
    assert row["id"] == first and row["job"] == world.running.pk
    refused = send(world, "ada", f"time-extensions/{first}/refuse/", answer="Later").json()
    assert (refused["status"], refused["answer"], refused["decided_by"]) == ("refused", "Later", "ada")
    assert send(world, "ada", f"time-extensions/{first}/grant/").status_code == 409
    second = send(world, "alice", requests_of(world), seconds=HOUR).json()["id"]
    for _ in range(2):
        assert send(world, "ada", f"time-extensions/{second}/grant/").json()["status"] == "granted"
    assert Job.objects.get(pk=world.running.pk).time_limit_seconds == 2 * HOUR
    assert Script(world.ada).get("time-extensions/?status=odd").status_code == 400


def test_who_may_do_what(world: World) -> None:
    for role, status in (("charlie", 404), ("victor", 403), ("bob", 403)):
        for path in (requests_of(world), f"{requests_of(world)}compare/"):
            assert send(world, role, path, seconds=HOUR).status_code == status
    made = send(world, "alice", requests_of(world), seconds=HOUR).json()["id"]
    for role, status in (("charlie", 404), ("victor", 403), ("bob", 403)):
        assert send(world, role, f"{requests_of(world)}{made}/withdraw/").status_code == status
    for role in ("charlie", "victor", "bob", "alice"):
        assert Script(world.users[role]).get("time-extensions/").status_code == 404
        for act in ("grant", "refuse"):
            assert send(world, role, f"time-extensions/{made}/{act}/").status_code == 404


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "seconds"),
        ({"seconds": 59}, "seconds"),
        ({"seconds": HOUR, "reason": 7}, "reason"),
        ({"seconds": HOUR, "hours": 1}, "hours"),
    ],
)
def test_what_is_not_understood_is_refused(world: World, data: dict[str, Any], field: str) -> None:
    answer = send(world, "alice", requests_of(world), **data)
    assert answer.status_code == 400 and field in answer.json()["error"]["fields"]
