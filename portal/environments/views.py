"""Pages to make an environment, and those of its locks and builds. Its own page is in the app ``jobs``, which uses it."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal import log_pieces
from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.downloads import download
from portal.editions import sent_if_changed
from portal.environments import build_log, builds, services
from portal.environments.contents import contradictions
from portal.environments.forms import FULL, MAX_TYPED, NewEnvironmentForm, choose_place
from portal.environments.models import Build, Environment, Lock
from portal.environments.package_input import PackageInput
from portal.environments.summary import builds_of, summary_of
from portal.refused import Refused


def visible_environment(request: HttpRequest, key: str) -> Environment:
    """Return an environment that the user may see, or answer 404."""
    rows = Environment.objects.visible_to(signed_in(request)).select_related("base", "project", "created_by")
    return get_object_or_404(rows, key=key)


def visible_build(request: HttpRequest, key: str, pk: int) -> tuple[Environment, Build]:
    """Return an environment with one of its builds, which others with the same packages may share, or answer 404."""
    environment = visible_environment(request, key)
    return environment, get_object_or_404(builds_of(environment).select_related("environment__project", "lock"), pk=pk)


def may_cancel(request: HttpRequest, build: Build) -> bool:
    return build.state == Build.State.RUNNING and services.may_manage_environment(signed_in(request), build.environment)


# --- a new one ---------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Show what was understood of the packages, then make the environment of them."""
    user = signed_in(request)
    if request.method != "POST":
        packages = {"packages": request.GET.get("packages", "")[:MAX_TYPED]}
        initial = choose_place(user, request.GET.get("project", "")) | packages
        full = request.GET.get("full") == "1"
        form = NewEnvironmentForm(user, initial=initial | _like(user, request.GET.get("like", ""), full=full))
        return _show_new(request, form)
    sent = request.POST.copy()
    if sent.get("drop") == "file":
        sent["file_name"] = sent["file_text"] = ""
    form = NewEnvironmentForm(user, sent, request.FILES)
    if not form.is_valid():
        return _show_new(request, form, status=400)
    understood = form.understood()
    wants = request.POST.get("do") == "create"
    is_known = request.POST.get("understood") == understood.digest
    if not wants or not (is_known or not (understood.refused or understood.notes)):
        return _show_new(request, form, understood, 409 if wants else 200, is_changed=wants)
    try:
        made = services.create(user, form.place(), form.request(understood), form.cleaned_data["title"])
    except Refused as refusal:
        form.refuse(refusal)
        return _show_new(request, form, understood, 400)
    standing = summary_of(made)
    if standing.is_planned and not standing.failure:
        messages.success(request, f"“{made.title}” is made. A node builds it now; jobs can choose it already.")
    else:
        messages.info(request, f"“{made.title}” exists already, with the same packages.")
    return redirect("jobs:environment", made.key)


def _like(user: User, key: str, *, full: bool) -> dict[str, Any]:
    """Return the values that make an environment like another one, or a full one of its packages; none if the user may not
    see it."""
    rows = Environment.objects.visible_to(user).exclude(recipe="").filter(image="").select_related("base")
    source = rows.filter(key=key[:50]).first()
    if source is None:
        return {}
    place = {"project": str(source.project_id)} if source.project_id else {}
    base = FULL if full or source.base is None else source.base.key
    own = {"python": source.python, "horovod": source.horovod} if base == FULL else {}
    return {**place, **own, "base": base, "packages": "\n".join(source.lines), "source_builds": source.source_builds}


def _show_new(
    request: HttpRequest,
    form: NewEnvironmentForm,
    understood: PackageInput | None = None,
    status: int = 200,
    *,
    is_changed: bool = False,
) -> HttpResponse:
    about: dict[str, Any] = {"form": form, "understood": understood, "is_changed": is_changed}
    if understood is not None:
        data = form.cleaned_data
        about |= {
            "file_name": data["file_name"],
            "file_text": data["file_text"],
            "default_title": services.default_title(form.request(understood)) if understood.lines else "",
            "contradictions": contradictions(
                form.bases.get(data["base"]), (*understood.lines, *understood.constraints)
            ),
            "other_python": understood.python if understood.python != data["python"] else "",
        }
    elif form.is_bound:
        about |= {"file_name": form.data.get("file_name", ""), "file_text": form.data.get("file_text", "")}
    return render(request, "environments/new.html", about, status=status)


# --- locks -------------------------------------------------------------------------------------------------------


@require_safe
def lock(request: HttpRequest, key: str, digest: str) -> HttpResponseBase:
    """Show the exact packages that were built for a kind of node; ``?download=1`` sends them with their hashes as a file."""
    environment = visible_environment(request, key)
    row = get_object_or_404(Lock.objects.filter(builds__in=builds_of(environment)).distinct(), digest=digest)
    if request.GET.get("download") == "1":
        content = row.text.encode()
        return download(
            request, f"{environment.key}.lock.txt", iter([content]), len(content), "text/plain; charset=utf-8"
        )
    lines = [line.rstrip(" \\") for line in row.text.splitlines() if not line.startswith(" ")]
    about = {"environment": environment, "lock": row, "lines": lines}
    return render(request, "environments/lock.html", about)


# --- builds ------------------------------------------------------------------------------------------------------


@require_safe
@sent_if_changed
def build(request: HttpRequest, key: str, pk: int) -> HttpResponse:
    """Show a build with the end of its log; for htmx only its state, and a request to reload the page once it is over."""
    environment, row = visible_build(request, key, pk)
    about: dict[str, Any] = {"environment": environment, "build": row, "may_cancel": may_cancel(request, row)}
    if "HX-Request" in request.headers:
        if row.state != Build.State.RUNNING:
            return HttpResponse(status=204, headers={"HX-Refresh": "true"})
        return render(request, "environments/_build_state.html", about)
    return render(request, "environments/build.html", {**about, "log": build_log.end_of_log(row)})


@require_safe
def build_log_from(request: HttpRequest, key: str, pk: int) -> HttpResponse:
    """Send what the log has after ``?offset=`` as a part of the page; 204 while there is nothing new."""
    environment, row = visible_build(request, key, pk)
    offset = request.GET.get("offset", "")
    if not log_pieces.is_offset(offset):
        raise Http404
    piece = build_log.log_from(row, int(offset))
    if piece.end == int(offset):
        return HttpResponse(status=204)
    about = {"environment": environment, "build": row, "text": build_log.shown_text(piece.text), "end": piece.end}
    return render(request, "environments/_log_piece.html", about)


@require_safe
def whole_log(request: HttpRequest, key: str, pk: int) -> HttpResponseBase:
    """Send the log as it is kept."""
    _, row = visible_build(request, key, pk)
    size, pieces = log_pieces.whole_log(builds.log_path(row))
    return download(request, f"build-{row.pk}.log", pieces, size, "text/plain; charset=utf-8")


@require_POST
def cancel_build(request: HttpRequest, key: str, pk: int) -> HttpResponse:
    environment, row = visible_build(request, key, pk)
    try:
        services.cancel_build(signed_in(request), row)
        messages.success(request, "The build is cancelled. Its node stops within seconds.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("environments:build", environment.key, row.pk)


@require_POST
def build_again(request: HttpRequest, key: str) -> HttpResponse:
    environment = visible_environment(request, key)
    try:
        services.build_again(signed_in(request), environment)
        newest = (
            "the image that its name means now" if environment.image else "the newest releases that its list allows"
        )
        messages.success(request, f"It is built again, with {newest}.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("jobs:environment", environment.key)
