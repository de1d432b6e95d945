"""Every role visits every route, and sees what it may see and nothing else.

The routes come from the URL map: a new one without a row in ``route_matrix`` fails here. Each test is one loop over the
whole table that reports every failing case by name.
"""

import re
from typing import Any

import pytest

from portal.errors import page_above
from tests.examples import mostly_thorough
from tests.laws.armour import check_armour
from tests.laws.people import CANARY, ROLES, SECRET, World
from tests.laws.route_matrix import TABLE
from tests.laws.route_words import Visit
from tests.laws.urlmap import routes
from tests.laws.visits import Walk, client_of, go, rows, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(600)]

ROUTES = routes()
VISITS = [(address, visit) for address in sorted(TABLE) for visit in TABLE[address]]
OUTSIDERS = ("anonymous", "charlie")
SIGN_IN = ("/accounts/sign-in/?next=", "/accounts/password/reset/")

ON_BOTH_DATABASES = [
    pytest.param(role, marks=pytest.mark.both_databases) if role in ("alice", "ada") else role for role in ROLES
]
"""The roles that reach most queries."""
OBJECTS = (
    "project",
    "dataset",
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
RAW = re.compile(r">\s*(?:None|True|False|nan|\[\]|\{\})\s*<")
"""A value of Python where a page should have words."""


def test_every_route_has_its_rows_and_no_row_is_left_over() -> None:
    known = {route.address for route in ROUTES}
    assert known - set(TABLE) == set(), "new routes: add what each role gets there to route_matrix.py"
    assert set(TABLE) - known == set(), "routes that are gone: take them out of route_matrix.py"


def test_every_method_of_the_api_is_visited() -> None:
    visited = {address: {visit.method.lower() for visit in visits} for address, visits in TABLE.items()}
    missing = {
        route.address: set(route.actions) ^ visited[route.address]
        for route in ROUTES
        if route.actions and set(route.actions) != visited[route.address]
    }
    assert not missing


def test_roles_and_statuses_fit() -> None:
    assert all(set(visit.by_role) == set(ROLES) for _, visit in VISITS)


@pytest.mark.parametrize("role", ON_BOTH_DATABASES)
def test_a_role_gets_what_is_theirs(role: str, world: World, known: dict[str, Any]) -> None:
    """Check status and headers, that the answer shows nothing of others, and that nothing changes where nothing may."""
    before, walk = rows(), Walk()
    for _, visit in VISITS:
        with walk.case(f"{visit.method} {visit.address}"):
            response = go(client_of(world, role), visit, known)
            judge(response, visit, role)
            if may_change_nothing(visit, role, response.status_code):
                assert rows() == before, "it changed something"
    walk.report(at_least=200)


def judge(response: Any, visit: Visit, role: str) -> None:
    expected = int(visit.by_role[role].rstrip("-"))
    shown = "" if response.streaming else f": {response.content[:300]!r}"
    assert response.status_code == expected, f"{response.status_code} instead of {expected}{shown}"
    check_armour(response)
    text = text_of(response)
    assert "text/html" not in response.get("Content-Type", "") or not RAW.search(text), RAW.findall(text)
    assert role not in OUTSIDERS or CANARY not in text, "it shows something of Alice's"
    assert role not in (*OUTSIDERS, "victor") or SECRET not in text, "it shows an environment variable"
    if role == "anonymous" and response.status_code == 302 and "sign-out" not in visit.address:
        assert response["Location"].startswith(SIGN_IN)


def may_change_nothing(visit: Visit, role: str, status: int) -> bool:
    """Return whether a request must not change anything: those of links, images or prefetching, and refused ones."""
    return visit.method == "GET" or role == "anonymous" or status >= 400 or visit.by_role[role].endswith("-")


@pytest.mark.parametrize("role", mostly_thorough(["alice", "ada"], "ada"))
def test_reading_where_one_may_act_changes_nothing(role: str, world: World, known: dict[str, Any]) -> None:
    before, walk = rows(), Walk()
    for place in sorted({visit.address for _, visit in VISITS if visit.method != "GET"}):
        with walk.case(f"GET {place}"):
            client_of(world, role).get(place.format(**known))
            assert rows() == before
    walk.report(at_least=60)


@pytest.mark.thorough
def test_the_address_of_each_button_leads_to_a_page(world: World, known: dict[str, Any]) -> None:
    client, walk = client_of(world, "ada"), Walk()
    for place in sorted({visit.address for _, visit in VISITS if visit.method == "POST"}):
        address = place.format(**known)
        if address.startswith(("/api/", "/agent/", "/gallery/nothing/")) or client.get(address).status_code != 405:
            continue
        with walk.case(f"GET {place}"):
            above = page_above(address)
            assert client.get(above, follow=True).status_code == 200, above
    walk.report(at_least=20)


OF_THE_MOMENT = r'csrfmiddlewaretoken" value="[^"]*"|nonce[-=]"?[\w+/=-]+|Set-Cookie.*|Expires: .*'
"""Parts that differ between any two answers."""


def test_what_one_may_not_see_looks_like_what_is_not_there(world: World, known: dict[str, Any]) -> None:
    """To Charlie, Alice's project 7 looks like a project that never existed."""
    nowhere, walk = known | dict.fromkeys((*OBJECTS, "stream"), 987_654_321), Walk()
    for _, visit in VISITS:
        if visit.by_role["charlie"] != "404":
            continue
        answers: list[tuple[int, str]] = []
        for places in (known, nowhere):
            with walk.case(f"{visit.method} {visit.address}"):
                response = go(client_of(world, "charlie"), visit, places)
                answers.append((response.status_code, re.sub(OF_THE_MOMENT, "", text_of(response))))
                assert answers[0] == answers[-1], "the answer shows that it exists"
    walk.report(at_least=100)


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
NONSENSE = b"\xff\x00{nonsense"


@pytest.mark.parametrize("role", mostly_thorough(["anonymous", "charlie", "ada"], "anonymous"))
def test_no_method_breaks_a_route_or_lets_a_stranger_in(role: str, world: World, known: dict[str, Any]) -> None:
    walk = Walk()
    for address in sorted(TABLE):
        place = TABLE[address][0].address.format(**known)
        for method in METHODS:
            with walk.case(f"{method} {place}"):
                response = client_of(world, role).generic(method, place, NONSENSE, content_type="application/json")
                assert response.status_code < 500, response.status_code
                assert role == "ada" or CANARY not in text_of(response)
    walk.report(at_least=1_000)


@pytest.mark.thorough
@pytest.mark.parametrize("role", ["anonymous", "charlie", "ada"])
def test_no_empty_body_breaks_a_route(role: str, world: World, known: dict[str, Any]) -> None:
    walk = Walk()
    for address in sorted(TABLE):
        place = TABLE[address][0].address.format(**known)
        for method in METHODS:
            with walk.case(f"{method} {place}"):
                response = client_of(world, role).generic(method, place, b"", content_type="application/json")
                assert response.status_code < 500, response.status_code
                assert role == "ada" or CANARY not in text_of(response)
    walk.report(at_least=1_000)


@pytest.mark.parametrize("role", ["alice", "ada"])
def test_nothing_is_changed_by_a_session_without_its_csrf_token(role: str, world: World, known: dict[str, Any]) -> None:
    before, walk = rows(), Walk()
    for _, visit in VISITS:
        if visit.method == "GET":
            continue
        with walk.case(f"{visit.method} {visit.address}"):
            response = go(client_of(world, role, enforce_csrf_checks=True), visit, known)
            assert response.status_code in (401, 403, 404), response.status_code
            assert rows() == before, "it changed something"
    walk.report(at_least=60)


ODD = ("9" * 25, "-1", "%00", "..", "\u2603")
MORE_ODD = ("0", "9223372036854775807", "%ff", "%2e%2e%2f", "a" * 3000)


@pytest.mark.parametrize(
    ("role", "odd"),
    [
        *(pytest.param("ada", odd, marks=pytest.mark.both_databases) for odd in ODD[:2]),
        *(("charlie", odd) for odd in ODD[:2]),
        *(
            pytest.param(role, odd, marks=pytest.mark.thorough)
            for role in ("charlie", "ada")
            for odd in (*ODD[2:], *MORE_ODD)
        ),
    ],
    ids=lambda word: word[:20],
)
def test_odd_addresses_are_not_found_or_refused(role: str, odd: str, world: World) -> None:
    walk = Walk()
    for _, visit in VISITS:
        if "{" not in visit.address:
            continue
        place = re.sub(r"\{\w+\}", odd, visit.address)
        with walk.case(f"{visit.method} {place[:80]}"):
            response = client_of(world, role).generic(visit.method, place, b"{}", content_type="application/json")
            assert response.status_code < 500, response.status_code
    walk.report(at_least=100)
