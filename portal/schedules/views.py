"""The pages of schedules. Members of a project see its schedules; ``services`` decides who may change them."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.permissions import signed_in
from portal.jobs.job_list import is_id
from portal.jobs.models import Job
from portal.projects.services import may_submit, role_of
from portal.projects.views import visible_project
from portal.refused import Refused
from portal.schedules import services
from portal.schedules.forms import ScheduleForm
from portal.schedules.models import Schedule

PAGE_SIZE = 25


def _rows(request: HttpRequest) -> QuerySet[Schedule]:
    rows = Schedule.objects.visible_to(signed_in(request))
    return rows.select_related("project", "owner", "code", "environment", "copied_from")


def _visible(request: HttpRequest, pk: int) -> Schedule:
    return get_object_or_404(_rows(request), pk=pk)


@require_safe
def own(request: HttpRequest) -> HttpResponse:
    """List the reader's own schedules; for admins with ``?all=1`` those of all."""
    user = signed_in(request)
    everybody = user.is_admin and request.GET.get("all") == "1"
    rows = _rows(request) if everybody else _rows(request).filter(owner=user)
    return _list(request, rows, {"everybody": everybody})


@require_safe
def of_project(request: HttpRequest, pk: int) -> HttpResponse:
    """List the schedules of a project."""
    project = visible_project(request, pk)
    return _list(request, _rows(request).filter(project=project), {"project": project})


def _list(request: HttpRequest, rows: QuerySet[Schedule], about: dict[str, object]) -> HttpResponse:
    page = Paginator(rows.order_by("-pk"), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "schedules/list.html", {**about, "page_obj": page})


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Make a schedule that submits the fields of a job: ``?job=ID``."""
    user, number = signed_in(request), request.GET.get("job", "")
    if not is_id(number):
        raise Http404
    rows = Job.objects.visible_to(user).select_related("project", "code", "environment")
    job = get_object_or_404(rows, pk=int(number))
    form, status = ScheduleForm.new(job.name), 200
    if request.method == "POST":
        form, status = ScheduleForm.new(job.name, request.POST), 400
        if form.is_valid():
            try:
                row = services.create(user, job, form.values)
                messages.success(request, f"The schedule “{row.name}” is set.")
                return redirect("schedules:detail", row.pk)
            except Refused as refusal:
                form.refuse(refusal)
    may = may_submit(role_of(user, job.project))
    about = {"form": form, "job": job, "project": job.project, "may_submit": may}
    return render(request, "schedules/form.html", about, status=status)


@require_safe
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a schedule with its runs."""
    row, user = _visible(request, pk), signed_in(request)
    page = Paginator(row.runs.select_related("job"), PAGE_SIZE).get_page(request.GET.get("page"))
    about = {
        "schedule": row,
        "page_obj": page,
        "may_edit": services.may_edit(user, row),
        "may_stop": services.may_stop(user, row),
    }
    return render(request, "schedules/detail.html", about)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    row, user = _visible(request, pk), signed_in(request)
    if not services.may_edit(user, row):
        raise Http404
    form, status = ScheduleForm.of(row), 200
    if request.method == "POST":
        form, status = ScheduleForm.of(row, request.POST), 400
        if form.is_valid():
            try:
                services.edit(user, row, form.values)
                messages.success(request, "Saved.")
                return redirect("schedules:detail", row.pk)
            except Refused as refusal:
                form.refuse(refusal)
    about = {"form": form, "schedule": row, "project": row.project, "may_submit": True}
    return render(request, "schedules/form.html", about, status=status)


@require_POST
def act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    """Pause, resume or delete a schedule, or submit its job now."""
    row, user = _visible(request, pk), signed_in(request)
    try:
        if what == "delete":
            services.delete(user, row)
            messages.success(request, f"The schedule “{row.name}” is deleted. Its jobs stay.")
            return redirect("schedules:project", row.project_id)
        if what == "submit":
            job = services.submit_now(user, row)
            messages.success(request, f"Submitted as job {job.pk}. The next run of the schedule stays as it is.")
            return redirect("jobs:detail", job.pk)
        if what == "pause":
            services.pause(user, row)
            messages.success(request, f"The schedule “{row.name}” is paused.")
        else:
            services.resume(user, row)
            messages.success(request, f"The schedule “{row.name}” runs again.")
    except Refused as refusal:
        messages.error(request, refusal.message)
    return redirect("schedules:detail", pk)
