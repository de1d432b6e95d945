"""Writes notices, in the transaction of what they are about, and wakes the worker when it commits."""

import json
import logging
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from portal.accounts.models import User
from portal.environments.credentials import seal
from portal.jobs.models import Job
from portal.notifications import kinds
from portal.notifications.models import Delivery, Notice
from portal.wake import notices_channel, notify
from scheduling.messages import Message

logger = logging.getLogger(__name__)


def add_for_job(job: Job, kind: str, event: str, content: Message) -> None:
    """Store what happened to a job, for its owner and for programs. With the kind ``EVENT`` it is for programs only."""
    user = None if kind == kinds.EVENT else job.submitted_by_id
    Notice.objects.create(
        kind=kind, event=event, user_id=user, project_id=job.project_id, job=job, content=content.data()
    )
    wake_worker()


def add_for_users(users: Iterable[User], kind: str, content: Message, path: str = "") -> None:
    """Store a notice for each of these users."""
    Notice.objects.bulk_create([Notice(kind=kind, user=user, content=content.data(), path=path) for user in users])
    wake_worker()


def add_mail(message: Message, to: str) -> None:
    """Store a mail to an address. Its content is encrypted until it is sent: it may have a link that opens an account."""
    now = timezone.now()
    with transaction.atomic():
        notice = Notice.objects.create(
            kind=kinds.ACCOUNT,
            content={"code": message.code},
            sealed_mail=seal(json.dumps(message.data())),
            expanded_at=now,
        )
        Delivery.objects.create(notice=notice, address=to, due_at=now)
        wake_worker()


def add_trouble(user: User, content: Message, path: str) -> Notice:
    """Notify a user in the portal, and only there, that something could not be delivered."""
    now = timezone.now()
    notice = Notice.objects.create(
        kind=kinds.TROUBLE, user=user, content=content.data(), path=path, expanded_at=now, shown=True
    )
    wake_readers([user.pk])
    return notice


def wake_worker() -> None:
    """Have the outbox emptied as soon as the transaction has committed. In the small size the next tick does it."""
    if settings.LAB:
        transaction.on_commit(_start_worker, robust=True)


def _start_worker() -> None:
    from portal.notifications.tasks import deliver  # noqa: PLC0415  # it imports this module

    try:
        deliver.delay()
    except OperationalError:
        logger.warning("The worker could not be woken: is Redis running? Messages wait for its next tick.")


def wake_readers(user_ids: Iterable[Any]) -> None:
    """Make open pages of these users show their unread notices again."""
    for user_id in user_ids:
        transaction.on_commit(lambda user_id=user_id: notify(notices_channel(user_id)), robust=True)  # type: ignore[misc]
