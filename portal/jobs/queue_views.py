"""The page of the lab's queue."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.accounts.models import LabSettings
from portal.accounts.permissions import signed_in
from portal.jobs.queue import may_see_queue, whole_queue


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    if not may_see_queue(user):
        raise Http404
    found = whole_queue(user)
    about = {
        "queue": found,
        "jobs": [row.job for row in found.rows],
        "for_members": LabSettings.current().queue_for_members,
    }
    return render(request, "jobs/queue.html", about)
