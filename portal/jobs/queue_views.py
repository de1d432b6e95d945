"""The page of the lab's queue."""

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.accounts.models import LabSettings, User
from portal.accounts.permissions import signed_in
from portal.editions import sent_if_changed
from portal.jobs.models import JobState
from portal.jobs.queue import count_in_queue, jobs_in_queue, may_see_queue, rows_as_seen_by

PER_PAGE = 50
SELECTIONS = {"": "All", "running": "Running", "waiting": "Waiting", "mine": "Mine"}


def selected_by(key: str, user: User) -> Q:
    """Return the condition on the jobs that a selection shows. ``KeyError`` for an unknown one."""
    return {
        "": Q(),
        "running": Q(state=JobState.RUNNING),
        "waiting": Q(state=JobState.QUEUED),
        "mine": Q(submitted_by=user),
    }[key]


@require_safe
@sent_if_changed
def queue(request: HttpRequest) -> HttpResponse:
    """Show the jobs that run or wait: ``?show=`` has a key of ``SELECTIONS``."""
    user, selection = signed_in(request), request.GET.get("show", "")
    if not may_see_queue(user) or selection not in SELECTIONS:
        raise Http404
    page = Paginator(jobs_in_queue().filter(selected_by(selection, user)), PER_PAGE).get_page(request.GET.get("page"))
    jobs = list(page.object_list)
    running, waiting = count_in_queue()
    about = {
        "rows": rows_as_seen_by(user, jobs),
        "jobs": jobs,
        "page": page,
        "running": running,
        "waiting": waiting,
        "selection": selection,
        "selections": SELECTIONS.items(),
        "for_members": LabSettings.current().queue_for_members,
    }
    return render(request, "jobs/queue.html", about)
