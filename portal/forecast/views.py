"""Advice for a waiting job, on the job's page or on its own page, and making a change."""

import hashlib

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.forecast import advice
from portal.jobs.job_views import VOLATILE_HTML
from portal.jobs.models import Job
from portal.projects.services import may_submit, role_of
from portal.refused import Refused


def visible(user: User) -> QuerySet[Job]:
    return Job.objects.visible_to(user).select_related("project", "code", "environment", "submitted_by")


@require_safe
@vary_on_headers("HX-Request")
def what_helps(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the page; for htmx the part that the job's page shows, or nothing when it has not changed (``edition``)."""
    user = signed_in(request)
    job = get_object_or_404(visible(user), pk=pk)
    about = {
        "job": job,
        "counsel": advice.advice_for(job, user),
        "may_change": advice.may_change(user, job),
        "may_submit": may_submit(role_of(user, job.project)),
        "edition": "",
    }
    if "HX-Request" not in request.headers:
        return render(request, "forecast/help.html", about)
    html = render_to_string("forecast/_help.html", about, request)
    edition = hashlib.sha256(VOLATILE_HTML.sub("", html).encode()).hexdigest()[:16]
    if request.GET.get("edition") == edition:
        return HttpResponse(status=204)
    return render(request, "forecast/_help.html", {**about, "edition": edition})


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
