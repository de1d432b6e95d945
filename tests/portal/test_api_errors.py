"""One shape for every error, whatever went wrong and wherever."""

import errno
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import InterfaceError, OperationalError
from django.test import Client
from rest_framework.throttling import UserRateThrottle

from portal.accounts.models import ApiToken
from tests.laws.people import World, make_world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    cache.clear()
    return make_world()


def code_of(response: Any) -> str:
    error = response.json()["error"]
    assert set(error) <= {"code", "message", "fields"}, error
    assert error["message"].rstrip()[-1] in ".:}", error
    return str(error["code"])


@pytest.mark.parametrize(
    ("method", "path", "data", "status", "code"),
    [
        ("get", "projects/999/", None, 404, "not_found"),
        ("get", "no/such/address", None, 404, "not_found"),
        ("get", "jobs/99999999999999999999999/", None, 404, "not_found"),
        ("put", "projects/", {}, 405, "method_not_allowed"),
        ("post", "projects/", {}, 400, "invalid"),
        ("post", "projects/", {"name": "x" * 81}, 400, "invalid"),
        ("get", "jobs/?state=NONSENSE", None, 400, "invalid"),
        ("get", "jobs/?project=abc", None, 400, "invalid"),
        ("get", "jobs/?page=99", None, 404, "not_found"),
        ("get", "jobs/?q=%00", None, 400, "invalid"),
    ],
)
def test_what_a_script_gets_wrong(world: World, method: str, path: str, data: Any, status: int, code: str) -> None:
    response = Script(world.alice).send(method, path, data)
    assert (response.status_code, code_of(response)) == (status, code), response.content


@pytest.mark.parametrize("address", ["/api/v1/%00", "/agent/v1/%00", "/agent/v1/wait?seen=%00"])
def test_a_nul_in_the_address(address: str) -> None:
    response = Client().get(address)
    assert (response.status_code, code_of(response)) == (400, "invalid")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"7", b"\xff", b'{"name": NaN}', b'{"a":' * 5000, b'{"name": ' + b"9" * 5000 + b"}", b'"\\ud800"']
    + [b'{"name": "\\ud800"}', b'{"\\udfff": 1}', b'{"name": ["\\ud800"]}'],
)
def test_bodies_that_are_no_json_object(world: World, body: bytes) -> None:
    response = Script(world.alice).post("projects/", body, content_type="application/json")
    assert (response.status_code, code_of(response)) == (400, "invalid")


def test_few_of_many_unknown_fields_are_named(world: World) -> None:
    body = {f"nmae{number}": 1 for number in range(50_000)}
    response = Script(world.alice).send("post", "projects/", body)
    assert response.status_code == 400 and len(response.content) < 10_000


def test_a_body_too_large_is_not_read_to_its_end(world: World) -> None:
    response = Script(world.alice).post("projects/", b'{"name": "' + b"x" * 2_000_000, content_type="application/json")
    assert (response.status_code, code_of(response)) == (413, "too_large")


def test_a_body_of_another_type(world: World) -> None:
    response = Script(world.alice).post("projects/", b"<x/>", content_type="text/xml")
    assert (response.status_code, code_of(response)) == (415, "unsupported_media_type")


def test_fields_are_named(world: World) -> None:
    response = Script(world.alice).send(
        "post", "jobs/", {"project": world.project.pk, "env_vars": {"A": ["x"]}, "min_gpus": 0}
    )
    assert set(response.json()["error"]["fields"]) == {"env_vars.A", "min_gpus"}


def test_no_token_a_wrong_one_and_an_ended_one(world: World) -> None:
    row, token = ApiToken.issue(world.alice, "ended")
    ApiToken.objects.filter(pk=row.pk).update(revoked_at=row.created_at)
    world.bob.is_active = False
    world.bob.save(update_fields=["is_active"])
    headers = [{}, {"Authorization": "Bearer sl_wrong"}, {"Authorization": f"Bearer {token}"}]
    headers += [{"Authorization": f"Bearer {world.tokens['bob']}"}, {"Authorization": "Bearer \xff\xfe"}]
    for each in headers:
        response = Client().get("/api/v1/me/", headers=each)
        assert (response.status_code, code_of(response)) == (401, "unauthenticated")
        assert response["WWW-Authenticate"] == "Bearer"


