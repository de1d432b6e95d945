"""The pages of projects and their members. ``visible_to`` decides visibility; ``services`` has the actions."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, DateTimeField, F, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Greatest, Lower
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal import stale_forms
from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.lists import Column, Listing, declare, quote, read_table, saved_views
from portal.projects import examples, services
from portal.projects.forms import ProjectForm, ShareForm
from portal.projects.git.models import GitSource
from portal.projects.models import CodeVersion, Membership, Project
from portal.refused import Refused
from portal.search import any_contains

PAGE_SIZE = 25
PROJECTS = declare(
    Listing(
        "projects",
        (
            Column("name", "Project", (Lower("name"),), fixed=True),
            Column("role", "Your role", ("my_role",), nulls=True),
            Column("versions", "Code versions", ("versions",), numeric=True, falls=True),
            Column("members", "People", ("members",), numeric=True, falls=True),
            Column("code", "Newest code", ("code_at",), falls=True, nulls=True),
            Column("owner", "Created by", (Lower("created_by__username"),), shown=False),
            Column("created", "Created", ("created_at",), falls=True, shown=False),
            Column("active", "Last active", ("active_at",), falls=True, shown=False),
        ),
        "-active",
        ("q", "show"),
    )
)
VERSIONS_PER_PAGE = 10
SHOWN = ("", "mine", "archived")
"""The choices of which projects are listed."""


def visible_project(request: HttpRequest, pk: int) -> Project:
    """Return a project that the user may see, or answer 404."""
    return get_object_or_404(Project.objects.visible_to(signed_in(request)).select_related("created_by"), pk=pk)


def owned_project(request: HttpRequest, pk: int) -> Project:
    """Return a project that the user owns, or answer 404: for other users the pages to change it do not exist."""
    project = visible_project(request, pk)
    if not services.may_manage(services.role_of(signed_in(request), project)):
        raise Http404
    return project


# The list


def with_list_columns(projects: QuerySet[Project], user: User) -> QuerySet[Project]:
    """Annotate projects with the columns of the list, in one query."""

    def count(rows: QuerySet[Any]) -> Coalesce:
        each = rows.filter(project=OuterRef("pk")).order_by().values("project").annotate(n=Count("pk")).values("n")
        return Coalesce(Subquery(each, output_field=IntegerField()), 0)

    newest = CodeVersion.objects.filter(project=OuterRef("pk")).order_by("-number").values("created_at")[:1]
    mine = Membership.objects.filter(project=OuterRef("pk"), user=user).values("role")[:1]
    return projects.select_related("created_by").annotate(
        versions=count(CodeVersion.objects.all()),
        members=count(Membership.objects.all()),
        my_role=Subquery(mine),
        code_at=Subquery(newest, output_field=DateTimeField()),
        active_at=Greatest(F("created_at"), Coalesce("code_at", "created_at")),
    )


@require_safe
def project_list(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    asked = {name: request.GET.get(name, "").strip() for name in ("q", "show")}
    projects = Project.objects.visible_to(user).filter(archived_at__isnull=asked["show"] != "archived")
    if asked["show"] == "mine":
        projects = projects.filter(memberships__user=user, memberships__role=Membership.Role.OWNER)
    if asked["q"]:
        projects = projects.filter(any_contains(asked["q"], "name", "description", "created_by__username"))
    problems = (
        [] if asked["show"] in SHOWN else [f"There is no choice “{quote(asked['show'])}”: all projects are shown."]
    )
    table = read_table(request, PROJECTS, user, problems)
    rows = with_list_columns(projects, user).order_by(*table.ordering)
    about = {
        "page": Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page")),
        "table": table,
        "views": saved_views(user, PROJECTS),
        "asked": asked,
        "asked_columns": request.GET.get("columns", ""),
        "is_filtered": any(asked.values()),
    }
    return render(request, "projects/list.html", about)


# One project


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    form = ProjectForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            project = services.create_project(signed_in(request), **form.cleaned_data)
            return redirect("projects:detail", project.pk)
        except Refused as refusal:
            form.refuse(refusal)
    return render(request, "projects/form.html", {"form": form}, status=400 if form.errors else 200)


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return show_project(request, visible_project(request, pk))


def show_project(
    request: HttpRequest,
    project: Project,
    status: int = 200,
    share_form: ShareForm | None = None,
    upload_error: str = "",
) -> HttpResponse:
    """Show the page of a project; also the response to a form on it that was refused."""
    user = signed_in(request)
    role = services.role_of(user, project)
    versions = project.code_versions.light().select_related("created_by", "origin")
    page = Paginator(versions, VERSIONS_PER_PAGE).get_page(request.GET.get("page"))
    memberships = list(project.memberships.select_related("user"))
    owners = [each for each in memberships if each.role == Membership.Role.OWNER and each.user.is_active]
    about = {
        "project": project,
        "role": role,
        "may_submit": services.may_submit(role) and project.archived_at is None,
        "may_manage": services.may_manage(role),
        "page": page,
        "newest": page.object_list[0] if page.number == 1 and page.object_list else versions.first(),
        "memberships": memberships,
        "owners": owners,
        "roles": Membership.Role.choices,
        "share_form": share_form or ShareForm(auto_id="share_%s"),
        "upload_error": upload_error,
        "limits": upload_limits(),
        "git": GitSource.objects.filter(project=project).first(),
        "fetch": project.fetches.first(),
    }
    return render(request, "projects/detail.html", about, status=status)


def upload_limits() -> dict[str, int]:
    """Return the limits that the browser checks before it sends files."""
    return {"mib": settings.MAX_UPLOAD_MIB, "files": settings.DATA_UPLOAD_MAX_NUMBER_FILES}


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    form, stale = ProjectForm.of(project), False
    if request.method == "POST":
        with transaction.atomic():
            project = services.lock(project)
            form = ProjectForm.of(project, request.POST)
            stale = stale_forms.is_stale(form)
            if form.is_valid():
                try:
                    services.edit_project(signed_in(request), project, **form.cleaned_data)
                    return redirect("projects:detail", project.pk)
                except Refused as refusal:
                    form.refuse(refusal)
    status = stale_forms.status_of(form, stale)
    return render(request, "projects/form.html", {"form": form, "project": project}, status=status)


@require_POST
def archive(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    services.archive_project(signed_in(request), project)
    messages.success(request, f"“{project.name}” is archived: its content stays, nothing new can be added.")
    return redirect("projects:detail", project.pk)


@require_POST
def empty_caches(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    services.empty_caches(signed_in(request), project)
    messages.success(request, "The next jobs begin with empty caches. Jobs that run now keep theirs until they end.")
    return redirect("projects:detail", project.pk)


@require_POST
def unarchive(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    services.unarchive_project(signed_in(request), project)
    messages.success(request, f"“{project.name}” is no longer archived.")
    return redirect("projects:detail", project.pk)


# Members


@require_POST
def share(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    form = ShareForm(request.POST, auto_id="share_%s")
    if form.is_valid():
        try:
            made = services.share(signed_in(request), project, **form.cleaned_data)
            messages.success(request, f"{made.user.username} is {made.get_role_display()} of “{project.name}” now.")
            return redirect("projects:detail", project.pk)
        except Refused as refusal:
            form.refuse(refusal)
    return show_project(request, project, 400, share_form=form)


@require_POST
def change_role(request: HttpRequest, pk: int, member: int) -> HttpResponse:
    project = owned_project(request, pk)
    membership = get_object_or_404(project.memberships.select_related("user", "project"), pk=member)
    try:
        shown = request.POST.get(stale_forms.SHOWN)
        made = services.change_role(signed_in(request), membership, request.POST.get("role", ""), shown)
        messages.success(request, f"{membership.user.username} is {made.get_role_display()} now.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    if services.role_of(signed_in(request), project) is None:
        return redirect("projects:list")
    return redirect("projects:detail", project.pk)


@require_POST
def remove_member(request: HttpRequest, pk: int, member: int) -> HttpResponse:
    """Remove a member: owners may remove any, members themselves."""
    user = signed_in(request)
    project = visible_project(request, pk)
    membership = get_object_or_404(project.memberships.select_related("user", "project"), pk=member)
    if membership.user_id != user.pk and not services.may_manage(services.role_of(user, project)):
        raise Http404
    try:
        services.unshare(user, membership)
        messages.success(request, f"{membership.user.username} is no longer in “{project.name}”.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    if services.role_of(user, project) is None:
        return redirect("projects:list")
    return redirect("projects:detail", project.pk)


# The gallery; its button to run an example belongs to the jobs app


@require_safe
def gallery(request: HttpRequest) -> HttpResponse:
    return render(request, "projects/gallery.html", {"examples": examples.all_examples()})


@require_safe
def example(request: HttpRequest, key: str) -> HttpResponse:
    found = examples.find(key)
    if found is None:
        raise Http404
    files = [(name, path.read_text("utf-8").splitlines()) for name, path in found.files()]
    return render(request, "projects/example.html", {"example": found, "files": files})


@require_POST
def copy_example(request: HttpRequest, key: str) -> HttpResponse:
    """Copy the code of an example to one's own project for examples, to read, change and run it there."""
    found = examples.find(key)
    if found is None:
        raise Http404
    try:
        version = services.use_example(signed_in(request), found)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("projects:gallery")
    return redirect("projects:code", version.project_id, version.number)
