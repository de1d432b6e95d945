"""The page on which admins decide which hosts jobs may reach."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.permissions import admin_required, signed_in
from portal.environments import hosts
from portal.environments.host_forms import AllowedHostForm, initial_values
from portal.environments.models import AllowedHost
from portal.projects.models import Project
from portal.refused import Refused


@require_safe
def of_project(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the hosts that jobs of a project may reach, as a part of its page."""
    user = signed_in(request)
    project = get_object_or_404(Project.objects.visible_to(user), pk=pk)
    about = {"hosts": hosts.hosts_of(project.pk, None), "allow_query": f"project={project.pk}"}
    return render(request, "environments/_allowed_hosts.html", about)


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def network(request: HttpRequest) -> HttpResponse:
    """Show the allowed hosts by where they are allowed; POST allows another."""
    if request.method != "POST":
        asked = (request.GET.get(name, "") for name in ("host", "project", "environment"))
        return _show(request, AllowedHostForm(initial=initial_values(*asked)))
    form = AllowedHostForm(request.POST)
    if not form.is_valid():
        return _show(request, form, 400)
    project, environment = form.target()
    data = form.cleaned_data
    try:
        row = hosts.allow(
            signed_in(request), data["host"], project, environment, data["note"], internal=data["internal"]
        )
    except Refused as refusal:
        form.refuse(refusal)
        return _show(request, form, 400)
    messages.success(request, f"{row.host} is allowed for attempts that start from now on.")
    return redirect("environments:network")


def _show(request: HttpRequest, form: AllowedHostForm, status: int = 200) -> HttpResponse:
    rows = AllowedHost.objects.select_related("project", "environment", "created_by")
    ordered = rows.order_by("project__name", "environment__title", "host")
    return render(request, "environments/network.html", {"form": form, "rows": ordered}, status=status)


@admin_required
@require_POST
def forbid(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(AllowedHost.objects.select_related("project", "environment"), pk=pk)
    hosts.forbid(signed_in(request), row)
    messages.success(request, f"{row.host} is no longer allowed. Attempts that run now keep it until they end.")
    return redirect("environments:network")
