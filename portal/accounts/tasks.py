"""Mail, which may take long or fail."""

import logging

from celery import shared_task
from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string
from django.urls import reverse
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def send_reset_mail(*, user_name: str, to: str, token: str, uid: str) -> None:
    path = reverse("accounts:password-reset-confirm", args=[uid, token])
    text = render_to_string("accounts/mail_reset.txt", {"user_name": user_name, "link": settings.SITE_URL + path})
    try:
        mail.delay("Choose a new password for Schedulearn", text, to)
    except OperationalError:
        log.error("A password reset mail could not be queued: is Redis running?")


@shared_task(autoretry_for=(OSError,), retry_backoff=True, max_retries=5, ignore_result=True)
def mail(subject: str, text: str, to: str) -> None:
    send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])
