"""Advice for a waiting job, on the job's page or on its own page, and making a change."""

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.editions import sent_if_changed
from portal.forecast import advice
from portal.jobs.models import Job
from portal.projects.services import may_submit, role_of
from portal.refused import Refused


def visible(user: User) -> QuerySet[Job]:
    return Job.objects.visible_to(user).select_related("project", "code", "environment", "submitted_by")


@require_safe
@vary_on_headers("HX-Request")
@sent_if_changed
def what_helps(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the page; for htmx the part that the job's page shows."""
    user = signed_in(request)
    job = get_object_or_404(visible(user), pk=pk)
    about = {
        "job": job,
        "counsel": advice.advice_for(job, user),
        "may_change": advice.may_change(user, job),
        "may_submit": may_submit(role_of(user, job.project)),
    }
    template = "forecast/_help.html" if "HX-Request" in request.headers else "forecast/help.html"
    return render(request, template, about)


@require_POST
def change(request: HttpRequest, pk: int) -> HttpResponse:
    user = signed_in(request)
    job = get_object_or_404(visible(user), pk=pk)
    try:
        changed = advice.make_change(user, job, request.POST.get("change", ""))
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("jobs:detail", job.pk)
    messages.success(request, f"Job {job.pk} is cancelled; this job has its place in the queue.")
    return redirect("jobs:detail", changed.pk)
