"""The screens on the wall, and the admin page with their links."""

import hashlib
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.staticfiles import finders
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.clients import client_ip
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import reservations
from portal.cluster.slots import node_nouns
from portal.forecast.services import forecasts_of
from portal.home import wall as walls
from portal.home.models import WallLink
from portal.jobs.queue import in_queue_order, waiting_jobs
from portal.monitoring.board import Viewer, board_for
from portal.monitoring.board_page import board_context
from portal.names import has_invisible_characters
from portal.refused import Refused

RESERVATIONS_SHOWN = 4
RETRY_AFTER_SECONDS = 60
LARGE_FROM, DENSE_FROM, DENSER_FROM, NO_STRIPS_FROM = 5, 10, 21, 520
"""From so many machines on, each is drawn smaller, and from so many GPUs on without strips, so that all fit on a screen."""
SCREEN_FILES = (
    "css/tokens.css",
    "css/fonts.css",
    "css/base.css",
    "css/components.css",
    "css/hues.css",
    "monitoring/board.css",
    "home/wall.css",
    "home/wall.js",
)
"""What the page loads, in this order."""


@login_not_required
@require_safe
def wall(request: HttpRequest, secret: str) -> HttpResponse:
    """Show the screen. Its script fetches ``wall_now`` every few seconds."""
    return _shown(request, secret, "home/wall.html")


@login_not_required
@require_safe
def wall_now(request: HttpRequest, secret: str) -> HttpResponse:
    """Show the part of the screen that changes."""
    return _shown(request, secret, "home/_wall.html")


def _shown(request: HttpRequest, secret: str, template: str) -> HttpResponse:
    now = timezone.now()
    try:
        link = walls.find_link(secret, client_ip(request), now)
    except walls.TooManyRequestsError:
        text = "This screen is shown too often. It continues in a minute.\n"
        refusal = HttpResponse(text, status=429, content_type="text/plain; charset=utf-8")
        refusal["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return _private(refusal)
    if link is None:
        raise Http404
    with timezone.override(timezone.get_default_timezone()):  # a screen shows the time of the lab, whoever set it up
        return _private(render(request, template, _wall_context(request, link, secret, now)))


def _private(response: HttpResponse) -> HttpResponse:
    """Keep the address out of caches, search engines and other sites."""
    response["Cache-Control"] = "private, no-store"
    response["X-Robots-Tag"] = "noindex, nofollow"
    response["Referrer-Policy"] = "no-referrer"
    return response


def _wall_context(request: HttpRequest, link: WallLink, secret: str, now: datetime) -> dict[str, Any]:
    board = board_for(Viewer(None, link.names_people), now)
    waiting = waiting_jobs()
    first = list(in_queue_order(waiting.only("state"))[:1])
    forecast = next(iter(forecasts_of(first).values()), None)
    reserved = list(reservations.active_or_upcoming(now).prefetch_related(None)[:RESERVATIONS_SHOWN])
    nouns = node_nouns({row.node_id for row in reserved})
    return {
        **board_context(board, "person"),
        "link": link,
        "now": now,
        "zone": settings.TIME_ZONE,
        "waiting": waiting.count(),
        "next_start": forecast.short if forecast and not forecast.stale else "",
        "reservations": [(row, nouns[row.node_id], row.start <= now) for row in reserved],
        "density": _density(len(board.machines), board.total),
        "theme": "light" if request.GET.get("theme") == "light" else "dark",
        "address": reverse("home:wall-now", args=[secret]),
        "files": SCREEN_FILES,
        "version": _version(),
    }


def _density(machines: int, gpus: int) -> str:
    """Return the classes of the screen."""
    if machines < DENSE_FROM:
        return "huge" if machines < LARGE_FROM and gpus <= 8 * machines else "large"
    size = "denser" if machines >= DENSER_FROM else "dense"
    return f"{size} densest" if gpus >= NO_STRIPS_FROM else size


@cache
def _version() -> str:
    """Return what changes when the portal is upgraded: a screen that runs for months then loads its page again."""
    parts = [Path(str(finders.find(name))).read_bytes() for name in SCREEN_FILES]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


# --- for admins --------------------------------------------------------------------------------------------------


class WallLinkForm(forms.Form):
    name = forms.CharField(max_length=80, label="Where it hangs", help_text="Such as “Corridor, 2nd floor”.")
    names_people = forms.BooleanField(
        required=False,
        label="Name the people who hold GPUs",
        help_text="Without this, the screen only shows which ones are in use.",
    )

    def clean_name(self) -> str:
        name = " ".join(self.cleaned_data["name"].split())
        if not name or has_invisible_characters(name):
            raise forms.ValidationError("Use letters, digits and signs that can be seen.")
        return name


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def links(request: HttpRequest) -> HttpResponse:
    """Show the links; create one, whose address is shown once."""
    form = WallLinkForm(request.POST) if request.method == "POST" else WallLinkForm(initial={"names_people": True})
    address = ""
    if request.method == "POST" and form.is_valid():
        try:
            _, secret = walls.create_link(signed_in(request), **form.cleaned_data)
            address = settings.SITE_URL.rstrip("/") + reverse("home:wall", args=[secret])
            form = WallLinkForm(initial={"names_people": True})
        except Refused as refusal:
            form.add_error(None, refusal.message)
    about = {"links": walls.live_links(), "form": form, "address": address}
    return render(request, "home/walls.html", about, status=400 if form.errors else 200)


@admin_required
@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    link = get_object_or_404(WallLink, pk=pk)
    walls.revoke_link(signed_in(request), link)
    messages.success(request, f"The link of {link.name} is revoked: the screen shows nothing from its next refresh on.")
    return redirect("home:walls")
