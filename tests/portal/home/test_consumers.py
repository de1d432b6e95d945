"""The live connection of a page: who may open it, what it hints at, how often, and when it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.db import connections
from django.test import Client

from portal.accounts.models import User
from portal.asgi import application
from portal.cluster import services as cluster
from portal.home import consumers
from portal.home.consumers import PageConsumer
from portal.jobs import services
from portal.sockets import INVALID_MESSAGE, SIGNED_OUT, TOO_BIG, TOO_MANY
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]


class Lab:
    def __init__(self) -> None:
        self.alice, self.bob = world.make_user("alice"), world.make_user("bob")
        self.ada = world.make_user("ada", is_staff=True)
        self.job = world.make_job(world.make_project(self.alice))
        self.node = world.make_node("alpha")
        self.clients: dict[str, Client] = {}

    def cookie(self, user: User) -> bytes:
        client = self.clients[user.username] = Client()
        client.force_login(user)
        return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    yield await sync_to_async(Lab)()
    await sync_to_async(connections.close_all)()


class Page:
    def __init__(self, cookie: bytes, topics: str = "lab,mine", origin: bytes = b"http://localhost") -> None:
        headers = [(b"host", b"localhost"), (b"origin", origin), (b"cookie", cookie)]
        self.socket = WebsocketCommunicator(application, f"/ws/page/?topics={topics}", headers=headers)

    async def open(self) -> bool:
        accepted, _ = await self.socket.connect(timeout=60)
        return bool(accepted)

    async def changed(self, within: float = 10) -> list[str]:
        return list(json.loads(await self.socket.receive_from(within))["changed"])

    async def code(self, within: float = 30) -> int:
        while True:
            message = await self.socket.receive_output(within)
            if message["type"] == "websocket.close":
                return int(message["code"])

    async def close(self) -> None:
        await self.socket.disconnect(timeout=60)


async def page_of(lab: Lab, user: User, topics: str = "lab,mine") -> Page:
    page = Page(await sync_to_async(lab.cookie)(user), topics)
    assert await page.open()
    return page


async def does(act: Callable[..., Any], *args: Any) -> Any:
    return await sync_to_async(act)(*args)


async def test_only_who_is_signed_in_may_open_it_and_only_from_our_page(lab: Lab) -> None:
    assert not await Page(b"").open()
    assert not await Page(f"{settings.SESSION_COOKIE_NAME}=nonsense".encode()).open()
    cookie = await sync_to_async(lab.cookie)(lab.alice)
    assert not await Page(cookie, origin=b"http://evil.example").open()
    for topics in ("", "lab,", "nothing", "lab,job-1", "lab%00"):
        assert not await Page(cookie, topics).open(), topics


async def test_a_change_of_a_job_hints_its_owner_at_theirs_and_others_at_the_lab(lab: Lab) -> None:
    alice, bob = await page_of(lab, lab.alice), await page_of(lab, lab.bob)
    await does(services.hold, lab.alice, lab.job)
    assert set(await alice.changed()) == {"lab", "mine"}
    assert await bob.changed() == ["lab"]
    await alice.close()
    await bob.close()


async def test_what_an_admin_does_with_a_node_is_hinted_at(lab: Lab) -> None:
    page = await page_of(lab, lab.bob, "lab")
    await does(cluster.cordon, lab.ada, lab.node)
    assert await page.changed() == ["lab"]
    await page.close()


async def test_many_changes_are_one_hint_a_second(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MIN_SECONDS_BETWEEN", 3.0)
    page = await page_of(lab, lab.alice)
    await does(services.hold, lab.alice, lab.job)
    await page.changed()
    for _ in range(5):
        await does(services.release, lab.alice, lab.job)
        await does(services.hold, lab.alice, lab.job)
    assert await page.socket.receive_nothing(timeout=1.0)
    assert set(await page.changed()) == {"lab", "mine"}
    await page.close()


def test_many_open_pages_are_hinted_at_less_often() -> None:
    page = PageConsumer()
    PageConsumer.open_sockets.update({10**9: 80})
    try:
        assert page._pause() >= 8.0
    finally:
        del PageConsumer.open_sockets[10**9]
    assert page._pause() >= consumers.MIN_SECONDS_BETWEEN


async def test_a_timer_replaces_lost_notifications(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "TIMER_SECONDS", 0.5)
    page = await page_of(lab, lab.alice)
    assert set(await page.changed(within=20)) == {"lab", "mine"}
    await page.close()


async def test_signing_out_ends_it_at_once(lab: Lab) -> None:
    page = await page_of(lab, lab.alice)
    await does(lab.clients["alice"].post, "/accounts/sign-out/")
    assert await page.code(within=10) == SIGNED_OUT


async def test_a_deactivated_user_is_found_by_the_check(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ACCESS_CHECK_SECONDS", 0.2)
    page = await page_of(lab, lab.bob)
    await does(lambda: User.objects.filter(pk=lab.bob.pk).update(is_active=False))
    assert await page.code() == SIGNED_OUT


async def test_a_user_has_a_limited_number_of_them_and_a_closed_one_is_free_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_SOCKETS", 1)
    first = await page_of(lab, lab.alice)
    second = await page_of(lab, lab.alice)
    assert await second.code() == TOO_MANY
    await first.close()
    async with asyncio.timeout(10):
        while PageConsumer.open_sockets[lab.alice.pk]:
            await asyncio.sleep(0.01)
    third = await page_of(lab, lab.alice)
    assert await third.socket.receive_nothing(timeout=0.2)
    await third.close()


@pytest.mark.parametrize(("message", "code"), [("{}", INVALID_MESSAGE), ("x" * 5000, TOO_BIG)])
async def test_pages_send_nothing(lab: Lab, message: str, code: int) -> None:
    page = await page_of(lab, lab.alice)
    await page.socket.send_to(text_data=message)
    assert await page.code() == code
