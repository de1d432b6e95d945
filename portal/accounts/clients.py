"""Who wrong passwords are counted for: the address that a request comes from, and the account that it names."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest

from portal.accounts.models import User
from portal.names import name_key

MAX_COUNTED_CHARACTERS = 255
"""The longest name under which wrong passwords are counted."""


def client_ip(request: HttpRequest) -> str:
    """Return the address by which wrong passwords are counted.

    Any client can send X-Forwarded-For. It is used only behind our own proxy, and then only its last entry, which the
    proxy added.
    """
    if settings.BEHIND_PROXY and (forwarded := request.META.get("HTTP_X_FORWARDED_FOR", "")):
        return str(forwarded).rsplit(",", 1)[-1].strip()
    return str(request.META.get("REMOTE_ADDR", ""))


def counted_name(request: HttpRequest, credentials: Mapping[str, Any] | None) -> str:
    """Return the name by which wrong passwords are counted: one for all ways to type the name or address of an account."""
    typed = str((credentials or {}).get("username") or request.POST.get("username", ""))
    try:
        return counted_name_of(User.objects.get_by_natural_key(typed))
    except User.DoesNotExist:
        return name_key(typed)[:MAX_COUNTED_CHARACTERS]


def counted_name_of(user: User) -> str:
    """Return the name by which wrong passwords for this account are counted."""
    return user.name_key[:MAX_COUNTED_CHARACTERS]
