"""The admin overview: what needs an admin first, then every page of admins with its counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import AuditEntry, Limit
from portal.accounts.permissions import admin_required
from portal.accounts.services import active_people, open_invites
from portal.cluster import unconfined
from portal.cluster.attention import Item, lab_attention
from portal.cluster.models import LIVE_NODE, Node
from portal.context import BANNER_DISMISSED
from portal.environments.attention import failed_environments
from portal.jobs.models import Job, JobState, TimeExtension
from portal.jobs.time_extensions.attention import open_time_extensions
from portal.notifications.checks import problem_of_site
from portal.notifications.models import Delivery
from portal.scheduler import services
from portal.ui import counted

HIDDEN = "hidden_notices"
"""The key of the session under which the notices are that an admin has hidden."""
UNREAD_MAIL = ("console", "dummy", "locmem", "filebased")
"""Django's mail backends that send nothing."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an admin may have chosen: it can be hidden until the next sign-in."""

    key: str
    item: Item


@admin_required
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    nodes = list(Node.objects.filter(LIVE_NODE).only("approved_at", "problems"))
    hidden = {*request.session.get(HIDDEN, ())}
    if not request.session.get(BANNER_DISMISSED):
        hidden.add("processes")  # the banner at the top of every page has it
    states = {row["state"]: row["count"] for row in Job.objects.order_by().values("state").annotate(count=Count("pk"))}
    about = {
        "urgent": [*lab_attention(now), *failed_environments(), *open_time_extensions()],
        "notices": [notice for notice in notices() if notice.key not in hidden],
        "nodes": len(nodes),
        "nodes_waiting": sum(node.approved_at is None for node in nodes),
        "nodes_unfit": sum(any(each.get("blocking") for each in node.problems) for node in nodes),
        "users": active_people().count(),
        "groups": Group.objects.count(),
        "limits": Limit.objects.count(),
        "invitations": open_invites().count(),
        "given_up": Delivery.objects.filter(status=Delivery.Status.GAVE_UP, lead=None).count(),
        "time_requests": TimeExtension.objects.open().count(),
        "policy": services.title_of(services.current_config().policy),
        "queued": states.get(JobState.QUEUED, 0),
        "running": states.get(JobState.RUNNING, 0),
        "last_entry": _last_entry(),
        "trouble": services.last_failure(),
    }
    return render(request, "scheduler/admin.html", about)


def _last_entry() -> datetime | None:
    return AuditEntry.objects.order_by("-pk").values_list("at", flat=True).first()


def notices() -> Iterator[Notice]:
    """Yield what an admin should know, and may have chosen."""
    if Node.objects.filter(LIVE_NODE, runtime=Node.Runtime.PROCESS).exists():
        yield Notice("processes", _about_processes())
    if not sends_mail() and not settings.DEMO:
        where = "printed to the terminal" if ".console." in settings.EMAIL_BACKEND else "not sent"
        detail = (
            f"Links to reset passwords, alarms and other mails are {where}. Set EMAIL_BACKEND and EMAIL_HOST for the portal, "
            "then restart it. Until then, create such links under Users."
        )
        users = reverse("accounts:users")
        yield Notice("mail", Item("mail", "mail", "blue", "Mail is not set up", detail, "See users", users))
    elif problem := problem_of_site():
        detail = (
            "Set SITE_URL to the address that people enter, and ALLOWED_HOSTS to its host, then restart the portal."
        )
        yield Notice(
            "site", Item("site", "alert", "amber", problem, detail, "See mail", reverse("notifications:admin"))
        )
    if count := open_invites().filter(created_by__isnull=False).count():
        text = counted(count, "invitation is open,invitations are open")
        detail = "Whoever has such a link can create an account. Revoke those that are no longer needed."
        path = reverse("accounts:invites")
        yield Notice("invitations", Item("invitations", "mail", "blue", text, detail, "See invitations", path))


def _about_processes() -> Item:
    if unconfined.is_refused(Node.Runtime.PROCESS):
        text = "No new job starts on nodes that run jobs as plain processes"
        detail = (
            "Several people share this lab. Install Docker Engine there, remove these nodes, and let them join again."
        )
        tone = "amber"
    else:
        text, tone = "Jobs run as plain processes, without containers", "blue"
        detail = (
            "Several people share this lab: each can see and change everything."
            if unconfined.is_lab_shared()
            else "That is for a single person. Install Docker Engine before you invite others."
        )
    return Item("processes", "info", tone, text, detail, "See the nodes", reverse("monitoring:admin-nodes"))


def sends_mail() -> bool:
    return not any(f".backends.{name}." in settings.EMAIL_BACKEND for name in UNREAD_MAIL)


@admin_required
@require_POST
def hide_notice(request: HttpRequest, key: str) -> HttpResponse:
    """Hide a notice for the rest of an admin's session."""
    request.session[HIDDEN] = sorted({*request.session.get(HIDDEN, []), key})
    return redirect("scheduler:admin")