def test_a_token_that_may_only_read(world: World) -> None:
    script = Script(world.alice, scope=ApiToken.Scope.READ)
    assert script.get("jobs/").status_code == 200
    response = script.send("post", f"jobs/{world.running.pk}/cancel/")
    assert (response.status_code, code_of(response)) == (403, "forbidden")


def test_a_session_needs_its_csrf_token(world: World) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.alice)
    assert browser.get("/api/v1/me/").status_code == 200
    response = browser.post("/api/v1/projects/", {"name": "x"}, content_type="application/json")
    assert (response.status_code, code_of(response)) == (403, "forbidden")


def test_too_many_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserRateThrottle, "get_rate", lambda self: "3/min")
    answers = [Script(world.alice).get("me/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429], "other tokens are not another user"
    assert code_of(answers[-1]) == "throttled"
    assert int(answers[-1]["Retry-After"]) > 0
    assert Script(world.bob).get("me/").status_code == 200


def test_while_redis_is_away_requests_are_answered_uncounted(world: World, settings: Any) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "portal.caches.ForgivingRedisCache",
            "LOCATION": "redis://127.0.0.1:1",
        }  # nothing listens there
    }
    assert Script(world.alice).get("me/").status_code == 200
    asked = Client().post("/accounts/password/reset/", {"email": world.alice.email})
    assert asked.status_code == 302


def test_an_error_of_the_portal_has_the_same_format(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.accounts import api

    def broken(user: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(api, "limits_for", broken)
    script = Script(world.alice)
    script.raise_request_exception = False
    response = script.get("me/")
    assert (response.status_code, code_of(response)) == (500, "server_error")
    assert b"secret" not in response.content


@pytest.mark.parametrize("trouble", [OperationalError, InterfaceError])
def test_an_unavailable_database_is_answered_with_503_and_a_time_to_retry(
    world: World, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]
) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise trouble("connection to server at 10.0.0.5 refused")

    script, page = Script(world.alice), Client(raise_request_exception=False)
    script.raise_request_exception = False
    page.force_login(world.alice)
    monkeypatch.setattr("django.db.models.sql.compiler.SQLCompiler.execute_sql", away)
    response = script.get("me/")
    assert (response.status_code, code_of(response), response["Retry-After"]) == (503, "unavailable", "5")
    shown = page.get("/jobs/")
    assert shown.status_code == 503 and b"database is not available at the moment" in shown.content
    assert b"10.0.0.5" not in response.content + shown.content


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OperationalError("database or disk is full"),
        OperationalError("could not extend file: No space left on device"),
    ],
    ids=str,
)
def test_a_full_disk_is_answered_with_507_and_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise trouble

    script, page = Script(world.alice), Client(raise_request_exception=False)
    script.raise_request_exception = False
    page.force_login(world.alice)
    monkeypatch.setattr("django.db.models.sql.compiler.SQLCompiler.execute_sql", full)
    response = script.get("me/")
    assert (response.status_code, code_of(response)) == (507, "insufficient_storage")
    shown = page.get("/jobs/")
    assert shown.status_code == 507 and b"Ask an admin to make room" in shown.content


def test_code_is_refused_while_the_disk_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.disks.MARGIN_BYTES", 1 << 60)
    sent = {"file": SimpleUploadedFile("train.py", b"print(1)\n"), "paths": "train.py"}
    response = Script(world.alice).post(f"projects/{world.project.pk}/code/", sent, format="multipart")
    assert response.status_code == 507 and "Nothing was saved" in response.json()["error"]["message"]
