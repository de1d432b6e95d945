"""Ends the live connections of a user who signs out: they check their session at once."""

from typing import Any

from django.contrib.auth.signals import user_logged_out
from django.dispatch import receiver

from portal.wake import notify, user_channel


@receiver(user_logged_out, dispatch_uid="live.signed_out")
def signed_out(user: Any, **_: Any) -> None:
    if user is not None:
        notify(user_channel(user.pk))
