"""The pages that delete jobs, and the trash."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.permissions import signed_in
from portal.jobs import permissions, trash
from portal.jobs.models import Job
from portal.jobs.stored import space_of
from portal.projects.deletable import KEPT_FOR
from portal.projects.trash_pages import Actions, act_in_trash
from portal.refused import Refused

PAGE_SIZE = 50


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what would go and what stays, or move a job to the trash."""
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("project"), pk=pk)
    try:
        permissions.require_may_act(user, job)
        if request.method == "POST":
            trash.delete(user, job)
            messages.success(request, f"Job {job.pk} is in the trash. It can be restored for {KEPT_FOR.days} days.")
            return redirect("jobs:list")
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("jobs:detail", pk)
    about = {
        "job": job,
        "hindrance": trash.hindrance(job),
        "space": space_of(pk=job.pk),
        "files": job.outputs.count(),
        "followers": Job.objects.visible_to(user).filter(after=job, use_outputs=True).count(),
        "days": KEPT_FOR.days,
    }
    return render(request, "jobs/delete.html", about)


@require_safe
def trash_list(request: HttpRequest) -> HttpResponse:
    """List the deleted jobs that the reader may restore, the newest first."""
    rows = Job.objects.in_trash_of(signed_in(request)).select_related("project", "submitted_by", "deleted_by")
    rows = rows.annotate(outputs_size=Coalesce(Sum("outputs__size"), 0)).order_by("-deleted_at", "-pk")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "jobs/trash.html", {"page": page, "days": KEPT_FOR.days})


ACTIONS: Actions[Job] = {
    "restore": (trash.restore, "Job {row.pk} is restored."),
    "erase": (trash.delete_for_good, "Job {row.pk} is erased within the hour."),
}


@require_POST
def act(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    """Restore a job from the trash, or let it be erased now."""
    row = get_object_or_404(Job.objects.in_trash_of(signed_in(request)).select_related("project"), pk=pk)
    return act_in_trash(request, row, ACTIONS, what, "jobs:trash")
