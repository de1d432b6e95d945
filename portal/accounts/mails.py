"""The mails about accounts, as data; ``portal/sentences/mails.py`` has their texts."""

from dataclasses import dataclass
from typing import ClassVar

from django.urls import reverse

from portal.accounts.outbox import send_mail
from scheduling.messages import Message


@dataclass(frozen=True)
class PasswordReset(Message):
    code: ClassVar[str] = "password_reset"
    user: str
    path: str
    """Path of the page with the token."""


@dataclass(frozen=True)
class Invitation(Message):
    code: ClassVar[str] = "invitation"
    inviter: str
    path: str
    """Path of the page with the token."""
    days: int
    """How long it is valid."""


def send_reset_mail(*, user_name: str, to: str, token: str, uid: str) -> None:
    path = reverse("accounts:password-reset-confirm", args=[uid, token])
    send_mail(PasswordReset(user_name, path), to)
