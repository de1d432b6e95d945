"""Alarms for admins, on their home page and as notices: GPUs in quarantine, nodes that no longer report, and disks that fill up.

The cache remembers which alarms admins were notified of. When it is emptied, they are once more.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.core.cache import cache
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from portal.accounts.outbox import notify
from portal.accounts.services import active_admins
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.disks import Disk, portal_disks
from portal.sentences import sentence_of
from portal.sentences.problems import DISK_PROBLEMS
from scheduling.messages import Message

MIN_MAIL_INTERVAL = timedelta(hours=1)
"""Minimum time between two notices."""
MAILED_LIFETIME = timedelta(days=30)
MAILED_KEY, RECENTLY_MAILED_KEY = "alarms.mailed", "alarms.resting"


@dataclass(frozen=True, slots=True)
class Alarm:
    key: str
    """Identifies one occurrence: when the same happens again, the key differs."""
    message: Message
    path: str
    """Path of the page with details, where it can be fixed."""
    action: str = "See the machine"
    """What the link to it is called."""

    @property
    def text(self) -> str:
        return sentence_of(self.message)


@dataclass(frozen=True)
class NodeSilent(Message):
    code: ClassVar[str] = "node_silent"
    node: str
    since: str
    """ISO 8601, in UTC."""


@dataclass(frozen=True)
class GpuOutOfUse(Message):
    code: ClassVar[str] = "gpu_out_of_use"
    gpu: str
    """``Gpu.label``"""
    node: str
    reason: Any
    """``Gpu.quarantine_reason``"""


@dataclass(frozen=True)
class NodeDiskFilling(Message):
    code: ClassVar[str] = "node_disk_filling"
    node: str
    problem: dict[str, Any]
    """Of ``Node.problems``."""


@dataclass(frozen=True)
class PortalDiskFilling(Message):
    code: ClassVar[str] = "portal_disk_filling"
    folder: str
    free_mib: int
    total_mib: int
    full: bool


@dataclass(frozen=True)
class LabAlarms(Message):
    """The notice of alarms."""

    code: ClassVar[str] = "lab_alarms"
    alarms: list[dict[str, Any]]
    """The message and the path of each."""


def current_alarms(now: datetime | None = None) -> list[Alarm]:
    """Return the alarms that are raised now. A node that is cordoned or draining may be switched off without an alarm."""
    now = now or timezone.now()
    nodes = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    heard = now - timedelta(seconds=settings.NODE_ALARM_AFTER_SECONDS)
    is_silent = Q(cordoned=False, draining=False, last_seen_at__lt=heard)
    rows = list(nodes.filter(is_silent | Q(last_seen_at__gte=heard) & ~Q(problems=[])).order_by("name"))
    gpus = Gpu.objects.filter(node__in=nodes, present=True, quarantined_at__isnull=False).select_related("node")
    return [
        *(_silent_node_alarm(node) for node in rows if _seen_at(node) < heard),
        *map(_quarantined_gpu_alarm, gpus.order_by("node__name", "index")),
        *(_portal_disk_alarm(disk, now) for disk in portal_disks() if disk.is_low),
        *(
            _node_disk_alarm(node, problem, now)
            for node in rows
            if _seen_at(node) >= heard
            for problem in node.problems
            if problem.get("code") in DISK_PROBLEMS
        ),
    ]


def _seen_at(node: Node) -> datetime:
    assert node.last_seen_at is not None  # noqa: S101  # the query asks for it
    return node.last_seen_at


def _silent_node_alarm(node: Node) -> Alarm:
    seen = _seen_at(node)
    key = f"node {node.pk} {seen.timestamp():.0f}"
    message = NodeSilent(node.name, seen.astimezone(UTC).isoformat())
    return Alarm(key, message, reverse("monitoring:admin-node", args=[node.pk]))


def _quarantined_gpu_alarm(gpu: Gpu) -> Alarm:
    assert gpu.quarantined_at is not None  # noqa: S101  # the query asks for it
    key = f"gpu {gpu.pk} {gpu.quarantined_at.timestamp():.0f}"
    message = GpuOutOfUse(gpu.label, gpu.node.name, gpu.quarantine_reason)
    return Alarm(key, message, reverse("monitoring:admin-node", args=[gpu.node_id]))


def _portal_disk_alarm(disk: Disk, now: datetime) -> Alarm:
    message = PortalDiskFilling(disk.folder, disk.free >> 20, disk.total >> 20, disk.is_full)
    return Alarm(f"disk {disk.folder} {disk.is_full} {_day(now)}", message, reverse("jobs:space"), "Make room")


def _node_disk_alarm(node: Node, problem: dict[str, Any], now: datetime) -> Alarm:
    path = reverse("monitoring:admin-node", args=[node.pk])
    key = f"disk of node {node.pk} {problem['code']} {problem.get('folder')} {_day(now)}"
    return Alarm(key, NodeDiskFilling(node.name, problem), path)


def _day(now: datetime) -> str:
    """Part of the key of a disk: admins are reminded once a day."""
    return now.astimezone(UTC).date().isoformat()


def mail_admins(now: datetime | None = None) -> int:
    """Notify all admins of new alarms, at most once an hour. Return how many were notified. May be repeated."""
    present = current_alarms(now)
    keys, mailed = {each.key for each in present}, set(cache.get(MAILED_KEY, ()))
    new = [each for each in present if each.key not in mailed]
    admins = list(active_admins()) if new and not settings.DEMO else []
    if not admins or not cache.add(RECENTLY_MAILED_KEY, True, MIN_MAIL_INTERVAL.total_seconds()):
        return 0
    content = LabAlarms([{"message": each.message.data(), "path": each.path} for each in new])
    notify(admins, "alarm", content, new[0].path if len(new) == 1 else reverse("scheduler:admin"))
    cache.set(MAILED_KEY, tuple(keys), MAILED_LIFETIME.total_seconds())
    return len(admins)
