"""Celery tasks: one sends what is due, one deletes what is old. Both may be repeated and may run at once."""

import logging
import time
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from portal.notifications import delivery
from portal.notifications.models import Delivery, Notice

logger = logging.getLogger(__name__)
KEEP_NOTICES, KEEP_DELIVERIES = timedelta(days=90), timedelta(days=30)
MAX_SECONDS = 60
"""Of a task: in the small size it runs between other periodic tasks, and the next one goes on."""


@shared_task(ignore_result=True)
def deliver() -> None:
    """Send batches until nothing is due, or for a minute."""
    until = time.monotonic() + MAX_SECONDS
    while delivery.tick():
        if time.monotonic() > until:
            logger.info("messages are still due after %s s; the next task goes on", MAX_SECONDS)
            return


@shared_task(ignore_result=True)
def tidy() -> None:
    """Delete notices and deliveries of the past. What still waits stays."""
    now = timezone.now()
    ended = Delivery.objects.exclude(status=Delivery.Status.WAITING).filter(closed_at__lt=now - KEEP_DELIVERIES)
    ended.filter(lead__isnull=False).delete()
    ended.filter(members=None).delete()
    old = Notice.objects.filter(at__lt=now - KEEP_NOTICES).exclude(deliveries__status=Delivery.Status.WAITING)
    old.delete()
    Notice.objects.filter(shown=False, expanded_at__lt=now - timedelta(days=1), deliveries=None).delete()
