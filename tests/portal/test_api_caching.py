"""Requests that are not answered in full: content that the client has already, and too many of a stranger."""

from typing import Any

import pytest
from django.core.cache import cache
from rest_framework.throttling import UserRateThrottle

from portal.rest import StrangerThrottle
from tests.laws.people import World, make_world
from tests.portal.api_client import Script

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


class TestEtags:
    @pytest.mark.parametrize("path", ["jobs/", "jobs/{job}/", "projects/", "me/", "nodes/", "policies/"])
    def test_content_that_the_client_has_is_not_sent_again(self, world: World, path: str) -> None:
        script, address = Script(world.alice), path.format(job=world.jobs["FAILED"].pk)
        first = script.get(address)
        assert first.status_code == 200 and first["ETag"] and first["Cache-Control"] == "private, no-cache"
        again = script.get(address, headers={"If-None-Match": first["ETag"]})
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
        assert script.get(address, headers={"If-None-Match": '"another"'}).content == first.content
        assert script.head(address)["ETag"] == first["ETag"]

    def test_a_change_gives_another_etag(self, world: World) -> None:
        script, address = Script(world.alice), f"jobs/{world.jobs['QUEUED'].pk}/"
        old = script.get(address)["ETag"]
        script.send("patch", address, {"priority": 7})
        changed = script.get(address, headers={"If-None-Match": old})
        assert changed.status_code == 200 and changed.json()["priority"] == 7 and changed["ETag"] != old

    def test_it_gives_nothing_to_those_who_may_not_see_it(self, world: World) -> None:
        address = f"jobs/{world.jobs['QUEUED'].pk}/"
        etag = Script(world.alice).get(address)["ETag"]
        for script, status in ((Script(), 401), (Script(world.charlie), 404)):
            answer = script.get(address, headers={"If-None-Match": etag})
            assert answer.status_code == status and not answer.has_header("ETag")

    def test_browsers_still_keep_nothing(self, world: World) -> None:
        browser = Script()
        browser.force_login(world.alice)
        assert browser.get("jobs/")["Cache-Control"] == "private, no-store"

    def test_a_condition_on_a_change_is_refused_rather_than_ignored(self, world: World) -> None:
        script, address = Script(world.alice), f"jobs/{world.jobs['QUEUED'].pk}/"
        tag = script.get(address)["ETag"]
        for header, value in {"If-Match": tag, "If-Unmodified-Since": "Fri, 27 Nov 2026 12:00:00 GMT"}.items():
            answer = script.send("patch", address, {"priority": 7}, **{header: value})
            assert answer.status_code == 400 and header in answer.json()["error"]["message"]
        assert script.get(address)["ETag"] == tag
        refused = script.get(address, headers={"If-Match": '"another"'})
        assert refused.status_code == 412 and refused.json()["error"]["code"] == "precondition_failed"
        assert script.get(address, headers={"If-Match": tag}).status_code == 200

    def test_changes_and_refusals_have_none(self, world: World) -> None:
        script = Script(world.alice)
        assert not script.send("post", "projects/", {"name": "New"}).has_header("ETag")
        assert not script.get("jobs/999999/").has_header("ETag")


class TestStrangers:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(StrangerThrottle, "rate", "3/min", raising=False)
        cache.clear()

    def statuses(self, script: Any, times: int) -> list[int]:
        return [script.get("jobs/").status_code for _ in range(times)]

    def test_requests_without_a_token_are_limited(self, world: World) -> None:
        assert self.statuses(Script(), 5) == [401, 401, 401, 429, 429]
        refused = Script().get("jobs/")
        assert 1 <= int(refused["Retry-After"]) <= 61 and refused.json()["error"]["code"] == "throttled"

    def test_guessed_tokens_are_limited(self, world: World) -> None:
        guesser = Script()
        guesser.credentials(HTTP_AUTHORIZATION="Bearer sl_guessed")
        assert self.statuses(guesser, 4) == [401, 401, 401, 429]

    def test_who_has_a_token_is_not_kept_out_by_strangers_at_the_same_address(self, world: World) -> None:
        self.statuses(Script(), 5)
        assert self.statuses(Script(world.alice), 5) == [200] * 5

    def test_another_address_is_another_stranger(self, world: World) -> None:
        self.statuses(Script(), 4)
        assert Script().get("jobs/", REMOTE_ADDR="192.0.2.7").status_code == 401

    def test_addresses_of_one_network_are_one_stranger(self, world: World) -> None:
        answers = [Script().get("jobs/", REMOTE_ADDR=f"2001:db8::{number}").status_code for number in range(1, 6)]
        assert answers == [401, 401, 401, 429, 429]
        assert Script().get("jobs/", REMOTE_ADDR="2001:db8:0:1::1").status_code == 401


def test_refused_requests_of_a_user_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserRateThrottle, "rate", "3/min", raising=False)
    cache.clear()
    script = Script(world.alice)
    assert [script.get("users/").status_code for _ in range(5)] == [404, 404, 404, 429, 429]
    monkeypatch.setattr(StrangerThrottle, "rate", "3/min", raising=False)
    reader = Script(world.bob, scope="read")
    assert [reader.send("post", "projects/", {}).status_code for _ in range(5)] == [403, 403, 403, 429, 429]
