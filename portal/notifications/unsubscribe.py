"""Links with which a mail's reader stops mails of its kind without signing in."""

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.urls import reverse

from portal.accounts.models import User
from portal.notifications.kinds import BY_KEY
from portal.notifications.models import Preferences

SALT = "portal.notifications.unsubscribe"
ALL = "all"


def link(user_id: int, kind: str) -> str:
    """Return the link for mails of a kind, or of all kinds with ``ALL``. It does not expire: mails are kept for years."""
    token = signing.Signer(salt=SALT).sign_object([user_id, kind])
    return settings.SITE_URL + reverse("notifications:unsubscribe", args=[token])


def read(token: str) -> tuple[User, str] | None:
    """Return whose mails of which kind a link is about; None for one that this portal did not sign."""
    try:
        user_id, kind = signing.Signer(salt=SALT).unsign_object(token)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    user = User.objects.filter(pk=user_id, is_active=True).first()
    return (user, kind) if user is not None and (kind == ALL or kind in BY_KEY) else None


@transaction.atomic
def unsubscribe(user: User, kind: str) -> None:
    """Stop the mails of a kind, or of all kinds. Nothing else changes, and it may be repeated."""
    row, _ = Preferences.objects.select_for_update().get_or_create(user=user)
    stopped = BY_KEY if kind == ALL else [kind]
    row.mail_off = sorted({*row.mail_off, *stopped})
    row.save(update_fields=["mail_off"])
