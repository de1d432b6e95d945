"""Admins hear of machines that fell silent and of GPUs out of use: once, and not too often."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core import mail
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.utils import timezone

from portal.accounts.models import AuditEntry, User
from portal.celery import app
from portal.cluster import alarms, quarantine
from portal.cluster.attention import lab_attention
from portal.cluster.models import Gpu, Node
from portal.cluster.node_state import state_of
from portal.cluster.quarantine import Fault
from portal.cluster.tasks import mail_admins
from portal.disks import Disk
from runners.messages.problems import FullDisk, OldRunc, SmallDisk
from tests.portal import jobs_world as world
from tests.portal.outbox import deliver
from tests.portal.pages import compact

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_alarm_mailed_yet() -> None:
    cache.clear()


@pytest.fixture
def ada() -> User:
    return world.make_user("ada", is_staff=True, email="ada@example.org")


def silent(name: str = "gpu-1", **fields: Any) -> Node:
    return world.make_node(name, last_seen_at=timezone.now() - timedelta(hours=1), **fields)


def later(**time: float) -> datetime:
    return timezone.now() + timedelta(**time)


def test_silent_nodes_and_gpus_out_of_use_are_alarms() -> None:
    silent()
    node = world.make_node("gpu-2")
    quarantine.quarantine(Gpu.objects.get(node=node, index=1), Fault("XID 79: it fell off the bus.\nSubject: x"))
    first, second = alarms.current_alarms()
    assert first.text.startswith("Node gpu-1 has not reported since")
    assert second.text == "CPU slot 1 of gpu-2 is out of use: XID 79: it fell off the bus. Subject: x."
    assert second.path == f"/admin/nodes/{node.pk}/"


@pytest.mark.parametrize(
    "fields",
    [{"cordoned": True}, {"draining": True}, {"approved_at": None}, {"removed_at": timezone.now()}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_node_that_is_out_of_use_on_purpose_is_none(fields: dict[str, Any]) -> None:
    silent(**fields)
    assert alarms.current_alarms() == []


def test_a_machine_that_restarts_is_none() -> None:
    world.make_node("gpu-1", last_seen_at=timezone.now() - timedelta(seconds=settings.NODE_ALARM_AFTER_SECONDS / 2))
    assert alarms.current_alarms() == []


def test_all_admins_with_an_address_get_one_mail_about_it(ada: User, settings: Any) -> None:
    settings.SITE_URL = "https://lab.example.org"
    world.make_user("student", email="student@example.org")
    world.make_user("gone", is_staff=True, is_active=False, email="gone@example.org")
    world.make_user("mute", is_staff=True)
    node = silent()
    mail_admins()
    mail_admins()
    deliver()
    [sent] = mail.outbox
    assert sent.to == ["ada@example.org"]
    assert sent.subject.startswith("Schedulearn: Node gpu-1 has not reported since")
    assert f"https://lab.example.org/admin/nodes/{node.pk}/" in sent.body


def test_what_happens_within_an_hour_is_mailed_together_after_it(ada: User) -> None:
    silent("gpu-1")
    assert alarms.mail_admins() == 1
    deliver()
    silent("gpu-2")
    silent("gpu-3")
    assert alarms.mail_admins() == 0
    cache.delete(alarms.RECENTLY_MAILED_KEY)  # an hour later
    assert alarms.mail_admins() == 1
    deliver(later(minutes=6))
    assert mail.outbox[-1].subject == "Schedulearn: 2 things in the lab need an admin"
    assert "gpu-1" not in mail.outbox[-1].body and "gpu-3" in mail.outbox[-1].body


def test_the_same_node_is_mailed_again_when_it_falls_silent_again(ada: User) -> None:
    node = silent()
    assert alarms.mail_admins() == 1
    cache.delete(alarms.RECENTLY_MAILED_KEY)
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
    assert alarms.mail_admins() == 0
    assert alarms.mail_admins(later(minutes=10)) == 1


def test_a_demo_lab_sends_no_mail(ada: User, settings: Any) -> None:
    settings.DEMO = True
    silent()
    assert alarms.mail_admins() == 0
    assert deliver() == 0 and mail.outbox == []


def test_it_is_looked_for_each_minute() -> None:
    assert {"task": "portal.cluster.tasks.mail_admins", "schedule": 60.0, "options": {"expires": 50}} in list(
        app.conf.beat_schedule.values()
    )


def test_only_admins_see_it_on_their_home_page(ada: User) -> None:
    silent("gpu-1")
    client = Client()
    client.force_login(ada)
    page = client.get("/").content.decode()
    assert "Needs your attention" in page and "Node gpu-1 has not reported since" in page
    client.force_login(world.make_user("bob"))
    assert "has not reported since" not in client.get("/").content.decode()


def test_a_gpu_that_the_previous_release_took_out_of_use_keeps_its_reason(ada: User) -> None:
    gpu = Gpu.objects.get(node=world.make_node("gpu-1"), index=0)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE cluster_gpu SET quarantined_at = %s, quarantine_reason = %s, fault = %s WHERE id = %s",
            [timezone.now(), "XID 79.", "XID 79", gpu.pk],
        )
    [alarm] = alarms.current_alarms()
    assert alarm.text == "CPU slot 0 of gpu-1 is out of use: XID 79."
    gpu.refresh_from_db()
    assert quarantine.was_quarantined_for_fault_since(gpu, timezone.now() - timedelta(hours=1))
    quarantine.release(ada, gpu)
    assert AuditEntry.objects.get().before == {"reason": "XID 79."}


def test_the_audit_log_has_the_reason_as_data_and_shows_its_sentence(ada: User) -> None:
    quarantine.quarantine_by_admin(ada, Gpu.objects.get(node=world.make_node("gpu-1"), index=0))
    assert AuditEntry.objects.get().after == {"reason": {"code": "gpu_taken_out", "user": "ada"}}
    client = Client()
    client.force_login(ada)
    page = compact(client.get("/admin/audit/").content.decode())
    assert "Taken out of use by ada." in page and "took" in page and "gpu_taken_out" not in page


# --- disks -----------------------------------------------------------------------------------------------------------

SMALL = SmallDisk(3.5, "/srv", ("agent", "cache")).to_json()
FULL = FullDisk(448, "/srv").to_json()


@pytest.fixture
def large_disk(monkeypatch: pytest.MonkeyPatch) -> list[Disk]:
    found = [Disk("/home", 400 << 30, 1000 << 30)]
    monkeypatch.setattr(alarms, "portal_disks", lambda: found)
    return found


def test_disks_of_nodes_that_fill_up_are_alarms(large_disk: list[Disk]) -> None:
    world.make_node("gpu-1", problems=[SMALL])
    node = world.make_node("gpu-2", problems=[OldRunc("1.1.5").to_json(), FULL])
    world.make_node("gpu-3", problems=[FULL], last_seen_at=timezone.now() - timedelta(hours=1), cordoned=True)
    first, second = alarms.current_alarms()
    assert first.text == (
        "Node gpu-1 is running out of disk space: Only 3.5 GiB are free on the disk with files of jobs and environments (/srv)."
    )
    assert second.text == ("Node gpu-2 accepts no jobs: The disk with files of jobs is full: 448 MiB are free (/srv).")
    assert second.path == f"/admin/nodes/{node.pk}/"


def test_the_disk_of_the_portal_is_an_alarm_before_it_is_full(large_disk: list[Disk]) -> None:
    large_disk[:] = [Disk("/home", 30 << 30, 1000 << 30)]
    [alarm] = alarms.current_alarms()
    assert alarm.text == "The disk of the portal fills up: 30.0 of 1,000 GiB are free (/home)."
    assert alarm.path == "/admin/space/" and alarm.action == "Make room"
    large_disk[:] = [Disk("/home", 900 << 20, 1000 << 30)]
    assert "is full: 0.9 of 1,000 GiB" in alarms.current_alarms()[0].text


def test_admins_are_reminded_of_a_disk_once_a_day(ada: User, large_disk: list[Disk]) -> None:
    large_disk[:] = [Disk("/home", 30 << 30, 1000 << 30)]
    noon = timezone.now().replace(hour=12)
    assert alarms.mail_admins(noon) == 1
    cache.delete(alarms.RECENTLY_MAILED_KEY)
    large_disk[:] = [Disk("/home", 29 << 30, 1000 << 30)]
    assert alarms.mail_admins(noon + timedelta(hours=2)) == 0
    assert alarms.mail_admins(noon + timedelta(days=1)) == 1


def test_a_full_node_is_named_once_on_the_home_page(large_disk: list[Disk]) -> None:
    node = world.make_node("gpu-2", problems=[FULL])
    [item] = lab_attention(timezone.now())
    assert item.text.startswith("Node gpu-2 accepts no jobs:") and item.path == f"/admin/nodes/{node.pk}/"
    assert state_of(node) == ("held", "not accepting jobs")
