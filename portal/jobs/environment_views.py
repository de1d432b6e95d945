"""The pages of environments with the jobs that use them: the list, one environment, and what admins decide about all."""

import shutil
from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Lower
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from portal import stale_forms
from portal.accounts.audit import last_actor
from portal.accounts.models import User
from portal.accounts.permissions import admin_required, signed_in
from portal.cluster.models import LIVE_NODE, Node
from portal.editions import sent_if_changed
from portal.environments import archives, collecting, services
from portal.environments.builds import in_progress
from portal.environments.forms import PackageSettingsForm
from portal.environments.hosts import hosts_of
from portal.environments.models import Environment, Lock, PackageSettings
from portal.environments.summary import CONDITIONS, Summary, builds_of, current_builds, summaries, summary_of, with_size
from portal.environments.views import visible_environment
from portal.jobs.environment_use import current_use, unfinished_jobs_of, with_use
from portal.jobs.job_list import is_id, with_list_columns
from portal.jobs.models import Job
from portal.lists import (
    Column,
    Listing,
    Table,
    declare,
    page_of_rows,
    quote,
    read_table,
    saved_views,
    unknown_choice,
)
from portal.projects.models import Project
from portal.projects.services import may_submit, role_of
from portal.search import any_contains

PAGE_SIZE = 25
BUILDS_PER_PAGE = 10
SHOWN_JOBS = 10
MAX_MENU_PROJECTS = 500
PLACES = {"lab": "Of the lab", "mine": "Made by you"}
"""The choices of whose environments are listed."""
STATE_CHOICES = {**{key: words for key, (words, _) in CONDITIONS.items()}, "removed": "removed"}
ENVIRONMENTS = declare(
    Listing(
        "environments",
        (
            Column("title", "Environment", (Lower("title"),), fixed=True),
            Column("place", "For", (Lower("project__name"),), nulls=True),
            Column("base", "Based on", (Lower("base__title"),), nulls=True),
            Column("packages", "Packages", numeric=True),
            Column("state", "State"),
            Column("size", "Size", ("size",), numeric=True, falls=True, nulls=True),
            Column("used", "Last use", ("used_at",), falls=True, nulls=True),
            Column("jobs", "Jobs", ("job_count",), numeric=True, falls=True),
            Column("creator", "Made by", (Lower("created_by__username"),), nulls=True, shown=False),
            Column("created", "Made", ("created_at",), falls=True, shown=False),
        ),
        "-used",
        ("q", "project", "show", "state"),
    )
)
ALL_ENVIRONMENTS = Listing(
    "admin-environments",
    (
        Column("title", "Environment", (Lower("title"),), fixed=True),
        Column("place", "For", (Lower("project__name"),), nulls=True, fixed=True),
        Column("size", "Size", ("size",), numeric=True, falls=True, nulls=True, fixed=True),
        Column("used", "Last use", ("used_at",), falls=True, nulls=True, fixed=True),
        Column("jobs", "Jobs", ("job_count",), numeric=True, falls=True, fixed=True),
        Column("users", "Users", ("users",), numeric=True, falls=True, fixed=True),
    ),
    "-size",
    ("unused",),
)


# --- the list ----------------------------------------------------------------------------------------------------


