"""The list of jobs, and what is done with several of them at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.cluster.slots import lab_noun
from portal.editions import sent_if_changed
from portal.environments.models import Environment
from portal.jobs import services, trash
from portal.jobs.curve_views import MAX_JOBS as MAX_COMPARED
from portal.jobs.job_list import JOBS, PERIODS, STATE_ORDER, add_gpu_hours, is_id, read_filter, with_list_columns
from portal.jobs.models import Job
from portal.jobs.queue import may_see_queue
from portal.jobs.spec import WORD_LISTS, label_of
from portal.lists import MAX_COUNTED as MAX_ROWS
from portal.lists import page_of_rows, read_table, return_url, saved_views
from portal.projects.deletable import KEPT_FOR
from portal.projects.models import Project
from portal.refused import Refused

PAGE_SIZE = 25
MAX_MENU_PROJECTS = 500
"""The most projects in the menu of the list. The search finds jobs of all by the project's name."""
MAX_MENU_PEOPLE = 200
MAX_COUNTED = 10_000
"""Hits of a search that are counted; the page notes that there are more."""
MAX_SELECTED = 200
MAX_REFUSALS = 5
"""Jobs of which the page gives the reason why nothing was done."""
PROJECT_JOBS = 10


@require_safe
def job_list(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    asked = read_filter(request.GET, user)
    noun = lab_noun()
    titles = {"gpus": f"{noun}s", "gpu_hours": f"{noun}-hours"}
    table = read_table(request, JOBS, user, asked.problems, titles)
    shown = sorted(table.keys)
    page = page_of_rows(
        Job.objects.visible_to(user).filter(asked.condition),
        table.ordering,
        PAGE_SIZE,
        request.GET.get("page"),
        lambda rows: with_list_columns(rows, shown),
        MAX_COUNTED if request.GET.get("q", "").strip() else MAX_ROWS,
    )
    if "gpu_hours" in table.keys:
        add_gpu_hours(page.object_list, timezone.now())
    projects = Project.objects.visible_to(user).order_by("name")
    query = {name: request.GET.get(name, "").strip() for name in JOBS.filters}
    about = {
        "page": page,
        "table": table,
        "views": saved_views(user, JOBS),
        "asked": query,
        "is_filtered": any(query.values()),
        "states": [(state.value, state.label, state.value in asked.states) for state in STATE_ORDER],
        "chosen_states": len(asked.states),
        "period": asked.period,
        "periods": PERIODS.items(),
        "has_dates": any(query[name] for name in ("period", "from", "to")),
        "projects": projects.only("name")[:MAX_MENU_PROJECTS],
        "projects_left_out": max(0, projects.count() - MAX_MENU_PROJECTS),
        "environment_title": _environment_title(query["environment"], user),
        "people": _people(user),
        "may_see_queue": may_see_queue(user),
        "asked_columns": request.GET.get("columns", ""),
        "word_lists": [(name, label_of(name), query[name]) for name in WORD_LISTS],
    }
    return render(request, "jobs/list.html", about)


def _environment_title(key: str, user: User) -> str:
    """Return the title of the environment by which the list is filtered; its key if there is none that the user may see."""
    if not key:
        return ""
    found = Environment.objects.visible_to(user).filter(key=key.replace("\0", ""))
    return found.values_list("title", flat=True).first() or key


def _people(user: User) -> list[str]:
    """Return the names that the filter by person suggests: those who share a project with the reader."""
    rows = User.objects.filter(is_active=True)
    if not user.is_admin:
        rows = rows.filter(memberships__project__in=Project.objects.visible_to(user).values("pk")).distinct()
    return list(rows.order_by("username").values_list("username", flat=True)[:MAX_MENU_PEOPLE])


@require_safe
@sent_if_changed
def project_jobs(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the newest jobs of a project, for the page of the project."""
    user = signed_in(request)
    project = get_object_or_404(Project.objects.visible_to(user), pk=pk)
    rows = Job.objects.filter(project=project, deleted_at=None).order_by("-submitted_at", "-pk")
    jobs = list(with_list_columns(rows)[:PROJECT_JOBS])
    return render(request, "jobs/_project_jobs.html", {"jobs": jobs})


# --- several jobs at once ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """What may be done with several jobs."""

    do: Callable[[User, Job], Job]
    done: str
    """Completes "3 jobs ..."."""
    one_done: str


ACTIONS = {
    "cancel": Action(services.cancel, "were cancelled", "was cancelled"),
    "hold": Action(services.hold, "are on hold", "is on hold"),
    "release": Action(services.release, "are queued again", "is queued again"),
    "retry": Action(services.retry, "were submitted again, as copies", "was submitted again, as a copy"),
    "delete": Action(trash.delete, *(f"{verb} in the trash for {KEPT_FOR.days} days" for verb in ("are", "is"))),
}


@require_POST
def act_on_selected(request: HttpRequest) -> HttpResponse:
    """Do with the selected jobs what the button names, and report what could not be done with which of them and why."""
    user, what = signed_in(request), request.POST.get("do", "")
    numbers = list(dict.fromkeys(int(text) for text in request.POST.getlist("job") if is_id(text)))
    back = return_url(request, reverse("jobs:list"))
    if what not in ACTIONS and what != "compare":
        messages.error(request, f"Choose what to do with the jobs: {', '.join(ACTIONS)} or compare.")
    elif not numbers:
        messages.info(request, "Select jobs first: tick the boxes in front of them.")
    elif len(numbers) > MAX_SELECTED:
        messages.error(request, f"At most {MAX_SELECTED} jobs at once; {len(numbers)} were selected. Nothing was done.")
    elif what != "compare":
        _act(request, user, ACTIONS[what], numbers)
    elif not 2 <= len(numbers) <= MAX_COMPARED:
        messages.info(request, f"Select from 2 to {MAX_COMPARED} jobs to compare; {len(numbers)} selected.")
    else:
        return redirect(f"{reverse('jobs:compare')}?{urlencode([('job', number) for number in numbers])}")
    return redirect(back)


def _act(request: HttpRequest, user: User, action: Action, numbers: Iterable[int]) -> None:
    wanted = list(numbers)
    rows = Job.objects.visible_to(user).filter(pk__in=wanted).select_related("project", "code", "environment")
    jobs = list(rows.order_by("pk"))
    done, refused = 0, []
    for job in jobs:
        try:
            action.do(user, job)
            done += 1
        except Refused as refusal:
            refused.append(f"Job {job.pk}: {refusal.message}")
    if unknown := len(wanted) - len(jobs):
        refused.append(f"{unknown} of the selected jobs do not exist, or you may not see them.")
    if done:
        messages.success(request, f"{done} job{'s' * (done != 1)} {action.one_done if done == 1 else action.done}.")
    for text in refused[:MAX_REFUSALS]:
        messages.warning(request, text)
    if len(refused) > MAX_REFUSALS:
        messages.warning(request, f"Nothing changed for {len(refused) - MAX_REFUSALS} more, for reasons like these.")
