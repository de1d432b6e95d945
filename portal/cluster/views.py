"""Nodes: what everyone may see of them, and what admins do with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster import agent_package, findings, quarantine, services, unconfined
from portal.cluster import reservations as calendar
from portal.cluster.forms import ReservationForm
from portal.cluster.models import LIVE_NODE, Environment, Gpu, Node, NodeEnvironment, Reservation
from portal.cluster.slots import lab_noun, node_nouns, noun
from portal.refused import Refused

Verb = Callable[[User, Node], object]


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU as the page draws it."""

    gpu: Gpu
    job: Any
    """The job that holds it, None when it is free."""
    visible: bool
    mine: bool

    @property
    def css(self) -> str:
        if not self.gpu.healthy or self.gpu.quarantined_at is not None:
            return "bad"
        if self.gpu.outside and self.job is None:
            return "outside"
        if self.job is None:
            return "free"
        return "mine" if self.mine else "busy"


@dataclass(frozen=True, slots=True)
class Machine:
    """One node as the page draws it."""

    node: Node
    state: str
    """A key of ``ui.BADGES``."""
    said: str
    slots: tuple[Slot, ...]
    environments: tuple[NodeEnvironment, ...]

    @property
    def takes_work(self) -> bool:
        return self.state == "ready"

    @property
    def free(self) -> int:
        return sum(slot.job is None and slot.gpu.usable for slot in self.slots)

    @property
    def busy(self) -> int:
        return sum(slot.job is not None for slot in self.slots)


def state_of(node: Node, refused: bool = False) -> tuple[str, str]:
    """The one thing about a node that matters most now: a badge and its words. ``refused``: as the banner explains, it gets
    no new jobs because people would be kept apart too little there."""
    if node.approved_at is None:
        return "waiting", "waits for approval"
    if node.token_revoked_at is not None:
        return "revoked", "token revoked"
    if not services.is_online(node):
        return "lost", "not heard of" if node.last_seen_at else "never heard of"
    if node.draining:
        return "draining", "draining"
    if node.cordoned:
        return "held", "takes no new work"
    if not node.ready:
        return "preparing", "starting"
    return ("held", "takes no new jobs") if refused else ("ready", "up")


def machines_for(user: User) -> list[Machine]:
    nodes = services.nodes_with_gpus()
    refused = any(node.runtime == unconfined.PROCESS for node in nodes) and unconfined.is_refused(unconfined.PROCESS)
    known = services.known_jobs(user, nodes)
    machines = []
    for node in nodes:
        slots = []
        for gpu in node.gpus.all():
            job = services.holder(gpu)
            slots.append(
                Slot(gpu, job, job is not None and job.pk in known, job is not None and job.submitted_by_id == user.pk)
            )
        state = state_of(node, refused and node.runtime == unconfined.PROCESS)
        machines.append(Machine(node, *state, tuple(slots), tuple(node.environments.all())))
    return machines


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    machines = [machine for machine in machines_for(signed_in(request)) if machine.node.approved_at]
    about = {
        "machines": machines,
        "total": sum(len(machine.slots) for machine in machines),
        "unit": lab_noun(),
        "busy": sum(machine.busy for machine in machines),
        "preparing": [place for machine in machines for place in machine.environments if place.state != "ready"],
        "environments": Environment.objects.filter(retired=False),
    }
    return render(request, "cluster/nodes.html", about)


@require_http_methods(["GET", "HEAD", "POST"])
def reservations(request: HttpRequest) -> HttpResponse:
    """Everybody sees when which GPUs are whose; for whom by name only admins, and those it is for."""
    user = signed_in(request)
    if request.method == "POST" and not user.is_admin:
        raise Http404
    form = ReservationForm(request.POST if request.method == "POST" else None) if user.is_admin else None
    if form is not None and request.method == "POST" and form.is_valid():
        try:
            made = calendar.reserve(user, **form.cleaned_data)
            messages.success(
                request, f"Reserved: {made.name}. Jobs of others that can be stopped make room when it begins."
            )
            return redirect("cluster:reservations")
        except Refused as refusal:
            form.add_error(refusal.field or None, refusal.message)
    now = timezone.now()
    reserved = list(calendar.in_force(now))
    nouns = node_nouns({row.node_id for row in reserved})
    rows = [(row, nouns[row.node_id], user.pk in calendar.owners(row), row.start <= now) for row in reserved]
    about = {"rows": rows, "form": form, "zone": timezone.get_current_timezone_name(), "noun": lab_noun()}
    return render(request, "cluster/reservations.html", about, status=400 if form is not None and form.errors else 200)


@admin_required
@require_POST
def cancel_reservation(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Reservation, pk=pk)
    calendar.cancel(signed_in(request), row)
    messages.success(request, f"{row.name} is cancelled: its {lab_noun()}s are available to everyone again.")
    return redirect("cluster:reservations")


