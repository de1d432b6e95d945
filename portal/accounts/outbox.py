"""What the apps have sent to people: ``portal.notifications`` stores it, in the transaction of the caller, and delivers it."""

from collections.abc import Iterable

from django.dispatch import Signal

from portal.accounts.models import User
from scheduling.messages import Message

mail_requested = Signal()
"""Sent with the ``message`` of a mail and the address ``to``."""
notice_requested = Signal()
"""Sent with the ``users``, the ``kind``, the ``message`` and the ``path`` of a notice."""


def send_mail(message: Message, to: str) -> None:
    """Send a mail that ``portal.sentences.mails`` knows, whatever its reader chose to be notified of: it may have secrets."""
    mail_requested.send(sender=Message, message=message, to=to)


def notify(users: Iterable[User], kind: str, message: Message, path: str) -> None:
    """Notify users, in the portal and by the channels that they chose for the kind."""
    notice_requested.send(sender=Message, users=users, kind=kind, message=message, path=path)
