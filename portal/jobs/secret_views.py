"""The pages of secrets, one's own and those of projects, with the jobs that use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.permissions import signed_in
from portal.jobs.secret_use import delete_question, unfinished_jobs_of
from portal.projects.models import Project
from portal.projects.services import may_manage, role_of
from portal.projects.views import owned_project, visible_project
from portal.refused import Refused
from portal.secrets import services
from portal.secrets.forms import NEW_FORMS, VALUE_FORMS, NewFileForm, NewVariableForm
from portal.secrets.models import Secret


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A row of the list."""

    secret: Secret
    is_unreadable: bool
    replace_url: str
    delete_url: str
    delete_question: str


@sensitive_post_parameters("value")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def own(request: HttpRequest) -> HttpResponse:
    """List one's own secrets; POST adds one."""
    return _list(request, signed_in(request))


@sensitive_post_parameters("value")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def of_project(request: HttpRequest, pk: int) -> HttpResponse:
    """List the secrets of a project for its members; POST of an owner adds one."""
    project = owned_project(request, pk) if request.method == "POST" else visible_project(request, pk)
    if not services.may_see_secrets(signed_in(request), project):
        raise Http404
    return _list(request, project)


@sensitive_post_parameters("value")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def replace_own(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form for a new value of an own secret; POST replaces it."""
    return _replace(request, _one_of(signed_in(request), pk))


@sensitive_post_parameters("value")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def replace_of_project(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    """Show the form for a new value of a project's secret to its owners; POST replaces it."""
    return _replace(request, _one_of(owned_project(request, pk), number))


@require_POST
def delete_own(request: HttpRequest, pk: int) -> HttpResponse:
    return _delete(request, _one_of(signed_in(request), pk))


@require_POST
def delete_of_project(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    return _delete(request, _one_of(owned_project(request, pk), number))


def _one_of(owner: services.Owner, pk: int) -> Secret:
    return get_object_or_404(services.secrets_of(owner), pk=pk)


def _list(request: HttpRequest, owner: services.Owner) -> HttpResponse:
    user, status = signed_in(request), 200
    forms = {kind: form(auto_id=f"{kind}_%s") for kind, form in NEW_FORMS.items()}
    if request.method == "POST":
        kind, status = request.POST.get("kind", ""), 400
        if kind not in NEW_FORMS:
            raise BadRequest("A secret is a variable or a file.")
        form = forms[kind] = NEW_FORMS[kind](request.POST, request.FILES, auto_id=f"{kind}_%s")
        if form.is_valid():
            try:
                stored = services.create(user, owner, kind, form.cleaned_data["name"], form.text())
                _notify(request, stored, f"{stored.row.name} is stored. Jobs can use it now.")
                return redirect(_address(owner))
            except Refused as refusal:
                form.refuse(refusal)
    return _show(request, owner, forms, status)


def _show(
    request: HttpRequest, owner: services.Owner, forms: Mapping[str, NewVariableForm | NewFileForm], status: int
) -> HttpResponse:
    secrets = list(services.secrets_of(owner))
    jobs = unfinished_jobs_of(secrets)
    project = owner if isinstance(owner, Project) else None
    is_archived = project is not None and project.archived_at is not None
    manages = project is None or may_manage(role_of(signed_in(request), project))
    about: dict[str, Any] = {
        "project": project,
        "rows": [_row(secret, jobs.get(secret.pk, ())) for secret in secrets],
        "forms": [forms[Secret.Kind.VARIABLE], forms[Secret.Kind.FILE]],
        "may_add": manages and not is_archived,
        "may_delete": manages,
        "is_full": len(secrets) >= services.MAX_OF_AN_OWNER,
        "min_masked": services.MIN_MASKED_CHARACTERS,
    }
    return render(request, "secrets/list.html", about, status=status)


def _row(secret: Secret, jobs: Sequence[int]) -> SecretRow:
    replace, delete, numbers = "jobs:secret", "jobs:delete-secret", [secret.pk]
    if secret.project_id is not None:
        replace, delete, numbers = "jobs:project-secret", "jobs:delete-project-secret", [secret.project_id, secret.pk]
    return SecretRow(
        secret,
        services.is_unreadable(secret),
        reverse(replace, args=numbers),
        reverse(delete, args=numbers),
        delete_question(secret, jobs),
    )


def _replace(request: HttpRequest, secret: Secret) -> HttpResponse:
    form, status = VALUE_FORMS[secret.kind](), 200
    if request.method == "POST":
        form, status = VALUE_FORMS[secret.kind](request.POST, request.FILES), 400
        if form.is_valid():
            try:
                stored = services.replace_value(signed_in(request), secret, form.text())
                _notify(request, stored, f"The value of {secret.name} is replaced. Jobs that start from now on get it.")
                return redirect(_address(secret.owner))
            except Refused as refusal:
                form.refuse(refusal)
    about = {
        "secret": secret,
        "project": secret.project,
        "list_url": _address(secret.owner),
        "form": form,
        "unreadable": services.is_unreadable(secret),
    }
    return render(request, "secrets/replace.html", about, status=status)


def _delete(request: HttpRequest, secret: Secret) -> HttpResponse:
    try:
        services.delete(signed_in(request), secret)
        messages.success(request, f"{secret.name} is deleted. Jobs that run keep what they got.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect(_address(secret.owner))


def _notify(request: HttpRequest, stored: services.StoredSecret, done: str) -> None:
    messages.success(request, done)
    for notice in stored.notices:
        messages.warning(request, notice)


def _address(owner: services.Owner) -> str:
    return reverse("jobs:project-secrets", args=[owner.pk]) if isinstance(owner, Project) else reverse("jobs:secrets")
