"""Mails that processes of the previous release have queued. Present ones are in the outbox (``portal.accounts.outbox``)."""

from typing import Any

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail

from portal.sentences.mails import mail_of

RETRIES: dict[str, Any] = {
    "autoretry_for": (OSError,),
    "retry_backoff": True,
    "max_retries": 5,
    "ignore_result": True,
}


@shared_task(**RETRIES)
def send(message: dict[str, Any], to: str) -> None:
    """Send a mail, given as a message for ``portal.sentences.mails``."""
    subject, text = mail_of(message)
    send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])


@shared_task(**RETRIES)
def mail(subject: str, text: str, to: str) -> None:
    """Send a mail that a process of the release before it has queued as text."""
    send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])
