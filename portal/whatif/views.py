"""Pages with simulations of the lab's recent history under other policies, for admins only."""

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from portal.accounts.permissions import admin_required, signed_in
from portal.editions import sent_if_changed
from portal.refused import Refused
from portal.scheduler import services as scheduler_services
from portal.whatif import progress, report, services, story
from portal.whatif.forms import WhatifForm
from portal.whatif.models import Simulation
from scheduling import registry

PER_PAGE = 20
PEOPLE_SHOWN = 50


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Fill the form from ``?policy=key`` (repeatable) and ``&params={...}`` of the first; POST starts the simulation."""
    config = scheduler_services.current_config()
    sent = request.POST if request.method == "POST" else None
    form, wrong = WhatifForm(request.GET, sent, config), ""
    if sent is not None:
        try:
            if form.too_many:
                raise Refused(f"At most {services.MAX_POLICIES} policies at once, including the one in force.")
            if form.is_valid():
                return redirect(
                    "whatif:detail", services.queue_simulation(signed_in(request), form.days, form.choices).pk
                )
        except Refused as refusal:
            wrong = refusal.message
    about = {
        "form": form,
        "wrong": wrong or form.wrong,
        "windows": services.WINDOWS,
        "policies": registry.describe_all(),
        "in_force": scheduler_services.title_of(config.policy),
    }
    return render(request, "whatif/new.html", about, status=200 if sent is None else 400)


@admin_required
@require_safe
def simulations(request: HttpRequest) -> HttpResponse:
    rows = Simulation.objects.select_related("created_by").defer("result")
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    about = {"page": page, "rows": [(row, report.titles(row)) for row in page], "kept": services.MAX_KEPT}
    return render(request, "whatif/list.html", about)


@admin_required
@require_safe
@vary_on_headers("HX-Request")
@sent_if_changed
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the simulation; for htmx only its progress, and a request to reload the page once it is over."""
    simulation = get_object_or_404(Simulation.objects.select_related("created_by"), pk=pk)
    about: dict[str, Any] = {"simulation": simulation}
    if not simulation.is_over:
        about["ahead"] = services.ahead_of(simulation)
        about["steps"] = progress.steps(simulation, report.titles(simulation))
        about["left"] = progress.sentence(about["steps"])
    if "HX-Request" in request.headers:
        if simulation.is_over:
            return HttpResponse(status=204, headers={"HX-Refresh": "true"})
        return render(request, "whatif/_progress.html", about)
    worlds = report.columns(simulation)
    about |= {"worlds": worlds, "again": _form_of(simulation)}
    if simulation.result:
        people = Paginator(report.turnaround_rows(worlds, "people"), PEOPLE_SHOWN).get_page(request.GET.get("page"))
        error = report.simulation_error(worlds)
        about |= {
            "table": report.comparison_rows(worlds),
            "people": people,
            "groups": report.turnaround_rows(worlds, "groups"),
            "error": error,
            "idle": story.why_idle(worlds),
            "stories": story.stories_of(worlds, error[0] if error else 0.0),
            "in_force": story.base_of(worlds),
            "daily": story.daily_chart(worlds, simulation.start),
            "switched": report.count_switches(simulation.start, simulation.end),
            "charts": report.comparison_charts(worlds),
            "total": simulation.result["really"]["total"],
            "offered": simulation.result["gpu_hours_offered"],
        }
    return render(request, "whatif/detail.html", about)


def _form_of(simulation: Simulation) -> str:
    """Return the address of the form that simulates the same days under the same policies."""
    others = [each["policy"] for each in simulation.policies[1:]]  # the first was in force
    return f"{reverse('whatif:new')}?{urlencode({'days': simulation.days, 'policy': others}, doseq=True)}"


@admin_required
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    simulation = get_object_or_404(Simulation, pk=pk)
    try:
        services.cancel(simulation)
        messages.success(request, "The simulation is cancelled.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("whatif:detail", simulation.pk)
