"""Whoever presses a button without a session, or visits its address, meets no dead end."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import reverse

from portal.accounts.models import User
from tests.portal.jobs_world import make_job, make_project, make_user

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture
def address() -> str:
    user = make_user("alice")
    user.set_password(PASSWORD)
    user.save()
    return reverse("jobs:act", args=[make_job(make_project(user)).pk, "cancel"])


def sign_in(client: Client, next_page: str) -> str:
    """Where a user comes after signing in."""
    response = client.post(f"/accounts/sign-in/?next={next_page}", {"username": "alice", "password": PASSWORD})
    return str(response["Location"])


@pytest.mark.parametrize(
    ("referer", "page"),
    [
        ("http://testserver/jobs/?mine=1", "/jobs/?mine=1"),
        ("http://elsewhere.example/jobs/", "/"),
        ("http://testserver", "/"),
        ("", "/"),
        ("nonsense", "/"),
    ],
)
def test_a_button_without_a_session_leads_back_to_its_page(
    client: Client, address: str, referer: str, page: str
) -> None:
    response = client.post(address, headers={"referer": referer})
    assert response.status_code == 302 and "/accounts/sign-in/" in response["Location"]
    assert "nothing was done" in client.get(response["Location"]).content.decode()
    next_page = response["Location"].partition("next=")[2] or "/"
    assert sign_in(client, next_page) == page


def test_a_page_without_a_session_is_shown_after_signing_in(client: Client, address: str) -> None:
    response = client.get("/jobs/?mine=1")
    assert sign_in(client, response["Location"].partition("next=")[2]) == "/jobs/?mine=1"


def test_the_address_of_a_button_shows_a_page(client: Client, address: str) -> None:
    client.post("/accounts/sign-in/", {"username": "alice", "password": PASSWORD})
    response = client.get(address)
    assert (response.status_code, response["Allow"]) == (405, "POST")
    assert "address of a button" in response.content.decode()


@pytest.mark.parametrize("name", ["cancel", "retry", "hold"])
def test_the_address_of_a_button_leads_to_its_page(client: Client, address: str, name: str) -> None:
    client.post("/accounts/sign-in/", {"username": "alice", "password": PASSWORD})
    page = client.get(address.replace("cancel", name)).content.decode()
    above = address.removesuffix("cancel").rstrip("/")
    assert client.get(above, follow=True).status_code == 200
    assert f'href="{above}' in page and "Back to the page" in page


def form_with_old_token(client: Client, address: str, **data: str) -> Any:
    """Submit a form that was opened before another sign-in gave the browser a new token."""
    client.cookies["csrftoken"] = "a" * 32
    return client.post(address, data, headers={"referer": f"http://testserver{address}"})


def test_an_expired_form_leads_back_to_itself(address: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="alice"))
    refused = form_with_old_token(client, reverse("projects:new"), name="Vision")
    assert refused.status_code == 403
    text = refused.content.decode()
    assert "This form had expired" in text and f'href="{reverse("projects:new")}"' in text


@pytest.mark.parametrize(("asked", "page"), [("/jobs/", "/jobs/"), ("https://evil.example/", "/"), ("", "/")])
def test_the_sign_in_page_of_a_second_tab_continues(address: str, asked: str, page: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="alice"))
    response = form_with_old_token(client, "/accounts/sign-in/", username="alice", password=PASSWORD, next=asked)
    assert response.status_code == 302
    assert client.get(response["Location"])["Location"] == page


def test_an_expired_sign_in_page_is_shown_again(address: str) -> None:
    client = Client(enforce_csrf_checks=True)
    response = form_with_old_token(client, "/accounts/sign-in/", username="alice", password="x", next="/jobs/")
    shown = client.get(response["Location"])
    assert shown.status_code == 200
    assert "This page had expired" in shown.content.decode() and 'value="/jobs/"' in shown.content.decode()


def test_a_browser_without_cookies_is_not_sent_in_circles(address: str) -> None:
    response = Client(enforce_csrf_checks=True).post("/accounts/sign-in/", {"username": "alice"})
    assert response.status_code == 403


@pytest.mark.asyncio
@pytest.mark.django_db(transaction=True)
async def test_also_for_requests_that_need_no_thread() -> None:
    response = await AsyncClient().get("/accounts/sign-out/")
    assert response.status_code in (302, 405)
    assert response.status_code == 302 or b"address of a button" in response.content


def test_programs_get_json(client: Client, address: str) -> None:
    client.post("/accounts/sign-in/", {"username": "alice", "password": PASSWORD})
    response = client.delete("/api/v1/jobs/")
    assert response.status_code == 405 and response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_an_expired_form_leads_to_no_other_site(path: str) -> None:
    alice = make_user("alice")
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    page = browser.post("/projects/new", {"name": "x"}, headers={"referer": f"http://testserver{path}"})
    assert page.status_code == 403 and "evil" not in page.content.decode()


def test_a_double_click_sends_no_form_twice(settings: Any) -> None:
    """A form is sent once, or asks before it is sent. Scripts send uploads; a download or signing out twice is no harm."""
    found = []
    for path in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        for form in re.findall(r"<form\b(?:\{%.*?%\}|\{\{.*?\}\}|[^>])*>", path.read_text(), re.DOTALL):
            is_safe = any(
                name in form for name in ("data-once", "data-confirm=", "data-upload", "data-download", "data-sign-out")
            )
            if 'method="post"' in form and not is_safe:
                found.append(f"{path.name}: {form}")
    assert not found