@require_safe
def environments(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    asked = {name: request.GET.get(name, "").strip() for name in ENVIRONMENTS.filters}
    rows, problems = _chosen(Environment.objects.visible_to(user), asked, user)
    table = read_table(request, ENVIRONMENTS, user, problems)
    page = page_of_rows(
        _with_columns(rows, user),
        table.ordering,
        PAGE_SIZE,
        request.GET.get("page"),
        lambda found: _with_columns(found, user).select_related("base", "project", "created_by"),
    )
    about = {
        "page": page,
        "rows": _with_summaries(page.object_list),
        "table": table,
        "views": saved_views(user, ENVIRONMENTS),
        "asked": asked,
        "asked_columns": request.GET.get("columns", ""),
        "is_filtered": any(asked.values()),
        "projects": Project.objects.visible_to(user).order_by("name").only("name")[:MAX_MENU_PROJECTS],
        "places": PLACES.items(),
        "states": STATE_CHOICES.items(),
    }
    return render(request, "environments/list.html", about)


def _with_columns(rows: QuerySet[Environment], user: User) -> QuerySet[Environment]:
    return with_use(with_size(rows), user)


def _with_summaries(found: Iterable[Environment]) -> list[tuple[Environment, Summary]]:
    rows = list(found)
    standing = summaries(rows)
    return [(row, standing[row.pk]) for row in rows]


def _chosen(rows: QuerySet[Environment], asked: dict[str, str], user: User) -> tuple[QuerySet[Environment], list[str]]:
    """Return the environments that a query string asks for, and sentences about what of it means nothing."""
    problems = [
        *unknown_choice(asked["show"], PLACES, "all are shown"),
        *unknown_choice(asked["state"], STATE_CHOICES, "all states are shown"),
    ]
    rows = rows.filter(retired=asked["state"] == "removed")
    if asked["state"] in CONDITIONS:
        rows = rows.filter(CONDITIONS[asked["state"]][1]())
    if asked["show"] == "lab":
        rows = rows.filter(project=None)
    elif asked["show"] == "mine":
        rows = rows.filter(created_by=user)
    if asked["project"] and is_id(asked["project"]):
        rows = rows.filter(project=int(asked["project"]))
    elif asked["project"]:
        problems.append(
            f"“{quote(asked['project'])}” is not the number of a project: that part of the filter is left out."
        )
    if asked["q"]:
        rows = rows.annotate(list_text=Cast("lines", TextField()))
        rows = rows.filter(any_contains(asked["q"], "title", "key", "project__name", "list_text"))
    return rows, problems


@require_safe
def of_project(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the environments of a project as a part of its page."""
    user = signed_in(request)
    project = get_object_or_404(Project.objects.visible_to(user), pk=pk)
    rows = project.environments.filter(retired=False).select_related("base")
    found = list(_with_columns(rows, user).order_by("-created_at", "-pk")[: services.MAX_OF_A_PROJECT])
    may_make = project.archived_at is None and may_submit(role_of(user, project))
    about = {"rows": _with_summaries(found), "project": project, "may_make": may_make}
    return render(request, "environments/_of_project.html", about)


# --- one environment ---------------------------------------------------------------------------------------------


@require_safe
@sent_if_changed
def environment(request: HttpRequest, key: str) -> HttpResponse:
    """Show an environment; for htmx only what changes while nodes get it."""
    row, user = visible_environment(request, key), signed_in(request)
    standing = summary_of(row)
    about: dict[str, Any] = {
        "environment": row,
        "standing": standing,
        "running": builds_of(row).filter(in_progress()),
        "kinds": current_builds(row),
        "builds": Paginator(builds_of(row).select_related("environment"), BUILDS_PER_PAGE).get_page(
            request.GET.get("page")
        ),
        "no_node_can": bool(row.image) and not _some_node_has_docker(),
        "may_manage": services.may_manage_environment(user, row),
    }
    if "HX-Request" in request.headers:
        return render(request, "environments/_standing.html", about)
    jobs = Job.objects.visible_to(user).filter(environment=row)
    about |= {
        "jobs": with_list_columns(jobs).order_by("-submitted_at", "-pk")[:SHOWN_JOBS],
        "job_count": jobs.count(),
        "unfinished": unfinished_jobs_of(row),
        "hosts": hosts_of(row.project_id, row),
        "allow_query": f"environment={row.key}",
    }
    return render(request, "environments/detail.html", about)


def _some_node_has_docker() -> bool:
    return Node.objects.filter(LIVE_NODE, approved_at__isnull=False, runtime=Node.Runtime.DOCKER).exists()


# --- for admins --------------------------------------------------------------------------------------------------


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def admin_environments(request: HttpRequest) -> HttpResponse:
    """Show what environments may contain, what they take and who uses them; POST changes the first."""
    form, stale = PackageSettingsForm.of(PackageSettings.current()), False
    if request.method == "POST":
        with transaction.atomic():
            row = PackageSettings.objects.select_for_update().filter(pk=PackageSettings.ONLY).first()
            row = row or PackageSettings.current()
            form = PackageSettingsForm.of(row, request.POST)
            present = {"allowed_sources": row.allowed_sources, "source_builds": row.source_builds}
            stale = stale_forms.is_stale(form, lambda: last_actor("environment.settings", "packages", present))
            if form.is_valid():
                sources = form.cleaned_data["allowed_sources"].splitlines()
                services.set_package_settings(
                    signed_in(request), sources, source_builds=form.cleaned_data["source_builds"]
                )
                messages.success(request, "Saved. Environments that exist already stay as they are.")
                return redirect("jobs:admin-environments")
    return _show_admin(request, form, stale_forms.status_of(form, stale))


def _show_admin(request: HttpRequest, form: PackageSettingsForm, status: int) -> HttpResponse:
    user = signed_in(request)
    table: Table = read_table(request, ALL_ENVIRONMENTS, user)
    rows = _admin_columns(Environment.objects.filter(retired=False), user)
    use = current_use()
    unused = {row.pk for row in collecting.unused(use.last, use.busy) if not row.retired}
    if request.GET.get("unused") == "1":
        rows = rows.filter(pk__in=unused)
    page = page_of_rows(
        rows, table.ordering, PAGE_SIZE, request.GET.get("page"), lambda found: _admin_columns(found, user)
    )
    disk = shutil.disk_usage(archives.folder())
    about = {
        "form": form,
        "table": table,
        "page": page,
        "rows": _with_summaries(page.object_list),
        "unused": unused,
        "only_unused": request.GET.get("unused") == "1",
        "keep_days": collecting.keep_days(),
        "layers": Lock.objects.exclude(archive_sha256="").aggregate(count=Count("pk"), bytes=Sum("archive_bytes")),
        "free": disk.free,
        "disk": disk.total,
    }
    return render(request, "environments/admin.html", about, status=status)


def _admin_columns(rows: QuerySet[Environment], user: User) -> QuerySet[Environment]:
    return (
        _with_columns(rows, user).annotate(users=Count("jobs__submitted_by", distinct=True)).select_related("project")
    )
