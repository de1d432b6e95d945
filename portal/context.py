"""The variables that every template can use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from portal.accounts.permissions import is_admin, signed_in
from portal.cluster import unconfined
from portal.cluster.models import LIVE_NODE, Node
from portal.cluster.slots import lab_noun
from portal.help_pages import help_address
from portal.notifications.services import unread_count

Definition = tuple[str, str, str, str | tuple[str, ...]]
"""The name of the URL, the text, the icon, and the prefixes of the paths of an entry of the navigation."""

MAIN_NAVIGATION: tuple[Definition, ...] = (
    ("home", "Home", "home", "/"),
    ("projects:list", "Projects", "folder", "/projects/"),
    ("jobs:list", "Jobs", "jobs", "/jobs/"),
    ("jobs:environments", "Environments", "chip", "/environments/"),
    ("projects:gallery", "Gallery", "star", "/gallery/"),
    ("monitoring:nodes", "Cluster", "node", ("/nodes/", "/gpus/", "/reservations/", "/admin/nodes/")),
    ("usage:usage", "Usage", "chart", "/usage/"),
)
ADMIN_NAVIGATION: Definition = ("scheduler:admin", "Admin", "gear", "/admin/")
BANNER_DISMISSED = "process_banner_dismissed"
"""The key of the session of an admin who has dismissed the banner about plain processes."""
PERSONAL_NAVIGATION: tuple[Definition, ...] = (
    ("accounts:profile", "Your account", "user", ""),
    ("notifications:preferences", "Notifications", "bell", ""),
    ("accounts:tokens", "API tokens", "key", ""),
)


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    url: str
    text: str
    icon: str
    current: bool


def site(request: HttpRequest) -> dict[str, Any]:
    user = getattr(request, "user", AnonymousUser())
    if not user.is_authenticated:
        return {"sign_in_url": reverse("accounts:sign-in"), "demo_lab": settings.DEMO, "help_url": _help_url(request)}
    shown = (*MAIN_NAVIGATION, ADMIN_NAVIGATION) if user.is_staff else MAIN_NAVIGATION
    return {
        "navigation": _navigation(shown, request.path),
        "personal_navigation": _navigation(PERSONAL_NAVIGATION, request.path),
        "sign_out_url": reverse("accounts:sign-out"),
        "demo_lab": settings.DEMO,
        "help_url": _help_url(request),
        "unread_notices": SimpleLazyObject(lambda: unread_count(signed_in(request))),
        "process_runtime": SimpleLazyObject(_has_process_node),
        "process_banner": SimpleLazyObject(lambda: _needs_process_banner(request)),
        "slot_noun": SimpleLazyObject(lab_noun),
        "lab_is_shared": SimpleLazyObject(unconfined.is_lab_shared),
        "no_one_can_join": SimpleLazyObject(unconfined.no_one_can_join),
        "process_refused": SimpleLazyObject(lambda: unconfined.is_refused(Node.Runtime.PROCESS)),
    }


def _help_url(request: HttpRequest) -> str:
    found = request.resolver_match  # None where nothing is at the address
    return help_address(found.view_name if found else "")


def _needs_process_banner(request: HttpRequest) -> bool:
    """Return whether an admin should read that jobs run as plain processes, and has not dismissed that in this session."""
    return is_admin(request.user) and not request.session.get(BANNER_DISMISSED) and _has_process_node()


def _has_process_node() -> bool:
    return Node.objects.filter(LIVE_NODE, runtime=Node.Runtime.PROCESS).exists()


def _navigation(definitions: Sequence[Definition], path: str) -> list[NavigationEntry]:
    """Return the entries for a page; of those with a prefix of its path, the one with the longest is current."""
    lengths = [_matching_length(prefix, path) for *_, prefix in definitions]
    return [
        NavigationEntry(reverse(name), text, icon, bool(length) and length == max(lengths))
        for (name, text, icon, _), length in zip(definitions, lengths, strict=True)
    ]


def _matching_length(prefix: str | tuple[str, ...], path: str) -> int:
    """Return the length of the longest prefix that the path has; the home page has no other pages below it."""
    prefixes = (prefix,) if isinstance(prefix, str) else prefix
    return max(
        len(each) if path == each or (each != "/" and each and path.startswith(each)) else 0 for each in prefixes
    )
