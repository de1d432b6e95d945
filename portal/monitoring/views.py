"""Pages about GPUs: their state now, their readings over time, and who held them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Avg, Count, Exists, Max, OuterRef
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.accounts.models import User
from portal.accounts.permissions import signed_in
from portal.cluster.models import LIVE_NODE, Gpu, Node
from portal.cluster.slots import lab_noun, noun
from portal.editions import sent_if_changed
from portal.jobs.models import FINISHED_STATES, Allocation, Job
from portal.jobs.occupancy import holder, visible_holders, with_holders
from portal.jobs.queue import may_see_queue
from portal.jobs.resize_timeline.svg import draw
from portal.jobs.resize_timeline.timeline import timeline_of
from portal.lists import Column, Listing, read_table
from portal.monitoring import forms, gantt, idle, pictures, series, visibility

PER_PAGE = 40
GPUS = Listing(
    "gpus",
    (
        Column("name", "GPU", ("node__name", "node", "index"), fixed=True),
        Column("holder", "Held by", fixed=True),
        Column("utilisation", "Utilisation", ("utilisation_percent",), falls=True, nulls=True, fixed=True),
        Column("hour", "Last hour", fixed=True),
        Column("memory", "Memory", ("memory_used_mib",), numeric=True, falls=True, nulls=True, fixed=True),
        Column(
            "temperature", "Temperature", ("temperature_celsius",), numeric=True, falls=True, nulls=True, fixed=True
        ),
    ),
    "name",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU as the list shows it."""

    gpu: Gpu
    job: Any
    """The job that holds it, None when it is free."""
    visible: bool
    mine: bool
    spark: str


@require_safe
@sent_if_changed
def gpus(request: HttpRequest) -> HttpResponse:
    user, now, asked = signed_in(request), timezone.now(), forms.parse_query(request.GET)
    found = visibility.filter_gpus(
        visibility.gpus_in_lab(), user, words=asked.words, state=asked.state, node=asked.node
    )
    problems = forms.problems_of(request.GET)
    table = read_table(request, GPUS, user, problems, {"name": lab_noun()})
    page = Paginator(with_holders(found.order_by(*table.ordering)), PER_PAGE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    about = {
        "page": page,
        "table": table,
        "rows": _gpu_rows(user, shown, series.utilisation_by_minute(shown, now)),
        "asked": asked,
        "states": visibility.STATES.items(),
        "total": _lab_totals(),
        "shows_people": may_see_queue(user),
        "query": request.GET.urlencode(),
    }
    return render(request, "monitoring/gpus.html", about)


def _gpu_rows(user: User, shown: Sequence[Gpu], hours: dict[int, list[float | None]]) -> list[Row]:
    known = visible_holders(user, shown)
    rows = []
    for gpu in shown:
        job = holder(gpu)
        mine = job is not None and job.submitted_by_id == user.pk
        visible = job is not None and job.pk in known
        rows.append(Row(gpu, job, visible, mine, pictures.utilisation_sparkline(hours[gpu.pk])))
    return rows


def _lab_totals() -> dict[str, Any]:
    """Return the totals of the lab."""
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None))
    rows = visibility.gpus_in_lab().order_by()
    known = rows.aggregate(
        count=Count("pk"), utilisation=Avg("utilisation_percent"), hottest=Max("temperature_celsius")
    )
    return {**known, "noun": lab_noun(), "busy": rows.filter(held).count()}


@require_safe
@sent_if_changed
def node(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the GPUs of a node over time, and who held them."""
    user, now, asked = signed_in(request), timezone.now(), forms.parse_query(request.GET)
    machine = get_object_or_404(Node.objects.filter(LIVE_NODE, approved_at__isnull=False), pk=pk)
    of_node = list(visibility.gpus_in_lab().filter(node=machine))
    since = now - asked.window.length
    line = visibility.timeline(user, of_node, since, now)
    about = {
        "node": machine,
        "gpus": of_node,
        "noun": noun(gpu.kind for gpu in of_node),
        "charts": pictures.metric_charts(series.trace(of_node, since, now, now), of_node),
        "picture": gantt.draw(of_node, line.spans, since, now),
        "line": line,
        **_window_links(request, asked),
    }
    return render(request, "monitoring/node.html", about)


@require_safe
def timeline(request: HttpRequest) -> HttpResponse:
    user, now, asked = signed_in(request), timezone.now(), forms.parse_query(request.GET, "day")
    since = now - asked.window.length
    found = visibility.filter_gpus(visibility.gpus_with_history(since), user, words=asked.words, node=asked.node)
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    line = visibility.timeline(user, shown, since, now)
    names = {gpu.pk: pictures.gpu_name(gpu, True) for gpu in shown}
    about = {
        "page": page,
        "picture": gantt.draw(shown, line.spans, since, now),
        "line": line,
        "noun": lab_noun(),
        "spans": [(names[span.gpu], span) for span in line.spans],
        **_window_links(request, asked),
    }
    return render(request, "monitoring/timeline.html", about)


def _window_links(request: HttpRequest, asked: forms.GpuQuery) -> dict[str, Any]:
    """Return the links to other windows, which keep the other parameters."""
    links = []
    for window in series.WINDOWS.values():
        query = request.GET.copy()
        query.pop("page", None)
        query["window"] = window.key
        links.append((window.text, query.urlencode(), window == asked.window))
    return {"asked": asked, "windows": links, "query": request.GET.urlencode()}


@require_safe
@sent_if_changed
def job_readings(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what is known of the GPUs of a job, or one part of it: what is refreshed on its page while it runs."""
    job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=pk)
    part = JOB_PARTS.get(request.GET.get("part", ""))
    if part is None:
        raise Http404
    template, context_of = part
    return render(request, template, context_of(job))


def job_gpu_context(job: Job) -> dict[str, Any]:
    """Return the resize timeline of all attempts, and the readings of the last one that held a GPU."""
    last = job.attempts.filter(allocations__isnull=False).order_by("-number").first()
    found = visibility.attempt_readings(last, timezone.now()) if last else None
    marks = timeline_of(job).marks if job.elastic else ()
    drawn = pictures.metric_charts(found.trace, found.gpus, marks) if found else []
    return {"attempt": last, "charts": drawn, **job_resize_context(job), **job_idle_context(job)}


def job_resize_context(job: Job) -> dict[str, Any]:
    """Return the resize timeline of all attempts."""
    timeline = timeline_of(job)
    is_drawn = job.elastic and timeline.segments or timeline.changes
    return {
        "job": job,
        "timeline": timeline,
        "timeline_svg": draw(timeline, timezone.now()) if is_drawn else "",
        "polls": job.state not in FINISHED_STATES,
    }


def job_idle_context(job: Job) -> dict[str, Any]:
    """Return the idle time by the same rule as the check of the lab, so that page and history agree."""
    live = job.attempts.filter(allocations__isnull=False, ended_at__isnull=True).order_by("-number").first()
    rule = idle.idle_rule() if live else None
    since = idle.idle_attempts(rule, timezone.now(), job.pk).get(live.pk) if live and rule else None
    return {"job": job, "idle_since": since, "rule": rule, "polls": job.state not in FINISHED_STATES}


JOB_PARTS: dict[str, tuple[str, Callable[[Job], dict[str, Any]]]] = {
    "": ("monitoring/_job.html", job_gpu_context),
    "resizes": ("monitoring/_resizes.html", job_resize_context),
    "idle": ("monitoring/_idle.html", job_idle_context),
}
"""The template and context of each part of a job's page that is about its GPUs."""
