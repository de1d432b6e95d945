"""The pages of a project's repository: what it is bound to, its fetches, and the hosts that admins allow."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal import log_pieces, stale_forms
from portal.accounts.permissions import admin_required, signed_in
from portal.downloads import download
from portal.editions import sent_if_changed
from portal.projects import services
from portal.projects.git import fetches, files, hosts, keys, sources, webhooks
from portal.projects.git.forms import GitHostForm, SourceForm
from portal.projects.git.models import GitFetch, GitHost, GitSource
from portal.projects.models import Project
from portal.projects.views import owned_project, visible_project
from portal.refused import Refused

FETCHES_PER_PAGE = 10
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Hosts of SITE_URL that lead other machines to themselves."""


def _owned_source(request: HttpRequest, pk: int) -> GitSource:
    return get_object_or_404(GitSource.objects.select_related("project"), project=owned_project(request, pk))


def visible_fetch(request: HttpRequest, pk: int, number: int) -> tuple[Project, GitFetch]:
    """Return a project that the user may see with one of its fetches, or answer 404."""
    project = visible_project(request, pk)
    rows = project.fetches.select_related("project", "requested_by", "version")
    return project, get_object_or_404(rows, pk=number)


@sensitive_post_parameters("token")
@require_http_methods(["GET", "HEAD", "POST"])
def source(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what a project is bound to, and its fetches; POST binds it."""
    project = owned_project(request, pk) if request.method == "POST" else visible_project(request, pk)
    row = GitSource.objects.filter(project=project).select_related("bound_by").first()
    form, stale = SourceForm.of(row), False
    if request.method == "POST":
        form = SourceForm.of(row, request.POST)
        stale = row is not None and stale_forms.is_stale(form)
        if form.is_valid() and not stale:
            try:
                had_token = row is not None and bool(row.sealed_token)
                bound = sources.bind(signed_in(request), project, form.request())
                messages.success(request, _after_binding(bound))
                if had_token and not bound.sealed_token and not form.cleaned_data.get("forget_token"):
                    messages.warning(request, "The stored token was for the repository before and is forgotten.")
                return redirect("projects:git", project.pk)
            except Refused as refusal:
                form.refuse(refusal)
    return _show(request, project, row, form, status=stale_forms.status_of(form, stale))


def _after_binding(row: GitSource) -> str:
    """Return what an owner does next."""
    if row.is_ssh and not row.host_key:
        return (
            "Saved. Add the deploy key below to the repository, then choose “Fetch now”: the first fetch ends with the key of "
            "the host, which you confirm."
        )
    return "Saved. “Fetch now” makes a code version of the newest commit."


def _show(
    request: HttpRequest,
    project: Project,
    row: GitSource | None,
    form: SourceForm,
    *,
    status: int = 200,
    secret: str = "",
) -> HttpResponse:
    role = services.role_of(signed_in(request), project)
    rows = project.fetches.select_related("requested_by", "version")
    allowed = GitHost.objects.count()
    about: dict[str, Any] = {
        "project": project,
        "source": row,
        "form": form,
        "may_manage": services.may_manage(role) and project.archived_at is None,
        "may_fetch": services.may_submit(role) and project.archived_at is None,
        "page": Paginator(rows, FETCHES_PER_PAGE).get_page(request.GET.get("page")),
        "able": len(fetches.able_nodes()),
        "allowed": GitHost.objects.all()[: hosts.MAX_NAMED],
        "more_allowed": max(allowed - hosts.MAX_NAMED, 0),
        "secret": secret,
    }
    if row is not None:
        address = sources.address_of(row)
        about |= {
            "pinned": keys.fingerprint(row.host_key),
            "offered": keys.fingerprint(row.offered_host_key),
            "host": address.place,
            "is_host_allowed": hosts.host_for(address) is not None,
            "is_key_lost": sources.is_key_lost(row),
            "hook_url": webhooks.url_of(row),
            "is_hook_local": urlsplit(settings.SITE_URL).hostname in LOCAL_HOSTS,
        }
    return render(request, "projects/git.html", about, status=status)


@require_POST
def unbind(request: HttpRequest, pk: int) -> HttpResponse:
    project = owned_project(request, pk)
    done = "The project is no longer bound to a repository. Its code versions stay."
    return _do(request, pk, partial(sources.unbind, signed_in(request), project), done)


def _do(request: HttpRequest, pk: int, action: Callable[[], object], done: str) -> HttpResponse:
    """Do something with what a project is bound to, and show its page with ``done``, or with why it was refused."""
    try:
        action()
        messages.success(request, done)
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("projects:git", pk)


@require_POST
def confirm_host_key(request: HttpRequest, pk: int) -> HttpResponse:
    row = _owned_source(request, pk)
    try:
        sources.confirm_host_key(signed_in(request), row, request.POST.get("fingerprint", ""))
        fetches.request(signed_in(request), row.project)
        messages.success(
            request, "The host key is confirmed, and a fetch is requested. Any other key is refused from now on."
        )
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("projects:git", pk)


@require_POST
def new_key(request: HttpRequest, pk: int) -> HttpResponse:
    done = "The project has a new deploy key. Replace the old one with it at the Git host."
    return _do(request, pk, partial(sources.new_deploy_key, signed_in(request), _owned_source(request, pk)), done)


@require_POST
def new_secret(request: HttpRequest, pk: int) -> HttpResponse:
    """Give the webhook a new secret, and show it this one time."""
    row = _owned_source(request, pk)
    try:
        secret = sources.new_webhook_secret(signed_in(request), row)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("projects:git", pk)
    return _show(request, row.project, row, SourceForm.of(row), secret=secret)


@require_POST
def remove_hook(request: HttpRequest, pk: int) -> HttpResponse:
    done = "The webhook is removed: pushes no longer make code versions."
    return _do(request, pk, partial(sources.remove_webhook, signed_in(request), _owned_source(request, pk)), done)


# --- fetches -----------------------------------------------------------------------------------------------------


@require_POST
def fetch_now(request: HttpRequest, pk: int) -> HttpResponse:
    project = visible_project(request, pk)
    try:
        made = fetches.request(signed_in(request), project)
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("projects:git", project.pk)
    return redirect("projects:git-fetch", project.pk, made.pk)


@require_safe
@sent_if_changed
def fetch(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Show a fetch with the end of its log; for htmx only its state, and a request to reload the page once it is over."""
    project, row = visible_fetch(request, pk, number)
    role = services.role_of(signed_in(request), project)
    about: dict[str, Any] = {
        "project": project,
        "fetch": row,
        "may_fetch": services.may_submit(role) and project.archived_at is None,
        "may_manage": services.may_manage(role) and project.archived_at is None,
        "able": len(fetches.able_nodes()) if row.state == GitFetch.State.WAITING else 0,
        "is_behind": row.is_open and project.fetches.filter(state=GitFetch.State.RUNNING).exclude(pk=row.pk).exists(),
        "max_wait_hours": fetches.MAX_WAIT // timedelta(hours=1),
    }
    if "HX-Request" in request.headers:
        if not row.is_open:
            return HttpResponse(status=204, headers={"HX-Refresh": "true"})
        return render(request, "projects/_fetch_state.html", about)
    return render(request, "projects/fetch.html", {**about, "log": log_pieces.end_of_log(files.log_path(row))})


@require_safe
def fetch_log_from(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Send what the log has after ``?offset=`` as a part of the page; 204 while there is nothing new."""
    project, row = visible_fetch(request, pk, number)
    offset = request.GET.get("offset", "")
    if not log_pieces.is_offset(offset):
        raise Http404
    piece = log_pieces.log_from(files.log_path(row), int(offset))
    if piece.end == int(offset):
        return HttpResponse(status=204)
    about = {"project": project, "fetch": row, "text": log_pieces.shown_text(piece.text), "end": piece.end}
    return render(request, "projects/_fetch_log.html", about)


@require_safe
def fetch_log(request: HttpRequest, pk: int, number: int) -> HttpResponseBase:
    """Send the log as it is kept."""
    _, row = visible_fetch(request, pk, number)
    size, pieces = log_pieces.whole_log(files.log_path(row))
    return download(request, f"fetch-{row.pk}.log", pieces, size, "text/plain; charset=utf-8")


@require_POST
def cancel(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    project, row = visible_fetch(request, pk, number)
    try:
        if fetches.cancel(signed_in(request), row):
            messages.success(request, "The fetch is cancelled. Its node stops within seconds.")
        else:
            messages.info(request, "The fetch had ended already.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("projects:git-fetch", project.pk, row.pk)


# --- the hosts that admins allow ---------------------------------------------------------------------------------


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def git_hosts(request: HttpRequest) -> HttpResponse:
    """Show the hosts that code may be fetched from; POST allows another."""
    form, status = GitHostForm(request.POST if request.method == "POST" else None), 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            data = dict(form.cleaned_data)
            try:
                row = hosts.allow(signed_in(request), data.pop("host"), **data)
                messages.success(request, f"Projects can now be bound to repositories on {row.host}.")
                return redirect("projects:git-hosts")
            except Refused as refusal:
                form.refuse(refusal)
    about = {"form": form, "rows": GitHost.objects.select_related("created_by"), "able": fetches.able_nodes()}
    return render(request, "projects/git_hosts.html", about, status=status)


@admin_required
@require_POST
def forbid_host(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(GitHost, pk=pk)
    hosts.forbid(signed_in(request), row)
    messages.success(request, f"Projects can no longer fetch from {row.host}. Code versions stay.")
    return redirect("projects:git-hosts")
