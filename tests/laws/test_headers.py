"""The headers of answers that are in no row of the route matrix; those of its rows are checked where it is walked."""

from typing import Any

import pytest

from tests.laws.armour import check_armour
from tests.laws.people import World
from tests.laws.visits import client_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "address",
    ["/nothing/here/", "/api/nothing", "/api/v1/nothing/", "/agent/v1/nothing", "/accounts/x%00y/", "/jobs/?q=%00"],
)
def test_what_is_not_there_is_armoured_too(address: str, world: World) -> None:
    for role in ("anonymous", "alice"):
        response = client_of(world, role).get(address)
        assert response.status_code in (400, 404)
        check_armour(response)
        if address.startswith(("/api/", "/agent/")):
            assert set(response.json()) == {"error"}


def test_an_internal_error_has_all_headers_and_no_details(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.accounts import views

    def broken(request: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(views, "signed_in", broken)
    response = client_of(world, "alice").get("/accounts/tokens/")
    assert response.status_code == 500
    assert b"secret" not in response.content and b"Traceback" not in response.content
    check_armour(response)


def test_no_form_or_address_leads_to_another_site(world: World) -> None:
    """Parameters such as ``next``, wherever they are read."""
    for away in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "http:evil.example",
        "\thttps://evil.example",
    ):
        for address in (
            "/accounts/sign-in/",
            "/accounts/sign-out/",
            "/jobs/selected",
            "/accounts/profile/",
            "/accounts/tokens/",
        ):
            for role in ("anonymous", "alice"):
                client = client_of(world, role)
                for response in (
                    client.get(address, {"next": away}),
                    client.post(f"{address}?next={away.strip()}", {"next": away, "username": "x", "password": "y"}),
                ):
                    assert "evil" not in response.get("Location", "").partition("?")[0], f"{address} as {role}"


def test_cookies_keep_to_themselves(world: World) -> None:
    client = client_of(world, "anonymous")
    page = client.get("/accounts/sign-in/")
    cookie = page.cookies["csrftoken"]
    assert cookie["samesite"] == "Lax"
    client.force_login(world.alice)
    session = client.post("/accounts/sign-out-everywhere/").cookies
    for cookie in session.values():
        assert cookie["samesite"] == "Lax"
        assert cookie["httponly"] or cookie.key in ("csrftoken",), cookie.key


def test_pages_about_a_person_are_not_kept_by_caches(world: World, known: dict[str, Any]) -> None:
    alice = client_of(world, "alice")
    for address in ("/accounts/tokens/", "/accounts/password/"):
        assert "no-store" in alice.get(address)["Cache-Control"]
    assert "no-store" in client_of(world, "ada").post("/admin/invites/")["Cache-Control"]
    assert "no-store" in client_of(world, "ada").post("/admin/nodes/add")["Cache-Control"]
