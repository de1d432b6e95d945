"""The home page, and its parts, each of which is refreshed on its own."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.context import BANNER_DISMISSED
from portal.editions import sent_if_changed
from portal.environments.models import Environment, NodeEnvironment
from portal.errors import page_before
from portal.home.attention import attention_of, mark_seen
from portal.home.queue import queue_for
from portal.home.runs import live_attempts, runs_of
from portal.jobs.models import Job, JobState
from portal.monitoring.board import ColourBy, Viewer, board_for
from portal.monitoring.board_page import board_context
from portal.projects.models import CodeVersion, Project

COLOURS_COOKIE = "colours"
YEAR_SECONDS = 365 * 86_400


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    user, now = signed_in(request), timezone.now()
    live = live_attempts(user, now)
    runs = runs_of(user, live)
    about = {
        **_cluster(request, user, now),
        "queue": queue_for(user),
        "runs": runs,
        "attention": attention_of(user, live, now),
        "steps": None if any(run.job.state == JobState.SUCCEEDED for run in runs.recent) else _first_steps(user),
        "now": now,
    }
    response = render(request, "home/home.html", about)
    if request.GET.get("by") in ("person", "project"):
        response.set_cookie(
            COLOURS_COOKIE,
            request.GET["by"],
            max_age=YEAR_SECONDS,
            httponly=True,
            samesite="Lax",
            secure=request.is_secure(),
        )
    return response


def _first_steps(user: User) -> dict[str, Any] | None:
    """Return which first steps a new user has done; None once one of their jobs has succeeded."""
    mine = Job.objects.filter(submitted_by=user)
    if mine.filter(state=JobState.SUCCEEDED).exists():
        return None
    projects = Project.objects.filter(memberships__user=user, archived_at__isnull=True)
    return {
        "project": projects.first(),
        "code": CodeVersion.objects.light().filter(project__in=projects).order_by("-created_at").first(),
        "job": mine.exists(),
    }


# --- parts -------------------------------------------------------------------------------------------------------


def _cluster(request: HttpRequest, user: User, now: datetime) -> dict[str, Any]:
    known = Environment.objects.visible_to(user).filter(retired=False)
    places = NodeEnvironment.objects.filter(
        node__removed_at=None, node__approved_at__isnull=False, environment__in=known
    )
    unready = places.exclude(state=NodeEnvironment.State.READY).select_related("node", "environment")
    rows = list(unready.order_by("environment__position", "node__name"))
    return {
        **board_context(board_for(Viewer.of(user), now), colours_of(request)),
        "preparing": [row for row in rows if row.state != NodeEnvironment.State.FAILED],
        "unprepared": [row for row in rows if row.state == NodeEnvironment.State.FAILED],
        "may_see_machines": user.is_admin,
    }


def _queue(request: HttpRequest, user: User, now: datetime) -> dict[str, Any]:
    return {"queue": queue_for(user)}


def _runs(request: HttpRequest, user: User, now: datetime) -> dict[str, Any]:
    return {"runs": runs_of(user, live_attempts(user, now))}


def _attention(request: HttpRequest, user: User, now: datetime) -> dict[str, Any]:
    return {"attention": attention_of(user, live_attempts(user, now), now)}


PARTS: dict[str, Callable[[HttpRequest, User, datetime], dict[str, Any]]] = {
    "cluster": _cluster,
    "queue": _queue,
    "runs": _runs,
    "attention": _attention,
}


@require_safe
@sent_if_changed
def part(request: HttpRequest, name: str) -> HttpResponse:
    """Show one part of the page."""
    if name not in PARTS:
        raise Http404
    user, now = signed_in(request), timezone.now()
    return render(request, f"home/_{name}.html", {**PARTS[name](request, user, now), "now": now})


def colours_of(request: HttpRequest) -> ColourBy:
    """Return whether squares are coloured by person or by project: as asked now, or the last time in this browser."""
    chosen = request.GET.get("by") or request.COOKIES.get(COLOURS_COOKIE)
    return "project" if chosen == "project" else "person"


# --- buttons -----------------------------------------------------------------------------------------------------


@require_POST
def seen(request: HttpRequest) -> HttpResponse:
    """Mark the failures that the page showed as seen; later ones are not."""
    user, now = signed_in(request), timezone.now()
    try:
        shown_at = parse_datetime(request.POST.get("until", ""))
    except ValueError:
        shown_at = None
    if shown_at is None or timezone.is_naive(shown_at):
        messages.warning(request, "The page was too old, so nothing was marked as seen. Press the button again.")
        return redirect("home")
    mark_seen(user, min(shown_at, now))
    return redirect("home")


@require_POST
def dismiss_banner(request: HttpRequest) -> HttpResponse:
    """Hide the banner about plain processes for the rest of an admin's session."""
    if not signed_in(request).is_admin:
        raise Http404
    request.session[BANNER_DISMISSED] = True
    return redirect(page_before(request))
