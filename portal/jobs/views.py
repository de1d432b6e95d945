"""The pages about jobs. ``Job.objects.visible_to`` decides who sees them; the actions are in ``services``."""

from collections.abc import Mapping
from typing import Any

from django.core.paginator import Paginator
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.environments.models import Environment
from portal.environments.summary import summary_of
from portal.jobs import launch_lines, package_offers, permissions, services
from portal.jobs.environments import offered_environments
from portal.jobs.forms import JobForm
from portal.jobs.job_list import is_id
from portal.jobs.launcher_needs import environment_with, lacks, needed_for
from portal.jobs.models import Job
from portal.jobs.package_offers import offer_for
from portal.jobs.submit_warnings import warnings_for
from portal.projects.inspecting.launch_lines import UntranslatableError
from portal.projects.models import CodeVersion, Membership, Project
from portal.projects.services import may_submit, role_of
from portal.refused import Refused
from portal.search import any_contains

PAGE_SIZE = 25


# --- submit ------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponseBase:
    """Show the form for a new job, or submit it.

    ``?code=ID``: a job for this code; ``?copy=JOB``: a copy to be edited; both: a copy with other code. Other parameters
    are initial values of the fields of these names.
    """
    user = signed_in(request)
    copied = _requested_row(
        request, "copy", Job.objects.visible_to(user).select_related("code", "environment", "project")
    )
    code = _requested_row(request, "code", CodeVersion.objects.visible_to(user).select_related("project"))
    code = code or (_code_for_copy(copied) if copied else None)
    if code is None:
        return _choose_code(request, user)
    env_vars = permissions.env_vars_for(user, copied) if copied else None
    if request.method == "POST" and "install" in request.POST:
        return _install(request, user, code, copied)
    if request.method == "POST" and "translate" in request.POST:
        return _translate(request, user, code, copied)
    form = JobForm(code, request.POST if request.method == "POST" else None, copied, env_vars, user=user)
    form.suggest(request.GET.dict())
    if request.method == "POST" and form.is_valid():
        try:
            job = services.submit(
                user, code.project, form.submission(), idempotency_key=form.cleaned_data["key"], copied_from=copied
            )
            return redirect("jobs:detail", job.pk)
        except Refused as refusal:
            if earlier := services.job_with_key(user, form.cleaned_data["key"]):
                form.renew_key(earlier)
            else:
                form.refuse(refusal)
    return _show_form(request, user, form, copied)


def _code_for_copy(copied: Job) -> CodeVersion | None:
    """Return the code of a job, or the newest of its project where that was deleted."""
    if copied.code.deleted_at is None:
        return copied.code
    newest: CodeVersion | None = copied.project.code_versions.select_related("project").first()
    return newest


def _show_form(request: HttpRequest, user: User, form: JobForm, copied: Job | None, **changes: Any) -> HttpResponse:
    """Show the form. ``changes``: ``installed``, an environment that was just made, or ``install_problem``, why none was;
    ``line``, the command line that the form's values replace, and ``notes`` on what is not as the line has it."""
    code = form.code
    newest = code.project.code_versions.light().first()
    about = {
        "form": form,
        "code": code,
        "copied": copied,
        "code_gone": copied.code if copied and copied.code.deleted_at and "code" not in request.GET else None,
        "newest": newest if newest and newest.pk != code.pk else None,
        "may_submit": may_submit(role_of(user, code.project)),
        "warnings": warnings_for(code, *_asked_gpus(form.shown), form.chosen_environment, form.environments),
        "offer": offer_for(code, form.chosen_environment, form.environments, copied),
        **_environment_part(form.chosen_environment),
        "ticked": request.POST.getlist("package"),
        **changes,
    }
    failed = changes.get("install_problem") or (form.is_bound and form.errors)
    return render(request, "jobs/new.html", about, status=400 if failed else 200)


def _install(request: HttpRequest, user: User, code: CodeVersion, copied: Job | None) -> HttpResponse:
    """Make an environment with the packages that were chosen on the form, and show the form again with it."""
    form = JobForm.draft(user, code, request.POST)
    if (chosen := form.chosen_environment) is None:
        raise Http404
    try:
        installed = package_offers.install(
            user,
            code,
            chosen,
            request.POST["install"],
            request.POST.getlist("package"),
            copied,
        )
    except Refused as refusal:
        return _show_form(request, user, form, copied, install_problem=refusal.message)
    return _show_form(request, user, JobForm.draft(user, code, request.POST, installed), copied, installed=installed)


