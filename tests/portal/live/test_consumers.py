"""The live connection of a page: who may open it, what it hints at, how often, and when it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.db import connections
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.asgi import application
from portal.cluster import services as cluster
from portal.jobs import services
from portal.live import consumers, topics
from portal.live.consumers import PageConsumer
from portal.projects.models import Membership
from portal.scheduler.models import SchedulerConfig
from portal.sockets import FORBIDDEN, INVALID_MESSAGE, SIGNED_OUT, TOO_BIG, TOO_MANY
from portal.wake import NotificationHub, wake_log_viewers
from portal.whatif.models import Simulation
from tests.portal import jobs_world as world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]


MANY = ",".join(["lab", *(f"job-{number}" for number in range(12))])


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
        """Return the topics of the next hint; a heartbeat has none."""
        async with asyncio.timeout(within):
            while True:
                if names := json.loads(await self.socket.receive_from(within))["changed"]:
                    return list(names)

    async def changes(self, *names: str, within: float = 10) -> None:
        """Wait until the page was hinted at just these topics: notifications of Redis may come one by one."""
        missing = set(names)
        while missing:
            got = set(await self.changed(within))
            assert got <= missing, (got, missing)
            missing -= got

    async def code(self, within: float = 30) -> int:
        while True:
            message = await self.socket.receive_output(within)
            if message["type"] == "websocket.close":
                return int(message["code"])

    async def close(self) -> None:
        await self.socket.disconnect(timeout=60)


async def page_of(lab: Lab, user: User, topics: str = "lab,mine") -> Page:
    await asyncio.wait_for(
        NotificationHub.current().connected.wait(), 10
    )  # whoever is open then is hinted at everything
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
    for names in ("", "lab,", "nothing", "lab%00", "lab-1", "job", "job-", "job--1", f"job-{lab.job.pk}%20", MANY):
        assert not await Page(cookie, names).open(), names


async def test_a_change_of_a_job_hints_its_owner_at_theirs_and_others_at_the_lab(lab: Lab) -> None:
    alice, bob = await page_of(lab, lab.alice), await page_of(lab, lab.bob)
    await does(services.hold, lab.alice, lab.job)
    await alice.changes("lab", "mine")
    assert await bob.changed() == ["lab"]
    await alice.close()
    await bob.close()


async def test_what_an_admin_does_with_a_node_is_hinted_at(lab: Lab) -> None:
    page = await page_of(lab, lab.bob, "lab")
    await does(cluster.cordon, lab.ada, lab.node)
    assert await page.changed() == ["lab"]
    await page.close()


async def test_many_changes_are_one_hint_until_the_pause_has_passed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MIN_SECONDS_BETWEEN", 3600.0)
    page = await page_of(lab, lab.alice)
    await does(services.hold, lab.alice, lab.job)
    await page.changes("lab", "mine")
    for _ in range(5):
        await does(services.release, lab.alice, lab.job)
        await does(services.hold, lab.alice, lab.job)
    assert await page.socket.receive_nothing(timeout=1.0)
    await page.close()


async def test_a_change_during_the_pause_is_hinted_at_after_it(lab: Lab) -> None:
    page = await page_of(lab, lab.alice)
    for change in (services.hold, services.release):
        await does(change, lab.alice, lab.job)
        await page.changes("lab", "mine")
    await page.close()


async def test_what_many_pages_watch_is_hinted_at_less_often(lab: Lab) -> None:
    watch = consumers.Watch(topics.topics_of("lab", lab.alice)[0], asyncio.Event())
    watch.record_hint(pages=1)
    assert watch.pause == consumers.MIN_SECONDS_BETWEEN
    watch.record_hint(pages=80)
    assert watch.pause >= 8.0


async def test_pages_are_counted_by_what_they_watch(lab: Lab) -> None:
    job = f"job-{lab.job.pk}"
    pages = [await page_of(lab, lab.alice, f"lab,{job}"), await page_of(lab, lab.bob, "lab,nodes,gpus")]
    assert PageConsumer.pages["lab", "scheduler"] == 4
    assert PageConsumer.pages[job,] == 1
    for page in pages:
        await page.close()
    async with asyncio.timeout(10):
        while PageConsumer.pages:
            await asyncio.sleep(0.01)


async def test_a_timer_replaces_lost_notifications(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab", "mine"):
        monkeypatch.setitem(topics.KINDS, name, replace(topics.KINDS[name], seconds=0.5))
    page = await page_of(lab, lab.alice)
    assert set(await page.changed(within=20)) == {"lab", "mine"}
    assert set(await page.changed(within=20)) == {"lab", "mine"}
    await page.close()


async def test_a_quiet_page_gets_heartbeats(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "HEARTBEAT_SECONDS", 0.3)
    page = await page_of(lab, lab.alice, "charts")
    for _ in range(2):
        assert json.loads(await page.socket.receive_from(10)) == {"changed": []}
    await page.close()


async def test_a_page_watches_only_jobs_that_its_reader_may_see(lab: Lab) -> None:
    job = lab.job.pk
    for user, names, is_accepted in (
        (lab.alice, f"job-{job},readings-{job},mine", True),
        (lab.ada, f"job-{job}", True),
        (lab.bob, f"job-{job}", False),
        (lab.bob, f"lab,readings-{job}", False),
        (lab.alice, f"job-{job},job-{job + 1000}", False),  # as if it were another person's
    ):
        page = Page(await does(lab.cookie, user), names)
        assert await page.open() == is_accepted, (user.username, names)
        await page.close()


async def test_simulations_and_joining_machines_are_of_admins(lab: Lab) -> None:
    now = timezone.now()
    config = await SchedulerConfig.objects.acreate(policy="fifo", params={})
    simulation = (
        await Simulation.objects.acreate(created_by=lab.ada, config=config, days=1, start=now, end=now, policies=[])
    ).pk
    for user, names, is_accepted in (
        (lab.ada, f"simulation-{simulation},joining", True),
        (lab.ada, f"simulation-{simulation + 1}", False),
        (lab.alice, f"simulation-{simulation}", False),
        (lab.alice, "joining", False),
    ):
        page = Page(await does(lab.cookie, user), names)
        assert await page.open() == is_accepted, (user.username, names)
        await page.close()


async def test_whoever_loses_access_to_the_job_is_shut_out_and_gets_no_hint(lab: Lab) -> None:
    page = await page_of(lab, lab.alice, f"job-{lab.job.pk}")
    await does(lambda: Membership.objects.filter(user=lab.alice).delete())
    await does(services.hold, lab.ada, lab.job)
    message = await page.socket.receive_output(20)
    assert (message["type"], message["code"]) == ("websocket.close", FORBIDDEN)


async def test_a_change_of_a_job_is_hinted_at_on_its_pages_and_its_output_is_not(lab: Lab) -> None:
    topic = f"job-{lab.job.pk}"
    page = await page_of(lab, lab.ada, topic)
    await does(wake_log_viewers, lab.job.pk)
    assert await page.socket.receive_nothing(timeout=0.5)
    await does(services.hold, lab.alice, lab.job)
    assert await page.changed(within=3) == [topic]
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
