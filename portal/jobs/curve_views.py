"""Views of curves: on the page of a job, of several jobs compared, and as CSV."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from portal.accounts.permissions import signed_in
from portal.jobs import curves
from portal.jobs.models import FINISHED_STATES, Job, JobState, MetricPoint, Progress
from portal.spreadsheets import Cell, csv_response

MAX_JOBS = 6
"""The maximum number of lines in one chart: more cannot be distinguished."""
SMOOTHING_WORDS = {"none": "as they are", "some": "smoothed a little", "much": "smoothed much"}


def training_context(job: Job, smoothing: str = "none") -> dict[str, Any]:
    """Return the context of ``jobs/_training.html``, which is empty for a job that has reported nothing."""
    progress = Progress.objects.filter(attempt__job=job).select_related("attempt").order_by("-attempt__number").first()
    common = {"job": job, "progress": progress, "polls": job.state not in FINISHED_STATES}
    if progress is None:
        return common
    ranks = curves.ranks_of(progress)
    live = job.state == JobState.RUNNING and progress.attempt.ended_at is None
    all_curves = curves.curves([job.pk], curves.curve_names([job.pk]))
    return {
        **common,
        "live": live,
        "percent": None if progress.done is None else round(100 * progress.done, 1),
        "remaining_seconds": curves.remaining_seconds(progress) if live else None,
        "charts": curves.metric_charts(all_curves, smoothing, {job.pk: f"#{job.pk}"}),
        "ranks": ranks,
        "rank_chart": curves.rank_chart(ranks),
        "smoothing": smoothing,
        "smoothings": SMOOTHING_WORDS.items(),
    }


def _smoothing(request: HttpRequest) -> str:
    asked = request.GET.get("smoothing", "none")
    return asked if asked in SMOOTHING_WORDS else "none"


@require_safe
def training(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the part of the job's page that changes while it trains."""
    job = get_object_or_404(Job.objects.visible_to(signed_in(request)), pk=pk)
    return render(request, "jobs/_training.html", {"training": training_context(job, _smoothing(request))})


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Compare up to six jobs that the user may see."""
    asked = [int(each) for each in request.GET.getlist("job") if each.isascii() and each.isdecimal() and len(each) < 19]
    jobs = list(Job.objects.visible_to(signed_in(request)).filter(pk__in=asked).order_by("pk")[:MAX_JOBS])
    numbers = [job.pk for job in jobs]
    all_curves = curves.curves(numbers, curves.curve_names(numbers))
    job_names = {job.pk: f"#{job.pk} {job.name}" for job in jobs}
    context = {
        "jobs": jobs,
        "charts": curves.metric_charts(all_curves, _smoothing(request), job_names),
        "smoothing": _smoothing(request),
        "smoothings": SMOOTHING_WORDS.items(),
        "left_out": len(set(asked)) > MAX_JOBS,
        "max_jobs": MAX_JOBS,
    }
    return render(request, "jobs/compare.html", context)


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
