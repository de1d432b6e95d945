"""Alarms for admins, on their home page and as notices: GPUs in quarantine, and nodes that no longer report.

The cache remembers which alarms admins were notified of. When it is emptied, they are once more.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone

from portal.accounts.outbox import notify
from portal.accounts.services import active_admins
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.sentences import sentence_of
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
    silent = nodes.filter(cordoned=False, draining=False, last_seen_at__lt=heard).order_by("name")
    gpus = Gpu.objects.filter(node__in=nodes, present=True, quarantined_at__isnull=False).select_related("node")
    return [*map(_silent_node_alarm, silent), *map(_quarantined_gpu_alarm, gpus.order_by("node__name", "index"))]


def _silent_node_alarm(node: Node) -> Alarm:
    assert node.last_seen_at is not None  # noqa: S101  # the query asks for it
    key = f"node {node.pk} {node.last_seen_at.timestamp():.0f}"
    message = NodeSilent(node.name, node.last_seen_at.astimezone(UTC).isoformat())
    return Alarm(key, message, reverse("monitoring:admin-node", args=[node.pk]))


def _quarantined_gpu_alarm(gpu: Gpu) -> Alarm:
    assert gpu.quarantined_at is not None  # noqa: S101  # the query asks for it
    key = f"gpu {gpu.pk} {gpu.quarantined_at.timestamp():.0f}"
    message = GpuOutOfUse(gpu.label, gpu.node.name, gpu.quarantine_reason)
    return Alarm(key, message, reverse("monitoring:admin-node", args=[gpu.node_id]))


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
