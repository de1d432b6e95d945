"""Where a request comes from."""

from django.conf import settings
from django.http import HttpRequest


def client_ip(request: HttpRequest) -> str:
    """The address that sign-in counts wrong passwords by.

    Anybody can write X-Forwarded-For. Only behind our own proxy does it count, and there only its last entry,
    which the proxy added.
    """
    if settings.BEHIND_PROXY and (forwarded := request.META.get("HTTP_X_FORWARDED_FOR", "")):
        return str(forwarded).rsplit(",", 1)[-1].strip()
    return str(request.META.get("REMOTE_ADDR", ""))
