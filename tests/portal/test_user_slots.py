"""Costly work: one piece of each user, so many of all, and a turn ends however the work ends."""

import asyncio
from typing import Any

import pytest

from portal import callers
from portal.accounts.models import User
from portal.asgi import RequestLimits
from portal.projects import archive, services
from portal.projects.errors import BadArchiveError
from portal.refused import Refused
from portal.user_slots import BusyError, UserSlots
from tests.portal import jobs_world as world


def test_each_user_has_one_turn_and_all_together_a_few() -> None:
    slots = UserSlots(2)
    with slots.hold(1):
        with pytest.raises(BusyError), slots.hold(1):
            pass
        with slots.hold(2), pytest.raises(BusyError), slots.hold(3):
            pass
        with slots.hold(3):
            pass
    with pytest.raises(ValueError, match="its own"), slots.hold(1):
        raise ValueError("its own")
    with slots.hold(1):
        pass


@pytest.mark.django_db
def test_a_second_upload_waits_for_the_first_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ada, ben = world.make_user("ada"), world.make_user("ben")
    project, other = world.make_project(ada), world.make_project(ben)
    seen: list[str] = []

    def take(uploads: Any, base: Any, *, gitignore: bool) -> archive.StoredUpload:
        with pytest.raises(Refused) as refused:
            services.store_code(ada, project, uploads)
        assert refused.value.code == "limit"
        if not seen:
            seen.append("ben")
            with pytest.raises(BadArchiveError):
                services.store_code(ben, other, uploads)
        raise BadArchiveError("no archive")

    monkeypatch.setattr(archive, "store_upload", take)
    for _ in range(2):  # the turn ends with the refusal
        seen.clear()
        with pytest.raises(BadArchiveError):
            services.store_code(ada, project, [])
        assert seen == ["ben"]
    assert User.objects.count() >= 2


async def test_uploads_that_wait_keep_no_page_waiting() -> None:
    unpacked = asyncio.Event()

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await unpacked.wait()

    limits = RequestLimits(inner, 2)
    paths = ["/projects/3/code", "/api/v1/projects/4/code/"] * 20
    uploads = [asyncio.create_task(limits({"method": "POST", "path": path}, None, None)) for path in paths]
    await asyncio.sleep(0)
    for path in ("/projects/3/", "/projects/3/code/1/", "/jobs/"):
        await asyncio.wait_for(limits({"method": "GET", "path": path}, None, None), 30)
    unpacked.set()
    await asyncio.gather(*uploads)


async def test_changes_of_one_user_are_made_one_after_another() -> None:
    under_way: list[str] = []
    go_on = asyncio.Event()

    async def inner(scope: dict[str, Any], receive: Any, send: Any) -> None:
        under_way.append(scope["path"])
        await go_on.wait()

    for user in (1001, 1002):
        callers.known_callers.remember(f"token of {user}", user)
    limits = RequestLimits(inner, 40)

    def ask(method: str, path: str, user: int | None) -> asyncio.Task[None]:
        headers = [(b"authorization", f"Bearer token of {user}".encode())] if user else []
        scope = {"method": method, "path": path, "headers": headers, "client": ("192.0.2.7", 5000)}
        return asyncio.create_task(limits(scope, None, None))

    asked = [ask(method, f"/{method}", 1001) for method in ("POST", "PUT", "PATCH", "DELETE")]
    asked += [ask("GET", "/read", 1001), ask("POST", "/other", 1002), ask("POST", "/a", None), ask("POST", "/b", None)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert sorted(under_way) == ["/POST", "/a", "/b", "/other", "/read"], "many may be behind one address"
    go_on.set()
    await asyncio.gather(*asked)
    assert sorted(under_way) == sorted(["/POST", "/PUT", "/PATCH", "/DELETE", "/a", "/b", "/other", "/read"])
