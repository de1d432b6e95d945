"""Everybody visits every address there is, and sees what is theirs and nothing else.

The routes come from the URL map: a new one without a row in ``tour_table`` fails here.
"""

import re
from typing import Any

import pytest
from django.test import Client

from tests.laws.people import CANARY, ROLES, SECRET, World
from tests.laws.tour import client_of, go, rows, text_of, undone
from tests.laws.tour_table import TABLE
from tests.laws.urlmap import Route, routes

pytestmark = pytest.mark.django_db

ROUTES = routes()

OBJECTS = (
    "project",
    "job",
    "held",
    "running",
    "failed",
    "code",
    "token_row",
    "bob_member",
    "group",
    "bob",
    "node",
    "invite_row",
)
"""Names of the table that stand for rows by number."""


def test_every_route_has_its_rows_and_no_row_is_left_over() -> None:
    known = {route.address for route in ROUTES}
    assert known - set(TABLE) == set(), "new routes: add what everybody gets there to tour_table.py"
    assert set(TABLE) - known == set(), "routes that are gone: take them out of tour_table.py"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.actions], ids=lambda route: route.address)
def test_every_method_of_the_api_is_visited(route: Route) -> None:
    assert {visit.method.lower() for visit in TABLE[route.address]} == set(route.actions)


@pytest.mark.parametrize("address", sorted(TABLE))
def test_everybody_gets_what_is_theirs(address: str, world: World, known: dict[str, Any]) -> None:
    for visit in TABLE[address]:
        for role, expected in visit.by_role.items():
            with undone():
                client = client_of(world, role)
                before = rows()
                response = go(client, visit, known)
                what = f"{visit.method} {visit.address} as {role}"
                assert response.status_code == int(expected.rstrip("-")), (
                    f"{what}: {response.content[:300]!r}" if not response.streaming else what
                )
                text = text_of(response)
                if role in ("anonymous", "charlie"):
                    assert CANARY not in text, f"{what} shows something of Alice's"
                if role in ("anonymous", "charlie", "victor"):
                    assert SECRET not in text, f"{what} shows an environment variable"
                if expected.endswith("-") or response.status_code >= 400 or role == "anonymous":
                    assert rows() == before, f"{what} changed something"
                if role == "anonymous" and response.status_code == 302 and "sign-out" not in address:
                    assert response["Location"].startswith(("/accounts/sign-in/?next=", "/accounts/password/reset/")), (
                        what
                    )


OF_THE_MOMENT = r'csrfmiddlewaretoken" value="[^"]*"|nonce[-=]"?[\w+/=-]+|Set-Cookie.*|Expires: .*'
"""What no two answers have in common."""


@pytest.mark.parametrize("address", sorted(TABLE))
def test_what_one_may_not_see_looks_like_what_is_not_there(address: str, world: World, known: dict[str, Any]) -> None:
    """Charlie cannot tell Alice's project 7 from a project that never was."""
    nowhere = known | dict.fromkeys((*OBJECTS, "stream"), 987_654_321)
    for visit in TABLE[address]:
        if visit.by_role["charlie"] != "404":
            continue
        answers = []
        for places in (known, nowhere):
            with undone():
                response = go(client_of(world, "charlie"), visit, places)
                answers.append((response.status_code, re.sub(OF_THE_MOMENT, "", text_of(response))))
        assert answers[0] == answers[1], f"{visit.method} {visit.address} tells Charlie that it exists"


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


@pytest.mark.parametrize("address", sorted(TABLE))
def test_no_method_breaks_a_route_or_lets_a_stranger_in(address: str, world: World, known: dict[str, Any]) -> None:
    place = TABLE[address][0].address.format(**known)
    for role in ("anonymous", "charlie", "ada"):
        for method in METHODS:
            for body in (b"", b"\xff\x00{nonsense"):
                with undone():
                    client = client_of(world, role)
                    response = client.generic(method, place, body, content_type="application/json")
                    what = f"{method} {place} as {role}"
                    assert response.status_code < 500, what
                    if role != "ada":
                        assert CANARY not in text_of(response), what


@pytest.mark.parametrize("address", sorted(TABLE))
def test_nothing_is_changed_by_a_session_without_its_csrf_token(
    address: str, world: World, known: dict[str, Any]
) -> None:
    for visit in TABLE[address]:
        if visit.method == "GET":
            continue
        for role in ("alice", "ada"):
            with undone():
                client = Client(enforce_csrf_checks=True, raise_request_exception=False)
                client.force_login(world.users[role])
                before = rows()
                response = go(client, visit, known)
                what = f"{visit.method} {visit.address} as {role}"
                assert response.status_code in (401, 403, 404), what
                assert rows() == before, f"{what} changed something"


@pytest.mark.parametrize("address", sorted(TABLE))
def test_reading_changes_nothing(address: str, world: World, known: dict[str, Any]) -> None:
    """A link, an image or a prefetching browser must not act."""
    for visit in TABLE[address]:
        for role in ("alice", "ada"):
            with undone():
                client = client_of(world, role)
                before = rows()
                client.get(visit.address.format(**known))
                assert rows() == before, f"GET {visit.address} as {role} changed something"


HUGE = ("9" * 25, "0", "9223372036854775807", "-1", "%00", "%ff", "..", "%2e%2e%2f", "\u2603", "a" * 3000)


@pytest.mark.parametrize("address", sorted(address for address in TABLE if "<" in address))
def test_odd_addresses_are_not_found_or_refused(address: str, world: World, known: dict[str, Any]) -> None:
    for visit in TABLE[address]:
        for odd in HUGE if "{" in visit.address else ():
            place = re.sub(r"\{\w+\}", odd, visit.address)
            for role in ("charlie", "ada"):
                with undone():
                    response = client_of(world, role).generic(
                        visit.method, place, b"{}", content_type="application/json"
                    )
                    assert response.status_code < 500, f"{visit.method} {place[:80]} as {role}"


def test_roles_and_statuses_fit() -> None:
    for visits in TABLE.values():
        for visit in visits:
            assert set(visit.by_role) == set(ROLES)
