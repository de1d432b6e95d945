"""A check at start: links in mails and messages begin with SITE_URL, so it must be an address that their readers reach."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import Warning as CheckWarning
from django.core.checks import register

from portal.notifications.mail import is_delivered

LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104  # no address that is listened at


@register("notifications")
def links_can_be_followed(**_: Any) -> list[CheckWarning]:
    problem = problem_of_site()
    return (
        [CheckWarning(problem, hint="Set SITE_URL, and ALLOWED_HOSTS to its host.", id="notifications.W001")]
        if problem
        else []
    )


def problem_of_site() -> str:
    """Return why links in mails lead nowhere, as a sentence; empty if they seem right."""
    host = urlsplit(settings.SITE_URL).hostname or ""
    if host in LOCAL and (is_delivered() or settings.LAB):
        return f"Links in mails and messages begin with {settings.SITE_URL}, which only this machine can open."
    if settings.ALLOWED_HOSTS != ["*"] and not any(_is_allowed(host, each) for each in settings.ALLOWED_HOSTS):
        return f"Links in mails and messages begin with {settings.SITE_URL}, but ALLOWED_HOSTS does not have {host}."
    return ""


def _is_allowed(host: str, pattern: str) -> bool:
    return pattern.strip("[]") == host or (pattern.startswith(".") and f".{host}".endswith(pattern))
