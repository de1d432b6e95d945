"""The pages of space of projects: what is stored, and the rules that remove it."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.permissions import admin_required, signed_in
from portal.disks import portal_disks
from portal.form_fields import RefusableForm
from portal.jobs import space_use
from portal.jobs.models import RetentionRule
from portal.jobs.retention import services
from portal.jobs.retention.models import MAX_DAYS, MIN_DAYS
from portal.jobs.space_views import PAGE_SIZE, SpaceLimitForm, space_table
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import Project
from portal.projects.services import may_manage, role_of
from portal.refused import Refused

SHOWN_JOBS = 20
"""Of a preview."""


class RuleForm(RefusableForm):
    part = forms.ChoiceField(label="Remove", choices=RetentionRule.Part.choices)
    ended = forms.ChoiceField(label="Of jobs", choices=RetentionRule.Ended.choices)
    days = forms.IntegerField(
        label="Days after their end",
        min_value=MIN_DAYS,
        max_value=MAX_DAYS,
        help_text="Kept jobs are left alone, and those that another job still waits for.",
    )


@admin_required
@require_http_methods(["GET", "HEAD", "POST"])
def lab_space(request: HttpRequest) -> HttpResponse:
    """Show what is stored of all projects, and the rules of the lab; POST previews or sets one."""
    return _page(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
def project_space(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what is stored of a project, and its rules; its owners set them."""
    return _page(request, get_object_or_404(Project.objects.visible_to(signed_in(request)), pk=pk))


def _page(request: HttpRequest, project: Project | None) -> HttpResponse:
    user, now = signed_in(request), timezone.now()
    form, found = RuleForm(initial={"days": 90}), None
    if request.method == "POST":
        form = RuleForm(request.POST)
        if form.is_valid():
            part, ended, days = (form.cleaned_data[name] for name in ("part", "ended", "days"))
            try:
                services.require_may_set(user, project)
                if request.POST.get("do") == "add":
                    services.add(user, project, part, ended, days)
                    messages.success(request, f"The rule is set. It is carried out every hour, {services.AT_A_TIME}.")
                    return redirect(request.path)
                rule = services.unsaved(project, part, ended, days)
                found = {
                    "result": services.preview(rule, now),
                    "jobs": services.meant_by(rule, now).select_related("project")[:SHOWN_JOBS],
                }
            except Refused as refusal:
                form.refuse(refusal)
    present = Project.with_deleted.filter(erased_at=None)
    shown = present if project is None else present.filter(pk=project.pk)
    uses = space_use.space_of_projects(shown)
    about: dict[str, Any] = {
        "project": project,
        "form": form,
        "found": found,
        "may_set": project is None or may_manage(role_of(user, project)),
        "rules": [(rule, services.preview(rule, now)) for rule in RetentionRule.objects.filter(project=project)],
        "with_rules": _with_rules() if project is None else (),
        "usual_days": services.DEFAULT.days,
        "trash_days": KEPT_FOR.days,
        "disks": portal_disks() if project is None else (),
    }
    if project is None:
        about |= space_table(request, "Project", uses)
    else:
        [use] = uses
        about |= {
            "use": use,
            "pieces": use.pieces(max(use.total, use.limit or 0)),
            "largest": space_use.largest_jobs(project=project),
            "limit_form": SpaceLimitForm(initial={"max_space_gib": project.max_space_gib}) if user.is_admin else None,
        }
    status = 400 if form.is_bound and form.errors else 200
    return render(request, "jobs/space.html", about, status=status)


def _with_rules() -> QuerySet[Project]:
    """Return the first projects that have rules of their own; there are a few of each project at most."""
    own = RetentionRule.objects.filter(project=OuterRef("pk"))
    return Project.objects.filter(Exists(own)).order_by("name", "pk")[:PAGE_SIZE]


@require_POST
def remove_rule(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove a rule of the lab or of a project."""
    user = signed_in(request)
    rule = get_object_or_404(RetentionRule.objects.select_related("project"), pk=pk)
    if rule.project is None and not user.is_admin:
        raise Http404
    if rule.project is not None:
        get_object_or_404(Project.objects.visible_to(user), pk=rule.project.pk)
    try:
        services.remove(user, rule)
        messages.success(request, "The rule is removed. What it has removed stays removed.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("jobs:space") if rule.project is None else redirect("jobs:project-space", rule.project_id)