def _translate(request: HttpRequest, user: User, code: CodeVersion, copied: Job | None) -> HttpResponse:
    """Show the form again with the values that the command line of another launcher means."""
    line = request.POST.get("command", "")
    try:
        found = launch_lines.translation_for(code, line)
    except UntranslatableError:
        found = None
    if found is None:  # the warning beside the line has the reason
        return _show_form(request, user, JobForm.draft(user, code, request.POST), copied)
    lab_gpus = services.lab_gpus()
    values = launch_lines.with_values(request.POST.dict(), found, lab_gpus)
    form = JobForm.draft(user, code, values)
    notes = [launch_lines.too_large_note(found, lab_gpus)]
    program, module = needed_for(found.launcher)
    if (chosen := form.chosen_environment) and lacks(chosen, module):
        other = environment_with(module, code, chosen, form.environments)
        if other is not None:
            form = JobForm.draft(user, code, values, other)
            notes.append(f"The environment is “{other.title}” now: “{chosen.title}” does not have {program}.")
    return _show_form(request, user, form, copied, line=line, notes=[note for note in notes if note])


def _requested_row(request: HttpRequest, name: str, rows: QuerySet[Any]) -> Any:
    """Return the row that a parameter names, None without it; 404 if the user may not see such a row."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not is_id(text):
        raise Http404
    return get_object_or_404(rows, pk=int(text))


def _choose_code(request: HttpRequest, user: User) -> HttpResponse:
    """Show the newest code of each project to which the user may submit."""
    newest = CodeVersion.objects.filter(project=OuterRef("pk")).order_by("-number").values("pk")[:1]
    projects = Project.objects.filter(archived_at__isnull=True).annotate(newest=Subquery(newest))
    if not user.is_admin:
        may = (Membership.Role.MEMBER, Membership.Role.OWNER)
        projects = projects.filter(memberships__user=user, memberships__role__in=may)
    words = request.GET.get("q", "").strip()
    if words:
        projects = projects.filter(any_contains(words, "name"))
    page = Paginator(projects.order_by("-newest", "-pk"), PAGE_SIZE).get_page(request.GET.get("page"))
    last = {project.pk: project.newest for project in page}  # type: ignore[attr-defined]  # annotated above
    versions = CodeVersion.objects.light().in_bulk([pk for pk in last.values() if pk])
    choices = [(project, versions.get(last[project.pk])) for project in page]
    return render(request, "jobs/choose_code.html", {"choices": choices, "page": page, "words": words})


@require_safe
def new_warnings(request: HttpRequest) -> HttpResponse:
    """Show the warnings about a code with the environment, launcher and GPUs that are chosen, when the choice changes."""
    code = _requested_row(request, "code", CodeVersion.objects.visible_to(signed_in(request)).select_related("project"))
    if code is None:
        raise Http404
    copied = _requested_row(request, "copy", Job.objects.visible_to(signed_in(request)))
    choices = offered_environments(code.project)
    environment = next((each for each in choices if each.key == request.GET.get("environment", "")), None)
    about = {
        "warnings": warnings_for(code, *_asked_gpus(request.GET.dict()), environment, choices),
        "code": code,
        **_environment_part(environment),
        "offer": offer_for(code, environment, choices, copied),
        "may_submit": may_submit(role_of(signed_in(request), code.project)),
    }
    return render(request, "jobs/_checks.html", about)


def _environment_part(environment: Environment | None) -> dict[str, Any]:
    """Return what the pages show of the environment that is chosen."""
    return {"environment": environment, "standing": summary_of(environment) if environment else None}


def _asked_gpus(asked: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the launcher, the command and the most GPUs that a form has, whatever was typed into it."""
    numbers = [str(asked.get(name) or "") for name in ("min_gpus", "max_gpus")]
    gpus = max((int(text) for text in numbers if text.isdecimal() and len(text) < 5), default=1)
    return str(asked.get("launcher") or ""), str(asked.get("command") or ""), gpus
