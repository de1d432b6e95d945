"""Mail, which may take long or fail."""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail
from django.urls import reverse
from kombu.exceptions import OperationalError

from portal.sentences.mails import mail_of
from scheduling.messages import Message

log = logging.getLogger(__name__)

RETRIES: dict[str, Any] = {
    "autoretry_for": (OSError,),
    "retry_backoff": True,
    "max_retries": 5,
    "ignore_result": True,
}


@dataclass(frozen=True)
class PasswordReset(Message):
    code: ClassVar[str] = "password_reset"
    user: str
    path: str
    """Path of the page with the token."""


def send_reset_mail(*, user_name: str, to: str, token: str, uid: str) -> None:
    path = reverse("accounts:password-reset-confirm", args=[uid, token])
    try:
        send.delay(PasswordReset(user_name, path).data(), to)
    except OperationalError:
        log.error("A password reset mail could not be queued: is Redis running?")


@shared_task(**RETRIES)
def send(message: dict[str, Any], to: str) -> None:
    """Send a mail, given as a message for ``portal.sentences.mails``."""
    subject, text = mail_of(message)
    send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])


@shared_task(**RETRIES)
def mail(subject: str, text: str, to: str) -> None:
    """Send a mail that a process of the previous release has queued."""
    send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])
