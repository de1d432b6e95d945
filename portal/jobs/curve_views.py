"""Views of curves: on the page of a job, of several jobs compared, and as CSV and JSON."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import orjson
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from portal.accounts.permissions import signed_in
from portal.editions import sent_if_changed
from portal.jobs import comparison, curve_points, curves
from portal.jobs.curve_points import JobCurves
from portal.jobs.job_list import is_id
from portal.jobs.models import FINISHED_STATES, Job, JobState, MetricPoint, Progress
from portal.jobs.resize_timeline.timeline import timeline_of
from portal.spreadsheets import Cell, csv_response

MAX_JOBS = 6
"""The maximum number of lines in one chart: more cannot be distinguished."""
SMOOTHING_WORDS = {"none": "as they are", "some": "smoothed a little", "much": "smoothed much"}


AFTER = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
"""A job, and the number of the last of its points that the page has."""


def training_context(job: Job) -> dict[str, Any]:
    """Return the context of ``jobs/_training.html``, which is empty for a job that has reported nothing."""
    progress = Progress.objects.filter(attempt__job=job).select_related("attempt").order_by("-attempt__number").first()
    common = {"job": job, "progress": progress, "polls": job.state not in FINISHED_STATES}
    if progress is None:
        return common
    ranks = curves.ranks_of(progress)
    live = job.state == JobState.RUNNING and progress.attempt.ended_at is None
    return {
        **common,
        "has_facts": progress.ranks > 0 or progress.loss is not None or progress.done is not None,
        "live": live,
        "ranks": ranks,
        "rank_chart": curves.rank_chart(ranks),
    }


def curves_context(job: Job) -> dict[str, Any]:
    """Return the context of ``jobs/_curves.html``: charts that need no script, and where scripts find the points."""
    all_curves = curves.curves([job.pk], curves.curve_names([job.pk]))
    return {
        "charts": curves.metric_charts(all_curves, "none", {job.pk: f"#{job.pk}"}),
        "data_url": _data_url([job]),
        "topics": _topics([job]),
        "job": job,
        "smoothings": SMOOTHING_WORDS.items(),
    }


def _data_url(jobs: Sequence[Job]) -> str:
    return f"{reverse('jobs:curves')}?{urlencode([('job', job.pk) for job in jobs])}"


def _topics(jobs: Sequence[Job]) -> str:
    """Return what the page watches to show the points that come."""
    return " ".join(f"job-{job.pk}" for job in jobs if job.state not in FINISHED_STATES)


@require_safe
@sent_if_changed
def training(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the part of the job's page that changes while it trains."""
    job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=pk)
    return render(request, "jobs/_training.html", {"training": training_context(job)})


def _compared_jobs(request: HttpRequest) -> tuple[list[Job], bool]:
    """Return the jobs of the query that the user may see, and whether there are more than can be distinguished."""
    asked = {int(each) for each in request.GET.getlist("job") if is_id(each)}
    related = ("project", "code", "environment")
    rows = Job.objects.visible_to(signed_in(request)).filter(pk__in=asked).select_related(*related).order_by("pk")
    return list(rows[:MAX_JOBS]), len(asked) > MAX_JOBS


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Compare up to six jobs that the user may see."""
    jobs, left_out = _compared_jobs(request)
    asked = request.GET.get("smoothing", "none")
    smoothing = asked if asked in SMOOTHING_WORDS else "none"
    numbers = [job.pk for job in jobs]
    names = curves.curve_names(numbers)
    differences = comparison.differences(signed_in(request), jobs)
    labels = comparison.labels(jobs, differences)
    context = {
        "jobs": [(job, labels[job.pk]) for job in jobs],
        "charts": curves.metric_charts(curves.curves(numbers, names), smoothing, labels),
        "differences": differences,
        "results": comparison.results(jobs, names),
        "data_url": _data_url(jobs),
        "topics": _topics(jobs),
        "smoothing": smoothing,
        "smoothing_weight": curves.SMOOTHING[smoothing],
        "smoothings": SMOOTHING_WORDS.items(),
        "left_out": left_out,
        "max_jobs": MAX_JOBS,
    }
    return render(request, "jobs/compare.html", context)


@require_safe
def curve_data(request: HttpRequest) -> HttpResponse:
    """Return the points of the curves of up to six jobs as JSON; with ``after`` only those that were stored since."""
    user = signed_in(request)
    jobs, _ = _compared_jobs(request)
    pairs = [AFTER.fullmatch(each) for each in request.GET.getlist("after")]
    if not all(pairs):
        return _json({"error": "after must be a job's number, a colon and the number of a point."}, status=400)
    after = {int(pair[1]): int(pair[2]) for pair in pairs if pair}
    found = [curve_points.new_points(job.pk, after[job.pk]) for job in jobs if job.pk in after]
    is_complete = len(found) < len(jobs) or None in found
    if is_complete:
        names = curves.curve_names([job.pk for job in jobs])
        per_curve = curve_points.points_per_curve(len(names) * len(jobs))
        found = [curve_points.job_curves(job.pk, names, per_curve) for job in jobs]
    labels = comparison.labels(jobs, comparison.differences(user, jobs) if is_complete else ())
    marks = timeline_of(jobs[0]).marks if len(jobs) == 1 and jobs[0].elastic else ()
    answer = {
        "complete": is_complete,
        "live": any(job.state not in FINISHED_STATES for job in jobs),
        "jobs": [{"job": job.pk, "label": labels[job.pk], "start": job.started_at} for job in jobs],
        "curves": [_curve_of(each) for each in found if each],
        "marks": [{"time": at.timestamp(), "text": text} for at, text in marks],
    }
    return _json(answer)


def _curve_of(curves_of_job: JobCurves) -> Mapping[str, Any]:
    return {
        "job": curves_of_job.job,
        "last_point": curves_of_job.last_point,
        "lines": {
            name: {
                "steps": line.steps,
                "times": [round(each, 1) for each in line.times],
                "values": [float(f"{each:.6g}") for each in line.values],
                "breaks": line.breaks,
            }
            for name, line in curves_of_job.lines.items()
        },
    }


def _json(answer: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(orjson.dumps(answer), content_type="application/json", status=status)


@require_safe
def metrics_csv(request: HttpRequest, pk: int) -> HttpResponse:
    """Export all points in the order in which they were stored."""
    job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=pk)
    return csv_response(f"job-{job.pk}-metrics", _rows(job))


def _rows(job: Job) -> Iterator[Sequence[Cell]]:
    yield "attempt", "at", "step", "name", "value"
    points = MetricPoint.objects.filter(attempt__job=job).order_by("pk")
    for number, at, step, name, value in points.values_list(
        "attempt__number", "at", "step", "name", "value"
    ).iterator():
        yield number, at.isoformat(), step, name, value
