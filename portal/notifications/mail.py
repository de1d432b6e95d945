"""Sends mails over the portal's mail server, and remembers what it answered."""

import smtplib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.core.mail import EmailMessage
from django.utils import timezone

from portal.notifications.models import MailStatus

PRINTED = ("console", "dummy")
"""Django's mail backends that only print mails, or nothing."""
PERMANENT = (smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused, smtplib.SMTPDataError)
"""Errors about one mail, which are final if the server's code begins with 5."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail, ready to be sent."""

    uid: UUID
    to: str
    subject: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


def is_delivered() -> bool:
    """Return whether mails reach people. Otherwise only those of accounts are made, whose links the log then has."""
    return not any(f".backends.{name}." in settings.EMAIL_BACKEND for name in PRINTED)


def message_id(uid: UUID) -> str:
    """Return the id of a mail, the same each time that it is sent: a mail server or reader can drop a repetition."""
    return f"<{uid}@{urlsplit(settings.SITE_URL).hostname}>"


def send(mail: Mail) -> None:
    """Send a mail. Raises OSError, which SMTP's errors are, too."""
    headers = {"Message-ID": message_id(mail.uid), "Auto-Submitted": "auto-generated", **mail.headers}
    EmailMessage(mail.subject, mail.text, settings.DEFAULT_FROM_EMAIL, [mail.to], headers=headers).send()


def is_final(error: Exception) -> bool:
    """Return whether the mail server will never take this mail: an unknown address, for instance."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(500 <= code < 600 for code, _ in error.recipients.values())
    return isinstance(error, PERMANENT) and 500 <= getattr(error, "smtp_code", 0) < 600


def describe(error: Exception) -> str:
    """Return an error of the mail server as a sentence for an admin. SMTP errors never quote the password."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, reply = next(iter(error.recipients.values()))
        return _reply(code, reply)
    if isinstance(error, smtplib.SMTPResponseException):
        return _reply(error.smtp_code, error.smtp_error)
    return f"The mail server could not be reached: {str(error) or type(error).__name__}."[:300]


def _reply(code: int, reply: bytes | str) -> str:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return f"The mail server answered {code} {' '.join(text.split())}."[:300]


def record_answer(error: str = "") -> None:
    """Remember for the admins' page what the mail server answered."""
    now = timezone.now()
    changed = {"last_error_at": now, "last_error": error} if error else {"last_sent_at": now}
    MailStatus.objects.update_or_create(pk=MailStatus.ONLY, defaults=changed)
