"""What admins should look at: GPUs in quarantine, and machines that fell silent. On their home page, and by mail.

Which of it was told by mail is kept in the cache: when that is emptied, they are told once more.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.core.cache import cache
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from kombu.exceptions import OperationalError

from portal.accounts.models import User
from portal.accounts.tasks import mail
from portal.cluster.models import LIVE_NODE, Gpu, Node

log = logging.getLogger(__name__)

SILENT = timedelta(minutes=2)
"""A machine that restarts its agent or itself is back before."""
REST = timedelta(hours=1)
"""From one mail to the next, however much happens."""
REMEMBERED = timedelta(days=30)
TOLD, RESTING = "alarms.told", "alarms.resting"


@dataclass(frozen=True, slots=True)
class Alarm:
    key: str
    """Another one when the same happens again."""
    text: str
    """A sentence."""
    path: str
    """Of the page where one sees more and mends it."""


def alarms(now: datetime | None = None) -> list[Alarm]:
    """Those of now. What an admin has cordoned or drained may be switched off without anybody being told."""
    now = now or timezone.now()
    nodes = Node.objects.filter(LIVE_NODE, approved_at__isnull=False)
    silent = nodes.filter(cordoned=False, draining=False, last_seen_at__lt=now - SILENT).order_by("name")
    gpus = Gpu.objects.filter(node__in=nodes, present=True, quarantined_at__isnull=False).select_related("node")
    return [*map(_silent, silent), *map(_quarantined, gpus.order_by("node__name", "index"))]


def _silent(node: Node) -> Alarm:
    assert node.last_seen_at is not None  # noqa: S101  # the query asks for it
    since = f"{timezone.localtime(node.last_seen_at):%d %b, %H:%M %Z}"
    key = f"node {node.pk} {node.last_seen_at.timestamp():.0f}"
    return Alarm(
        key, f"Node {node.name} has said nothing since {since}.", reverse("monitoring:admin-node", args=[node.pk])
    )


def _quarantined(gpu: Gpu) -> Alarm:
    assert gpu.quarantined_at is not None  # noqa: S101  # the query asks for it
    key = f"gpu {gpu.pk} {gpu.quarantined_at.timestamp():.0f}"
    reason = " ".join(gpu.quarantine_reason.split()).rstrip(".")  # an agent's words: no second line in a mail's head
    text = f"{gpu.label} of {gpu.node.name} is out of use: {reason}."
    return Alarm(key, text, reverse("monitoring:admin-node", args=[gpu.node_id]))


def tell(now: datetime | None = None) -> int:
    """Mails all admins what they were not told yet, one mail an hour at most; how many mails. May be repeated."""
    present = alarms(now)
    keys, told = {each.key for each in present}, set(cache.get(TOLD, ()))
    new = [each for each in present if each.key not in told]
    admins = User.objects.filter(is_staff=True, is_active=True).exclude(email="")
    to = sorted(set(admins.values_list("email", flat=True))) if new and not settings.DEMO else []
    if not to or not cache.add(RESTING, True, REST.total_seconds()):
        return 0
    subject = new[0].text.rstrip(".") if len(new) == 1 else f"{len(new)} things in the lab need an admin"
    text = render_to_string("cluster/mail_alarms.txt", {"alarms": new, "site": settings.SITE_URL})
    try:
        for address in to:
            mail.delay(f"Schedulearn: {subject}"[:150], text, address)
    except OperationalError:
        log.error("Admins could not be told of %s: is Redis up?", subject)
        return 0
    cache.set(TOLD, tuple(keys), REMEMBERED.total_seconds())
    return len(to)