# --- for admins --------------------------------------------------------------------------------------------------


@admin_required
@require_safe
def admin_nodes(request: HttpRequest) -> HttpResponse:
    machines = machines_for(signed_in(request))
    waiting = [machine for machine in machines if machine.node.approved_at is None]
    about = {
        "machines": machines,
        "waiting": waiting,
        "quarantined": [slot for machine in machines for slot in machine.slots if slot.gpu.quarantined_at],
    }
    return render(request, "cluster/admin_nodes.html", about)


@admin_required
@require_safe
def admin_node(request: HttpRequest, pk: int) -> HttpResponse:
    """One machine: what its agent found, its GPUs, its token."""
    machine = next((each for each in machines_for(signed_in(request)) if each.node.pk == int(pk)), None)
    if machine is None:
        raise Http404
    about = {
        "machine": machine,
        "node": machine.node,
        "findings": findings.of(machine.node),
        "noun": noun(slot.gpu.kind for slot in machine.slots),
    }
    return render(request, "cluster/admin_node.html", about)


# --- adding a machine --------------------------------------------------------------------------------------------


@login_not_required
@require_safe
def install_script(request: HttpRequest) -> HttpResponse:
    """For a machine that is nobody yet. It holds no secret; the line to paste names its SHA-256."""
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
    """Shows the one line to paste on the new machine. The token in it is not kept and cannot be shown again."""
    approves = request.POST.get("approves") == "on"
    return _show_line(request, services.issue_join_token(signed_in(request), approves=approves), approves=approves)


@admin_required
@require_POST
@never_cache
def rejoin_node(request: HttpRequest, pk: int) -> HttpResponse:
    """The line for a machine of the lab whose token was revoked or lost."""
    node = get_object_or_404(Node.objects.filter(LIVE_NODE), pk=pk)
    return _show_line(request, services.issue_rejoin_token(signed_in(request), node), again=node)


def _show_line(request: HttpRequest, token: str, *, approves: bool = False, again: Node | None = None) -> HttpResponse:
    certificate = agent_package.own_certificate(settings.SITE_URL)
    about = {
        "line": agent_package.install_line(settings.SITE_URL, token, certificate),
        "approves": approves,
        "again": again,
        "certificate": certificate,
        "only_here": agent_package.is_only_here(settings.SITE_URL),
        "token_id": services.token_id(token),
        "lifetime": services.JOIN_TOKEN_LIFETIME.total_seconds(),
    }
    return render(request, "cluster/add_node.html", about)


@admin_required
@require_safe
@never_cache
def added_node(request: HttpRequest, pk: int) -> HttpResponse:
    """What the page with the line asks for every other second: has the machine joined, and what did it find."""
    found = services.joined_by(pk)
    if found is None:
        raise Http404
    token, node = found
    expired = node is None and token.expires_at <= timezone.now()
    about: dict[str, Any] = {"token_id": pk, "node": node, "expired": expired}
    if node is not None:
        about |= {"findings": findings.of(node), "unfit": services.blocking_problems(node), "state": state_of(node)}
    return render(request, "cluster/_added.html", about)


# --- acts --------------------------------------------------------------------------------------------------------


ACTS: dict[str, tuple[Verb, str]] = {
    "approve": (services.approve, "{node} takes work from now on."),
    "cordon": (services.cordon, "{node} takes no new work. What runs there goes on."),
    "drain": (services.drain, "{node} is being emptied: what runs there is stopped and placed elsewhere."),
    "resume": (services.resume, "{node} takes work again."),
    "rotate": (services.rotate_token, "{node} takes a new token with its next report. The old one works until then."),
    "revoke": (services.revoke_token, "The token of {node} no longer works. Its jobs are run elsewhere."),
    "remove": (services.remove, "{node} is no longer part of the lab. Its agent may be stopped."),
}


@admin_required
@require_POST
def node_act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    node = get_object_or_404(Node.objects.filter(LIVE_NODE), pk=pk)
    name = node.name
    do, said = ACTS[what]
    try:
        do(signed_in(request), node)
        messages.success(request, said.format(node=name))
    except Refused as refusal:
        messages.error(request, refusal.message)
    back_to_node = request.POST.get("back") == "node" and what != "remove"
    return redirect("cluster:admin-node", pk) if back_to_node else redirect("cluster:admin-nodes")


@admin_required
@require_POST
def gpu_act(request: HttpRequest, pk: int, gpu: int, what: str) -> HttpResponse:
    row = get_object_or_404(Gpu.objects.filter(node__removed_at=None, present=True), pk=gpu, node=pk)
    try:
        if what == "release":
            quarantine.release(signed_in(request), row)
            messages.success(request, f"{row.label} is in use again.")
        else:
            quarantine.take_out(signed_in(request), row)
            messages.success(request, f"Nothing more is placed on {row.label}. What runs there goes on.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("cluster:admin-node", pk)
