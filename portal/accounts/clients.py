"""The address that a request comes from."""

from django.conf import settings
from django.http import HttpRequest


def client_ip(request: HttpRequest) -> str:
    """Return the address by which wrong passwords are counted.

    Any client can send X-Forwarded-For. It is used only behind our own proxy, and then only its last entry, which the
    proxy added.
    """
    if settings.BEHIND_PROXY and (forwarded := request.META.get("HTTP_X_FORWARDED_FOR", "")):
        return str(forwarded).rsplit(",", 1)[-1].strip()
    return str(request.META.get("REMOTE_ADDR", ""))
