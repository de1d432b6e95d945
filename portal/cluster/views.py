"""The actions of admins on nodes, and what a new machine fetches."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import agent_package, findings, quarantine, services
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.cluster.node_state import state_of
from portal.editions import only_if_changed
from portal.refused import Refused

Act = Callable[[User, Node], object]


# --- adding a machine --------------------------------------------------------------------------------------------


@login_not_required
@require_safe
def install_script(request: HttpRequest) -> HttpResponse:
    """Send the install script to a machine that is not a node yet. It has no secret; the join command has its SHA-256."""
    return HttpResponse(agent_package.install_script(), content_type="text/x-shellscript; charset=utf-8")


@login_not_required
@require_safe
def agent_archive(request: HttpRequest, sha256: str) -> HttpResponse:
    package = agent_package.package()
    if sha256 != package.sha256:
        raise Http404
    return HttpResponse(package.content, content_type="application/gzip")


@admin_required
@require_POST
@never_cache
def add_node(request: HttpRequest) -> HttpResponse:
    """Show the join command for a new machine. Its token is not stored and cannot be shown again."""
    approves = request.POST.get("approves") == "on"
    return _show_join_command(
        request, services.issue_join_token(signed_in(request), approves=approves), approves=approves
    )


@admin_required
@require_POST
@never_cache
def rejoin_node(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the join command for a node whose token was revoked or lost."""
    node = get_object_or_404(Node.objects.filter(LIVE_NODE), pk=pk)
    return _show_join_command(request, services.issue_rejoin_token(signed_in(request), node), again=node)


def _show_join_command(
    request: HttpRequest, token: str, *, approves: bool = False, again: Node | None = None
) -> HttpResponse:
    certificate = agent_package.check_certificate(settings.SITE_URL)
    about = {
        "command": agent_package.join_command(settings.SITE_URL, token, certificate),
        "approves": approves,
        "again": again,
        "certificate": certificate,
        "only_here": agent_package.is_local_or_insecure(settings.SITE_URL),
        "token_id": services.token_id(token),
        "lifetime": services.JOIN_TOKEN_LIFETIME.total_seconds(),
    }
    return render(request, "cluster/add_node.html", about)


@admin_required
@require_safe
@never_cache
def added_node(request: HttpRequest, pk: int) -> HttpResponse:
    """Show whether the machine has joined and what it found. The page with the join command fetches it."""
    found = services.join_token_with_node(pk)
    if found is None:
        raise Http404
    token, node = found
    expired = node is None and token.expires_at <= timezone.now()
    about: dict[str, Any] = {"token_id": pk, "node": node, "expired": expired}
    if node is not None:
        about |= {
            "findings": findings.node_findings(node),
            "unfit": services.blocking_problems(node),
            "state": state_of(node),
        }
    return only_if_changed(request, render(request, "cluster/_added.html", about))


# --- actions --------------------------------------------------------------------------------------------------------


NODE_ACTIONS: dict[str, tuple[Act, str]] = {
    "approve": (services.approve, "{node} accepts jobs from now on."),
    "cordon": (services.cordon, "{node} accepts no new jobs. Running jobs continue."),
    "drain": (services.drain, "{node} is draining: it accepts no new jobs, and none stays on it."),
    "resume": (services.resume, "{node} accepts jobs again."),
    "rotate": (services.rotate_token, "{node} gets a new token with its next report. The old one works until then."),
    "revoke": (services.revoke_token, "The token of {node} is revoked. Its jobs restart elsewhere."),
    "remove": (services.remove, "{node} is no longer part of the lab. You can stop its agent."),
}


@admin_required
@require_POST
def change_node(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    node = get_object_or_404(Node.objects.filter(LIVE_NODE), pk=pk)
    name = node.name
    act, done = NODE_ACTIONS[what]
    try:
        act(signed_in(request), node)
        messages.success(request, done.format(node=name))
    except Refused as refusal:
        messages.error(request, refusal.message)
    back_to_node = request.POST.get("back") == "node" and what != "remove"
    return redirect("monitoring:admin-node", pk) if back_to_node else redirect("monitoring:admin-nodes")


@admin_required
@require_POST
def change_gpu(request: HttpRequest, pk: int, gpu: int, what: str) -> HttpResponse:
    row = get_object_or_404(Gpu.objects.filter(node__removed_at=None, present=True), pk=gpu, node=pk)
    try:
        if what == "release":
            quarantine.release(signed_in(request), row)
            messages.success(request, f"{row.label} is in use again.")
        else:
            quarantine.quarantine_by_admin(signed_in(request), row)
            messages.success(request, f"{row.label} is in quarantine: it gets no new jobs. A running job continues.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("monitoring:admin-node", pk)
