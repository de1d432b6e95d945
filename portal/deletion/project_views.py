"""The page that deletes a project, and the trash of projects."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.permissions import signed_in
from portal.deletion import projects
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import Project
from portal.projects.trash_pages import Actions, act_in_trash
from portal.projects.views import owned_project
from portal.refused import Refused

PAGE_SIZE = 50


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what hinders the deletion or what goes, or move a project to the trash."""
    user, project = signed_in(request), owned_project(request, pk)
    problem = ""
    if request.method == "POST":
        try:
            projects.delete(user, project, request.POST.get("name", ""))
            messages.success(request, f"“{project.name}” is in the trash. It can be restored for {KEPT_FOR.days} days.")
            return redirect("projects:list")
        except Refused as refusal:
            problem = refusal.message
    about = {
        "project": project,
        "hindrances": projects.hindrances(project),
        "belongings": projects.belongings_of(project),
        "days": KEPT_FOR.days,
        "problem": problem,
    }
    return render(request, "deletion/project.html", about, status=400 if problem else 200)


@require_safe
def trash(request: HttpRequest) -> HttpResponse:
    """List the deleted projects that the reader may restore, the newest first."""
    rows = projects.in_trash_of(signed_in(request)).order_by("-deleted_at", "-pk")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "deletion/project_trash.html", {"page": page, "days": KEPT_FOR.days})


ACTIONS: Actions[Project] = {
    "restore": (projects.restore, "“{row.name}” is restored."),
    "erase": (projects.delete_for_good, "“{row.name}” is erased within hours."),
}


@require_POST
def act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    """Restore a project from the trash, or let it be erased now."""
    row = get_object_or_404(projects.in_trash_of(signed_in(request)), pk=pk)
    return act_in_trash(request, row, ACTIONS, what, "deletion:project-trash")
