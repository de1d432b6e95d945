"""The pages of space of people, and the limit of a project. That of projects has their rules too: ``portal.jobs.retention.views``."""

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.limits import MAX_SPACE_GIB
from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.generics import Paginator
from portal.jobs import space_use
from portal.jobs.space_use import KINDS, SpaceUse
from portal.lists import Column, Listing, Table, read_table
from portal.names import search_key
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import Project
from portal.refused import Refused

PAGE_SIZE = 50
SPACE = Listing(
    "space",
    (
        Column("name", "Name", ("name",), fixed=True),
        *(Column(key, title, (key,), numeric=True, falls=True, fixed=True) for key, title in KINDS.items()),
        Column("total", "Together", ("total",), numeric=True, falls=True, fixed=True),
    ),
    "-total",
)
VALUES: dict[str, Callable[[SpaceUse], Any]] = {
    "name": lambda row: search_key(row.name),
    "total": lambda row: row.total,
    **{key: lambda row, key=key: row.parts[key] for key in KINDS},  # type: ignore[misc]  # a default binds the key
}
"""What it is sorted by; all rows are in memory with their sums."""


class SpaceLimitForm(forms.Form):
    max_space_gib = forms.IntegerField(
        min_value=1,
        max_value=MAX_SPACE_GIB,
        required=False,
        label="Limit in GiB",
        help_text="Once so much is stored, new jobs of this project are refused. Empty: no limit.",
    )


def space_table(request: HttpRequest, what: str, rows: Iterable[SpaceUse]) -> dict[str, Any]:
    """Return what templates/jobs/_space_table.html needs, from rows that are in memory."""
    table: Table = read_table(request, SPACE, signed_in(request), titles={"name": what})
    found = sorted(rows, key=lambda row: (row.name.lower(), row.number))
    found.sort(key=VALUES[table.sorted_by], reverse=table.falls)
    longest = max((row.total for row in found), default=0)
    page = Paginator[SpaceUse](found, PAGE_SIZE).get_page(request.GET.get("page"))
    return {"table": table, "page": page, "rows": [(row, row.pieces(longest)) for row in page]}


@admin_required
@require_safe
def people(request: HttpRequest) -> HttpResponse:
    """Show what is stored of the jobs and uploads of each person: of those with an account, and of those who have left."""
    rows = space_use.space_of_people(User.objects.filter(Q(is_active=True) | Q(jobs__isnull=False)).distinct())
    shown = [row for row in rows if row.total or row.is_full]
    return render(request, "jobs/space_of_people.html", space_table(request, "Person", shown))


@require_safe
def own(request: HttpRequest) -> HttpResponse:
    """Show a person what is stored of their jobs and uploads, and what takes most."""
    user = signed_in(request)
    [use] = space_use.space_of_people(User.objects.filter(pk=user.pk))
    about = {
        "use": use,
        "pieces": use.pieces(max(use.total, use.limit or 0)),
        "largest": space_use.largest_jobs(submitted_by=user),
        "trash_days": KEPT_FOR.days,
    }
    return render(request, "jobs/own_space.html", about)


@admin_required
@require_POST
def set_project_limit(request: HttpRequest, pk: int) -> HttpResponse:
    """Set how much may be stored of a project."""
    project = get_object_or_404(Project, pk=pk)
    form = SpaceLimitForm(request.POST)
    if form.is_valid():
        try:
            space_use.set_project_limit(signed_in(request), project, form.cleaned_data["max_space_gib"])
            messages.success(request, "The limit is saved. It applies to jobs that are submitted from now on.")
        except Refused as refusal:
            messages.error(request, refusal.message)
    else:
        messages.error(request, f"Enter a number of GiB from 1 to {MAX_SPACE_GIB:,}, or nothing.")
    return redirect("jobs:project-space", pk)
