"""What every answer carries, whatever it is: no page of ours can be framed, sniffed, scripted or left by accident."""

import re
from typing import Any

import pytest

from tests.laws.people import World
from tests.laws.tour import client_of, go, undone
from tests.laws.tour_table import TABLE

pytestmark = pytest.mark.django_db

SCRIPTS = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
INLINE = re.compile(r"\son[a-z]+\s*=\s*[\"']|\sstyle\s*=\s*[\"']|javascript:", re.IGNORECASE)
ELSEWHERE = re.compile(r"""(?:src|href|action)\s*=\s*["'](?:https?:)?//(?!localhost)""", re.IGNORECASE)


def check(response: Any, what: str) -> None:
    policy = {
        part.split()[0]: part.split()[1:] for part in response["Content-Security-Policy"].split(";") if part.strip()
    }
    if "sandbox" in policy:
        assert policy["default-src"] == ["'none'"], what
    else:
        assert policy["default-src"] == ["'self'"], what
        assert policy["object-src"] == policy["frame-ancestors"] == ["'none'"], what
        assert policy["base-uri"] == policy["form-action"] == ["'self'"], what
        for sources in policy.values():
            assert not set(sources) & {"'unsafe-inline'", "'unsafe-eval'", "*", "http:", "https:"}, what
    assert response["X-Content-Type-Options"] == "nosniff", what
    assert response["X-Frame-Options"] == "DENY", what
    assert response["Referrer-Policy"] == "same-origin", what
    assert response["Cross-Origin-Opener-Policy"] == "same-origin", what
    assert "Access-Control-Allow-Origin" not in response, what
    if not response.streaming and "text/html" in response.get("Content-Type", ""):
        check_page(response.content.decode(), what)


def check_page(page: str, what: str) -> None:
    """What the policy would refuse must not be there to begin with."""
    for attributes, code in SCRIPTS.findall(page):
        assert not code.strip() or "nonce=" in attributes or 'type="application/json"' in attributes, (
            f"{what}: inline script"
        )
    assert not INLINE.search(re.sub(r"<(pre|textarea|code)\b.*?</\1>", "", page, flags=re.DOTALL)), (
        f"{what}: inline handler or style"
    )
    assert not ELSEWHERE.search(page), f"{what} loads from elsewhere"


@pytest.mark.parametrize("address", sorted(TABLE))
def test_every_answer_is_armoured(address: str, world: World, known: dict[str, Any]) -> None:
    for visit in TABLE[address]:
        for role in ("anonymous", "charlie", "alice", "ada"):
            with undone():
                response = go(client_of(world, role), visit, known)
            check(response, f"{visit.method} {visit.address} as {role} ({response.status_code})")


@pytest.mark.parametrize(
    "address",
    ["/nothing/here/", "/api/nothing", "/api/v1/nothing/", "/agent/v1/nothing", "/accounts/x%00y/", "/jobs/?q=%00"],
)
def test_what_is_not_there_is_armoured_too(address: str, world: World) -> None:
    for role in ("anonymous", "alice"):
        response = client_of(world, role).get(address)
        assert response.status_code in (400, 404)
        check(response, f"{address} as {role}")
        if address.startswith(("/api/", "/agent/")):
            assert set(response.json()) == {"error"}


def test_our_own_failure_is_armoured_and_tells_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.accounts import views

    def broken(request: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(views, "signed_in", broken)
    response = client_of(world, "alice").get("/accounts/tokens/")
    assert response.status_code == 500
    assert b"secret" not in response.content and b"Traceback" not in response.content
    check(response, "500")


def test_no_form_or_address_leads_to_another_site(world: World) -> None:
    """``next`` and its like, wherever they are read."""
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
            "/jobs/cancel",
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
