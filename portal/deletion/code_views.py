"""The pages that delete code versions, and their trash."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.deletion import code_versions
from portal.deletion.words import listed
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import CodeVersion, Project
from portal.projects.services import may_submit, role_of
from portal.projects.trash_pages import Actions, act_in_trash
from portal.projects.views import visible_project
from portal.refused import Refused
from portal.ui import counted

PAGE_SIZE = 50


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """List the versions to choose from; with ``?version=`` or ``?unused=1`` show what would break; POST deletes them."""
    user, project = signed_in(request), visible_project(request, pk)
    if not may_submit(role_of(user, project)):
        raise Http404
    try:
        if request.method == "POST":
            return _delete(request, user, project)
        if request.GET.get("unused"):
            versions = code_versions.unused(user, project)
            if not versions:
                messages.info(
                    request, "A job or a schedule uses each version that you may delete, or it is the newest."
                )
                return redirect("deletion:code", project.pk)
            return _confirm(request, user, project, versions)
        if numbers := _numbers(request.GET.getlist("version")):
            return _confirm(request, user, project, code_versions.chosen(project, numbers))
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("deletion:code", project.pk)
    rows = project.code_versions.select_related("project", "created_by").defer("files", "guess")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    about = {"project": project, "page": page, "uses": code_versions.uses_of(user, project, page.object_list)}
    return render(request, "deletion/choose_code.html", about)


def _numbers(texts: list[str]) -> set[int]:
    return {int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 10}


def _confirm(request: HttpRequest, user: User, project: Project, versions: list[CodeVersion]) -> HttpResponse:
    if not versions:
        raise Http404
    uses = code_versions.uses_of(user, project, versions)
    about = {
        "project": project,
        "count": sum(not use.hindrance for use in uses) or len(uses),
        "going": [use for use in uses if not use.hindrance],
        "staying": [use for use in uses if use.hindrance],
        "size": sum(use.version.size for use in uses if not use.hindrance),
        "days": KEPT_FOR.days,
    }
    return render(request, "deletion/code.html", about)


def _delete(request: HttpRequest, user: User, project: Project) -> HttpResponse:
    result = code_versions.delete(user, project, _numbers(request.POST.getlist("version")))
    if result.deleted:
        names = listed([row.number for row in result.deleted])
        word = "Version" if len(result.deleted) == 1 else "Versions"
        verb = "is" if len(result.deleted) == 1 else "are"
        messages.success(request, f"{word} {names} {verb} in the trash for {KEPT_FOR.days} days.")
    for use in result.refused[:PAGE_SIZE]:
        messages.error(request, f"Version {use.version.number}: {use.hindrance}")
    if not result.deleted and not result.refused:
        messages.info(request, f"{counted(0, 'version')} deleted: choose at least one that is not in the trash yet.")
    return redirect("projects:detail", project.pk)


@require_safe
def trash(request: HttpRequest) -> HttpResponse:
    """List the deleted versions that the reader may restore, the newest first."""
    rows = code_versions.in_trash_of(signed_in(request)).order_by("-deleted_at", "-pk")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "deletion/code_trash.html", {"page": page, "days": KEPT_FOR.days})


ACTIONS: Actions[CodeVersion] = {
    "restore": (code_versions.restore, "Version {row.number} of {row.project.name} is restored."),
    "erase": (code_versions.delete_for_good, "Version {row.number} of {row.project.name} is erased within the hour."),
}


@require_POST
def act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    """Restore a version from the trash, or let it be erased now."""
    row = get_object_or_404(code_versions.in_trash_of(signed_in(request)), pk=pk)
    return act_in_trash(request, row, ACTIONS, what, "deletion:code-trash")
