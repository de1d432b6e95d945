"""The admin's entrance, and the page where the scheduling policy is chosen."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import Group
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from portal.accounts.models import Limit, User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster.models import LIVE_NODE, Node
from portal.control import services
from portal.control.forms import PolicyForm
from portal.control.models import Cycle, Leader, SchedulerConfig
from portal.jobs.models import Job, JobState
from scheduling import registry

SWITCHES_SHOWN = 15
CYCLES_SHOWN = 15


@admin_required
@require_safe
def admin(request: HttpRequest) -> HttpResponse:
    nodes = list(Node.objects.filter(LIVE_NODE).only("approved_at", "problems", "last_seen_at", "draining", "cordoned"))
    about = {
        "nodes": len(nodes),
        "nodes_waiting": sum(node.approved_at is None for node in nodes),
        "nodes_unfit": sum(bool(node.problems) for node in nodes),
        "users": User.objects.filter(is_active=True).count(),
        "groups": Group.objects.count(),
        "limits": Limit.objects.filter(Q(max_gpus__isnull=False) | Q(max_queued__isnull=False)).count(),
        "policy": _title(services.current_config().policy),
        "queued": Job.objects.filter(state=JobState.QUEUED).count(),
        "running": Job.objects.filter(state=JobState.RUNNING).count(),
        "trouble": _trouble(),
    }
    return render(request, "control/admin.html", about)


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def policy(request: HttpRequest) -> HttpResponse:
    """``?policy=key`` shows another policy's parameters; sending them switches, live."""
    config = services.current_config()
    # one that has left the code cannot be shown, but another can be chosen instead
    key = request.GET.get("policy") or (config.policy if config.policy in registry.POLICIES else registry.DEFAULT)
    if key not in registry.POLICIES:
        raise Http404
    chosen = registry.describe(key)
    in_force = config.params if key == config.policy else None
    form = PolicyForm(chosen, request.POST if request.method == "POST" else None, in_force)
    if request.method == "POST" and form.is_valid():
        try:
            services.switch_policy(signed_in(request), key, form.cleaned_data)
            messages.success(request, f"From the next turn on, “{chosen.title}” decides. What runs goes on.")
            return redirect("control:policy")
        except ValueError as error:
            form.add_error(None, str(error))
    about = {
        "config": config,
        "policies": registry.describe_all(),
        "chosen": chosen,
        "form": form,
        "switches": [_described(row) for row in SchedulerConfig.objects.select_related("created_by")[:SWITCHES_SHOWN]],
        "cycles": Cycle.objects.select_related("config")[:CYCLES_SHOWN],
        "leader": Leader.objects.first(),
        "trouble": _trouble(),
    }
    return render(request, "control/policy.html", about, status=400 if form.errors else 200)


def _described(row: SchedulerConfig) -> dict[str, Any]:
    """A switch in words. A policy that has been taken out of the code since keeps its key as its name."""
    if row.policy not in registry.POLICIES:
        return {"row": row, "title": row.policy, "params": list(row.params.items())}
    known = registry.describe(row.policy)
    labels = {item.name: item.label for item in known.params}
    said = [(labels.get(name, name), _plain(value)) for name, value in row.params.items()]
    return {"row": row, "title": known.title, "params": said}


def _title(key: str) -> str:
    return registry.describe(key).title if key in registry.POLICIES else key


def _plain(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _trouble() -> Cycle | None:
    """The last turn, when it went wrong and nobody has switched since. However long ago: what goes on being wrong
    is recorded once, and so is its end (``cycle._record``)."""
    last = Cycle.objects.select_related("config").first()
    if last is None or not last.error or last.config_id != services.current_config().pk:
        return None
    return last
